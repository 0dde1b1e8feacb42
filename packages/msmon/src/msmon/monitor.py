"""The documented API, without a framework: each framework's ``TrainerMon`` adds what it alone knows."""

from __future__ import annotations

import logging
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import msmon_alert
from msmon import config as configuration
from msmon.alerts import Alerts
from msmon.collector import Buffer, CollectedStep, Collector
from msmon.config import Config
from msmon.outputs import make_run_dir, make_writers
from msmon.pipeline import Pipeline
from msmon.run_info import run_info
from msmon.tables import TEXT_OPS, number_ops
from msmon_hooks import Clock, Coverage, Schedule, Selector, Target, Targets
from msmon_stats import summarize_many

logger = logging.getLogger("msmon")

Metrics = dict[str, dict[str, Any]]


class BaseTrainerMon(ABC):
    """Watches a training. See the framework's own class for how to use it.

    Args:
        config_file_path: the configuration file.
        process_group: the pipeline-parallel group; only used to order anomalies.
        params_have_main_grad: read ``param.main_grad`` where it exists, else ``param.grad``.

    Raises:
        msmon.config.ConfigError: the file is missing, unreadable or wrong; the message lists every problem.
        OSError: the output directory cannot be created.
    """

    framework: str
    """Import name of the framework."""
    optimizer_method: str = "step"
    """The method of an optimizer that updates the weights."""

    def __init__(
        self,
        config_file_path: str | os.PathLike[str],
        process_group: Any = None,
        params_have_main_grad: bool = True,
        opt_ty: Any = None,
    ) -> None:
        self._config = configuration.load_config(config_file_path, check_rules=msmon_alert.rules_from_config)
        for warning in self._config.warnings:
            logger.warning("%s: %s", self._config.source, warning)
        self._report_unsupported()
        self._process_group = process_group
        self._dp_group: Any = None
        self._tp_group: Any = None
        self._main_grad = params_have_main_grad
        self._ops = tuple(self._config.ops)
        self._rank = self._find_rank()
        self._active = not self._config.module_ranks or self._rank in self._config.module_ranks
        self._ends_program = self._config.cc_distribution.enable and self._config.cc_distribution.cc_log_only
        self._output_dir = configuration.output_dir()
        self._run_dir = make_run_dir(self._config, self._output_dir, self._rank) if self._active else None
        self._attachment: Any = None
        self._clock: Clock | None = None
        self._pipeline: Pipeline | None = None
        self._finish: weakref.finalize[..., Any] | None = None

    # What a framework adds

    @abstractmethod
    def _find_rank(self) -> int:
        """This process among all."""

    @abstractmethod
    def _find_world_size(self) -> int:
        """How many processes train."""

    def _group_ranks(self, group: Any) -> Sequence[int]:
        """The ranks of a process group that the script passed, in its order; without one, this rank alone."""
        return [self._rank]

    @abstractmethod
    def _find_models(self, model: Any) -> Sequence[Any]:
        """The model chunks, or TypeError that names the argument."""

    @abstractmethod
    def _make_buffer(self) -> Buffer:
        """A buffer of statistics for this framework's tensors."""

    @abstractmethod
    def _attach(
        self, models: Sequence[Any], optimizer: Any, targets: Targets, clock: Clock, observer: Any, coverage: Coverage
    ) -> Any:
        """Hook the models and the optimizer; the result has ``close``, ``retire``, ``describe`` and ``engine``."""

    def _attach_idle(self, models: Sequence[Any], optimizer: Any, clock: Clock) -> Any:
        """On a rank without a monitor: only end the program when the other ranks do."""
        return None

    # The documented API

    def set_monitor(
        self,
        model: Any,
        grad_acc_steps: int,
        optimizer: Any,
        dp_group: Any = None,
        tp_group: Any = None,
        start_iteration: int = 0,
    ) -> None:
        """Begin to watch; the training script needs nothing else.

        Args:
            model: a module, or a list of them (the chunks of a virtual pipeline).
            grad_acc_steps: micro-steps per optimizer step.
            optimizer: the optimizer that trains the model; wrappers are unwrapped.
            dp_group, tp_group: the data-parallel and tensor-parallel groups.
            start_iteration: number of the first step.

        Called again, it takes the hooks of the first call off before.

        Raises:
            TypeError: an argument of the wrong type; the message names it.
        """
        models = self._find_models(model)
        _check_integer("grad_acc_steps", grad_acc_steps, 1)
        _check_integer("start_iteration", start_iteration, 0)
        if not callable(getattr(optimizer, self.optimizer_method, None)):
            raise TypeError(
                f"set_monitor: optimizer must have a method {self.optimizer_method}(), got {type(optimizer).__name__}"
            )
        if self._attachment is not None:
            self._detach()
        config = self._config
        self._dp_group, self._tp_group = dp_group, tp_group
        self._clock = Clock(
            start_iteration=start_iteration,
            grad_acc_steps=grad_acc_steps,
            schedule=Schedule(
                start_step=config.start_step, step_interval=config.step_interval, collect_times=config.collect_times
            ),
        )
        if not self._active:
            if self._ends_program:
                self._attachment = self._attach_idle(models, optimizer, self._clock)
            return
        coverage = Coverage()
        pipeline = self._make_pipeline(coverage)
        collector = Collector(self._make_buffer(), config.eps, self._on_step, owner=self)
        self._pipeline = pipeline
        self._finish = weakref.finalize(self, pipeline.finish)
        try:
            self._attachment = self._attach(models, optimizer, _targets(config), self._clock, collector, coverage)
        except BaseException:
            self._finish.detach()
            raise
        pipeline.run_info["engine"] = self._attachment.engine
        pipeline.run_info["tensors"] = self._attachment.describe()
        pipeline.begin()

    def generate_wgrad_metrics(self) -> tuple[Metrics, Metrics]:
        """Statistics of the current weight gradients, reduced and unreduced, anywhere in the program.

        After a step and before the next backward: those of the last step. During a step: what the optimizer would
        consume now. Waits for the device.

        Returns:
            Two dictionaries, ``"0:fc1.weight/rank0/grad_reduced"`` to ``{"norm": 0.12, ...}``.
        """
        if self._pipeline is None or self._attachment is None or not self._config.wg_distribution:
            return {}, {}
        current = self._current_gradients()
        if current:
            return current
        self._pipeline.drain()
        return self._pipeline.metrics("grad_reduced"), self._pipeline.metrics("grad_unreduced")

    def generate_xy_metrics(self) -> tuple[Metrics, Metrics]:
        """Statistics of the activations and of their gradients, of the step so far; between two steps those of the
        last one. Waits for the device."""
        if self._pipeline is None:
            return {}, {}
        self._pipeline.drain()
        return self._pipeline.metrics("actv"), self._pipeline.metrics("actv_grad")

    @property
    def ops(self) -> list[str]:
        """The statistics; they may be changed while training, from the next step on."""
        return list(self._ops)

    @ops.setter
    def ops(self, ops: Sequence[str]) -> None:
        self._ops = configuration.parse_config({"ops": list(ops)}, "ops").ops
        if self._pipeline is not None:
            self._pipeline.set_ops(self._ops)

    def close(self) -> None:
        """Write what is pending and take every hook off; harmless when called again."""
        self._detach()

    def __enter__(self) -> BaseTrainerMon:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # The rest

    def _detach(self) -> None:
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.close()
        if self._finish is not None:
            self._finish()

    def _make_pipeline(self, coverage: Coverage) -> Pipeline:
        config = self._config
        stages = self._group_ranks(self._process_group)
        stage = stages.index(self._rank) if self._rank in stages else 0
        info = run_info(config, framework=self.framework, rank=self._rank, world_size=self._find_world_size())
        info["pp_stage"] = stage
        groups = {"pipeline": self._process_group, "data": self._dp_group, "tensor": self._tp_group}
        info["parallel"] = {name: list(self._group_ranks(group)) for name, group in groups.items()}
        alerts = None
        if config.alert.rules:
            alerts = Alerts(
                config.alert,
                rank=self._rank,
                directory=self._output_dir / "anomaly_detected" / f"rank{self._rank}",
                append=bool(config.append_output),
                pp_stage=stage,
                group_mates=stages,
            )
        return Pipeline(
            rank=self._rank,
            ops=self._ops,
            writers=make_writers(config, self._run_dir, self._rank),
            alerts=alerts,
            coverage=coverage,
            run_dir=self._run_dir,
            run_info=info,
        )

    def _on_step(self, collected: CollectedStep) -> None:
        assert self._pipeline is not None
        assert self._clock is not None
        self._pipeline.submit(collected)
        if self._clock.exhausted and self._attachment is not None:
            self._attachment.retire()

    def _current_gradients(self) -> tuple[Metrics, Metrics] | None:
        """The gradients as they stand now, where a backward has run since the last step."""
        assert self._clock is not None
        hooks = self._attachment.weight_hooks
        if hooks is None or not self._clock.in_step:
            return None
        weights, gradients = zip(*hooks.current_gradients(), strict=True) if hooks.current_gradients() else ((), ())
        if not weights:
            return None
        ops = number_ops(self._ops)
        metrics: list[Metrics] = []
        for data_type in ("grad_reduced", "grad_unreduced"):
            statistics = summarize_many(gradients, ops, self._config.eps)
            metrics.append(
                {
                    f"{weight.vpp_stage}:{weight.name}/rank{self._rank}/{data_type}": {
                        op: _texts(gradient)[op] if op in TEXT_OPS else values[op] for op in self._ops
                    }
                    for weight, gradient, values in zip(weights, gradients, statistics, strict=True)
                }
            )
        return metrics[0], metrics[1]

    def _report_unsupported(self) -> None:
        later = [name for name, wanted in _not_yet(self._config).items() if wanted]
        if later:
            logger.warning("%s: not yet supported and ignored: %s", self._config.source, ", ".join(later))


def _not_yet(config: Config) -> Mapping[str, bool]:
    return {
        "print_struct": config.print_struct,
        "mg_direction": config.mg_direction,
        "ur_distribution": config.ur_distribution,
        "stack_info": config.stack_info,
        "recording_l2_features": config.recording_l2_features,
        "squash_name": config.squash_name,
    }


def _texts(tensor: Any) -> dict[str, str]:
    return {"shape": str(list(tensor.shape)), "dtype": str(tensor.dtype)}


def _targets(config: Config) -> Targets:
    wanted = {}
    for target in config.targets:
        sides = {
            side: Selector(length=1 if selector.form == "tensor" else selector.length, index=selector.index)
            for side in ("input", "output", "input_grad", "output_grad")
            if (selector := getattr(target, side)) is not None
        }
        wanted[target.key] = Target(selectors={} if target.whole else sides)
    return Targets(wanted, all_modules=config.all_xy)


def _check_integer(name: str, value: object, lowest: int) -> None:
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(f"set_monitor: {name} must be an integer, got {type(value).__name__}")
    if value.__index__() < lowest:  # type: ignore[attr-defined]
        raise ValueError(f"set_monitor: {name} must be at least {lowest}, got {value}")
