"""The documented API, without a framework: each framework's `TrainerMon` adds what it alone knows."""

from __future__ import annotations

import functools
import logging
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from msmon import config as configuration
from msmon.alerts import AlertHistory
from msmon.arguments import check_integer, check_optimizers, find_models
from msmon.collector import Buffer, NoObserver
from msmon.config import Config, DynamicSwitch, Period
from msmon.deprecated_calls import DeprecatedCalls, warn_deprecated
from msmon.forks import leave_in_children
from msmon.outputs import TrainingProcess, check_output_dir, make_run_dir
from msmon.requests import ends_program
from msmon.session import Session
from msmon.step_in_flight import Metrics, activations_so_far, current_gradients
from msmon_hooks import Clock, Coverage, Guarded, Registrations, Request, Schedule, StepEnd

logger = logging.getLogger("msmon")

_NEVER = Schedule(collect_times=0)
_SCHEDULED = {"start_step", "step_interval", "collect_times"}
"""Fields that say which steps are sampled."""


class BaseTrainerMon(DeprecatedCalls, ABC):
    """Watches a training. See the framework's own class for how to use it.

    With `DYNAMIC_MONITOR=True` in the environment, collection starts and stops with edits of the configuration
    file while the training runs.

    Args:
        config_file_path: the configuration file.
        process_group: the pipeline-parallel group; only used to order anomalies.
        params_have_main_grad: read `param.main_grad` where it exists, else `param.grad`.
        opt_ty: of old scripts; ignored.
        config: instead of a file, what would stand in it.
        output_dir: where files go; default: $MONITOR_OUTPUT_DIR, or ./monitor_output.

    Raises:
        TypeError: neither a file nor `config`, or both.
        msmon.config.ConfigError: the file is missing, unreadable or wrong; the message lists every problem. Not in
            dynamic mode, where the file may come later.
        OSError: the output directory cannot be created.
    """

    framework: str
    """Import name of the framework."""
    _hooks: Any
    """Its part of msmon_hooks, with `attach`, `ProcessGroups` and `group_ranks`."""
    _make_buffer: Callable[..., Buffer]
    """A buffer of statistics for its tensors; `fingerprint=True` for fingerprints as well."""
    _model_kind: str
    """How messages call a model."""
    optimizer_methods: tuple[str, ...] = ("step",)
    """The methods of an optimizer that may update the weights; one of them must be there."""
    _parse: Callable[..., Config] = staticmethod(configuration.parse_config)
    """Checks the object in the configuration file."""

    def __init__(
        self,
        config_file_path: str | os.PathLike[str] | None = None,
        process_group: Any = None,
        params_have_main_grad: bool = True,
        opt_ty: Any = None,
        *,
        config: Mapping[str, Any] | None = None,
        output_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        if (config_file_path is None) == (config is None):
            raise TypeError("TrainerMon: give config_file_path or config, one of the two")
        if opt_ty is not None:
            warn_deprecated("opt_ty", "leave it out, the optimizer is found by looking at it")
        self._path: Any = config_file_path
        self._process_group = process_group
        self._dp_group: Any = None
        self._tp_group: Any = None
        self._main_grad = params_have_main_grad
        self.rank = self._find_rank()
        """This process among all."""
        self._output_dir = Path(output_dir) if output_dir is not None else configuration.output_dir()
        self._dynamic = configuration.dynamic_mode()
        if self._dynamic and config is not None:
            raise configuration.ConfigError(
                "config: dynamic mode (DYNAMIC_MONITOR=True) follows the edits of a file; give config_file_path"
            )
        self._config = Config()
        if not self._dynamic:
            self._config = self._load(config_file_path, config)
            for warning in self._config.warnings:
                logger.warning("%s: %s", self._config.source, warning)
            if self._monitored(self._config):
                check_output_dir(self._config, self._directory(self._config))
        self._switch: DynamicSwitch | None = None
        self._period: Period | None = None
        self._attachment: Any = None
        self._clock = Clock(schedule=_NEVER)
        self._chunks = 1
        self._session: Session | None = None
        self._waiting: Config | None = None
        """In force from the next step on."""
        self._given: tuple[Any, ...] | None = None
        """The arguments of `set_monitor`, until a step has ended."""
        self._until_first_step = Registrations()
        self._alert_history = AlertHistory()
        self._starting = Guarded("the model")
        self._switching = Guarded("start and stop")
        self._asking_gradients, self._asking_activations = Guarded("current gradients"), Guarded("current activations")
        leave_in_children(self)

    def _load(self, path: str | os.PathLike[str] | None, config: Mapping[str, Any] | None) -> Config:
        if path is None:
            return self._parse(config, "config")
        return configuration.load_config(path, self._parse)

    # What a framework adds

    @abstractmethod
    def _find_rank(self) -> int:
        """This process among all."""

    @abstractmethod
    def _find_world_size(self) -> int:
        """How many processes train."""

    def _expect(self, models: Sequence[Any]) -> None:
        """Tensors of these models will be measured: what that takes need not wait for the first step."""

    @abstractmethod
    def _is_model(self, model: Any) -> bool:
        """Whether the hooks know how to read it."""

    def _group_ranks(self, group: Any) -> Sequence[int]:
        """The ranks of a process group that the script passed, in its order; without one, this rank alone."""
        return [self.rank] if group is None else self._hooks.group_ranks(group)

    def _request(self, session: Session) -> Request:
        process_groups = self._hooks.ProcessGroups(
            data_parallel=self._dp_group, tensor_parallel=self._tp_group, monitored=session.config.module_ranks
        )
        return session.request(main_grad=self._main_grad, process_groups=process_groups)

    def _attach(
        self, models: Sequence[Any], optimizer: Any, clock: Clock, request: Request | None, observer: Any, coverage: Any
    ) -> Any:
        """Hook the models and the optimizer; see `msmon_hooks.attachment.Attachment`."""
        return self._hooks.attach(models, optimizer, request, clock, observer, coverage, after_step=self._after_step)

    # The documented API

    def set_monitor(
        self,
        model: Any,
        grad_acc_steps: int | None,
        optimizer: Any,
        dp_group: Any = None,
        tp_group: Any = None,
        start_iteration: int = 0,
    ) -> None:
        """Begin to watch; the training script needs nothing else.

        Args:
            model: a module, or a list of them (the chunks of a virtual pipeline).
            grad_acc_steps: micro-steps per optimizer step. None: not known; with PyTorch, gradients before the
                reduction are then read after each of them.
            optimizer: the optimizer that trains the model; wrappers are unwrapped. Or a list of several: a step is over
                when each has stepped, or one steps again. Or None, where the training loop calls `step` of this monitor
                after each update.
            dp_group: the data-parallel group.
            tp_group: the tensor-parallel group.
            start_iteration: number of the first step.

        Called again, it takes the hooks of the first call off before.

        Raises:
            TypeError: an argument of the wrong type; the message names it.
        """
        models = find_models(model, self._model_kind, self._is_model)
        self._chunks = len(models)
        if grad_acc_steps is not None:
            check_integer("grad_acc_steps", grad_acc_steps, 1)
        check_integer("start_iteration", start_iteration, 0)
        if optimizer is not None:
            check_optimizers(optimizer, self.optimizer_methods)
        self.close()
        self._begin(models, grad_acc_steps, optimizer, dp_group, tp_group, start_iteration)
        # Ranks that no launcher started learn theirs now or later.
        again = functools.partial(_begin_again, weakref.ref(self))
        self._given = (models, grad_acc_steps, optimizer, dp_group, tp_group, start_iteration)
        self._hooks.when_ranks_are_known(again, self._until_first_step)

    def _begin(
        self,
        models: Sequence[Any],
        grad_acc_steps: int | None,
        optimizer: Any,
        dp_group: Any,
        tp_group: Any,
        start_iteration: int,
    ) -> None:
        self._expect(models)
        # Another training: its anomalies join those of the one before, but no rule compares the two.
        self._alert_history.rules = None
        self._starting, self._switching = Guarded("the model"), Guarded("start and stop")
        self._dp_group, self._tp_group = dp_group, tp_group
        self.rank = self._find_rank()
        """This process among all."""
        self._clock = Clock(start_iteration=start_iteration, grad_acc_steps=grad_acc_steps, schedule=_NEVER)
        if self._dynamic:
            args = (models, optimizer, self._clock, None, NoObserver(), Coverage())
            self._attachment = self._starting.run(self._attach, *args)
            size = self._find_world_size()
            self._switch = DynamicSwitch(self._path, rank=self.rank, world_size=size, parse=self._parse)
            self._switching.run(self._switch.begin, start_iteration)
        elif self._monitored(self._config):
            self._clock.reschedule(_schedule_of(self._config, self._config.start_step))
            self._starting.run(self._begin_session, models, optimizer)
        elif ends_program(self._config):
            # The program ends on all ranks, or those that go on would wait for this one's peers for ever.
            self._clock.reschedule(_schedule_of(self._config, self._config.start_step))
            request = Request(ends_program=True)
            self._attachment = self._attach(models, optimizer, self._clock, request, NoObserver(), Coverage())

    def _begin_session(self, models: Sequence[Any], optimizer: Any) -> None:
        session = self._session = self._new_session(self._config, self._new_run_dir(self._config))
        request = self._request(session)
        self._attachment = self._attach(models, optimizer, self._clock, request, session.collector, session.coverage)
        session.begin(self._attachment)

    @property
    def is_watching(self) -> bool:
        """Whether hooks are on a model: from `set_monitor` to `close`."""
        return self._attachment is not None

    @property
    def monitors(self) -> tuple[str, ...]:
        """The switches of the configuration in force, such as `wg_distribution`; in dynamic mode of the last one."""
        return self._config.monitors

    @property
    def ops(self) -> list[str]:
        """The statistics; they may be changed while training, from the next step on, in a new run directory."""
        return list((self._waiting or self._config).ops)

    @ops.setter
    def ops(self, ops: Sequence[str]) -> None:
        self.change_config(ops=list(ops))

    def change_config(self, **fields: Any) -> None:
        """Put other values of the configuration's fields into force, from the next step on.

        Which steps are sampled changes within the run directory; everything else begins a new one.

        Raises:
            msmon.config.ConfigError: an unknown field, or a value that the configuration file may not have either.

        Example:
            >>> monitor.change_config(step_interval=10, ops=["norm", "max"])  # doctest: +SKIP
        """
        before = (self._waiting or self._config).to_dict()
        changed = configuration.parse_config({**before, **fields}, "change_config")
        self._waiting = attrs.evolve(changed, second_form=self._config.second_form)
        if not self._clock.in_step:
            self._apply_waiting()

    def generate_wgrad_metrics(self) -> tuple[Metrics, Metrics]:
        """Statistics of the current weight gradients, reduced and unreduced, anywhere in the program.

        After a step and before the next backward: those of the last step. During a step: what the optimizer would
        consume now, and, where ranks reduce, what was recorded of the gradients before that. Waits for the device.

        Returns:
            Two dictionaries, `"0:fc1.weight/rank0/grad_reduced"` to `{"norm": 0.12, ...}`.
        """
        session = self._session
        if session is None or not session.config.wg_distribution:
            return {}, {}
        hooks = self._attachment.weight_hooks if self._attachment is not None and self._clock.in_step else None
        args = (hooks, session.collector, session.config, self.rank)
        current = self._asking_gradients.run(current_gradients, *args) if hooks is not None else None
        return current or (self._metrics("grad_reduced"), self._metrics("grad_unreduced"))

    def generate_xy_metrics(self) -> tuple[Metrics, Metrics]:
        """Statistics of the activations and of their gradients, of the step so far; between two steps, and in one that
        is not sampled, those of the last that was. Waits for the device."""
        session = self._session
        if session is not None and self._clock.in_step and self._clock.sampled:
            current = self._asking_activations.run(activations_so_far, session.collector, session.config, self.rank)
            if current is not None:
                return current
        return self._metrics("actv"), self._metrics("actv_grad")

    def close(self) -> None:
        """Write what is pending and take every hook off; harmless when called again."""
        self._forget_given()
        attachment, switch, session = self._attachment, self._switch, self._session
        self._attachment = self._switch = self._period = None
        for name, open_one in (("hooks", attachment), ("start and stop", switch)):
            if open_one is not None:
                Guarded(name).run(open_one.close)
        if session is not None:
            Guarded("results of steps").run(session.finish)

    def begin_again(self) -> None:
        """The ranks have become known. If nothing of the training has run, monitor as if that had been so before."""
        given, session, clock = self._given, self._session, self._clock
        self._forget_given()
        if given is not None and not clock.in_step and clock.step == given[-1]:
            if session is not None:
                session.discard()
            self.close()
            self._begin(*given)

    def _forget_given(self) -> None:
        self._given = None
        self._until_first_step.close()

    def __enter__(self) -> BaseTrainerMon:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # The rest

    def leave_child(self) -> None:
        """This is a forked child, a worker of a data loader for instance: what it does is not the training."""
        attachment, self._attachment = self._attachment, None
        self._forget_given()
        # Not closed: files and start file are those of the parent.
        self._switch = self._session = self._period = None
        if attachment is not None:
            Guarded("hooks").run(attachment.close, flush=False)

    def _monitored(self, config: Config) -> bool:
        return bool(config.monitors) and (not config.module_ranks or self.rank in config.module_ranks)

    def _directory(self, config: Config) -> Path:
        return Path(config.second_form.output_dir) if config.second_form else self._output_dir

    def _new_run_dir(self, config: Config) -> Path | None:
        return make_run_dir(config, self._directory(config), self.rank) if self._monitored(config) else None

    def _new_session(self, config: Config, run_dir: Path | None) -> Session:
        process = TrainingProcess(
            framework=self.framework,
            rank=self.rank,
            world_size=self._find_world_size(),
            output_dir=self._directory(config),
            pipeline=self._group_ranks(self._process_group),
            data=self._group_ranks(self._dp_group),
            tensor=self._group_ranks(self._tp_group),
            micro_steps=self._clock.grad_acc_steps,
            chunks=self._chunks,
        )
        buffer = self._make_buffer(fingerprint="fingerprint" in config.ops)
        return Session(config, process, run_dir, buffer, owner=self, history=self._alert_history)

    def _after_step(self, event: StepEnd) -> None:
        """A step is over: what is in force for the next one?"""
        if self._given is not None:
            self._forget_given()
        if self._switch is not None:
            period = self._switch.after_step(event.step)
            if period is not self._period:
                self._period, self._waiting = period, None
                self._change_session(period.config if period is not None else None)
                if period is not None:
                    self._clock.reschedule(_schedule_of(period.config, period.first_step))
        elif self._clock.exhausted and self._attachment is not None and self._session is not None:
            self._attachment.retire()
            self._session.finish()
        if self._waiting is not None:
            self._apply_waiting()

    def _apply_waiting(self) -> None:
        config, self._waiting = self._waiting, None
        if config is None:
            return
        before, self._config = self._config, config
        collecting = self._period is not None if self._dynamic else not self._clock.exhausted
        if self._session is None or self._attachment is None or not collecting:
            return
        first_step = config.start_step if self._period is None else self._period.first_step
        self._clock.reschedule(_schedule_of(config, first_step), self._clock.taken)
        if config.differences(before) <= _SCHEDULED:
            self._session.reschedule(config)
        else:
            self._change_session(config)

    def _change_session(self, config: Config | None) -> None:
        """Collect by another configuration from now on; None: collect nothing."""
        if self._session is not None:
            self._session.finish()
        try:
            if config is not None and self._monitored(config):
                session = self._new_session(config, self._new_run_dir(config))
                self._attachment.reattach(self._request(session), session.collector, session.coverage)
                session.begin(self._attachment)
                self._session, self._config = session, config
                return
            # When collection starts again the tensors may have changed for good reasons.
            self._alert_history.rules = None
        except Exception as error:
            logger.error("nothing is collected, training goes on: %s: %s", type(error).__name__, error)
        self._clock.reschedule(_NEVER)
        self._attachment.reattach(None, NoObserver(), Coverage())
        self._config = config or self._config

    def _metrics(self, data_type: str) -> Metrics:
        if self._session is None:
            return {}
        self._session.pipeline.drain()
        return self._session.pipeline.metrics(data_type)


def _schedule_of(config: Config, first_step: int) -> Schedule:
    """Which steps a configuration samples, counted from `first_step`."""
    return Schedule(start_step=first_step, step_interval=config.step_interval, collect_times=config.collect_times)


def _begin_again(monitor: weakref.ref[BaseTrainerMon]) -> None:
    alive = monitor()
    if alive is not None:
        Guarded("the ranks").run(alive.begin_again)
