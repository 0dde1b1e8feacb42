"""One configuration in force: where its results go and who receives its tensors."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msmon.alerts import AlertHistory, Alerts
from msmon.collector import Buffer, Collector
from msmon.config import Config
from msmon.first_step import write_stacks, write_structure
from msmon.outputs import TrainingProcess, make_writers
from msmon.pipeline import Pipeline
from msmon.requests import make_request
from msmon.run_info import run_info
from msmon_hooks import Coverage, Request

logger = logging.getLogger("msmon")


class Session:
    """From the moment a configuration is in force until another one is, or the monitor is closed.

    Args:
        config: the configuration.
        process: this process.
        run_dir: where files go, or None.
        buffer: of the framework's statistics.
        owner: is kept alive by the hooks; when it is gone, the session finishes.
        history: what the alerts of sessions before have left.
    """

    def __init__(
        self,
        config: Config,
        process: TrainingProcess,
        run_dir: Path | None,
        buffer: Buffer,
        owner: object,
        history: AlertHistory,
    ) -> None:
        self.config = config
        self.run_dir = run_dir
        self.coverage = Coverage()
        self._process = process
        info = run_info(
            config,
            framework=process.framework,
            rank=process.rank,
            world_size=process.world_size,
            grad_acc_steps=process.micro_steps,
        )
        info |= {"pp_stage": process.pp_stage, "parallel": process.parallel()}
        self.pipeline = Pipeline(
            rank=process.rank,
            config=config,
            writers=make_writers(config, run_dir, process, self.coverage.switched_off),
            alerts=self._make_alerts(history),
            coverage=self.coverage,
            run_dir=run_dir,
            run_info=info,
        )
        self.collector = Collector(buffer, config.eps, self.pipeline.submit, self.coverage, owner=owner)
        # Not a method of the session: what finishes when the owner is gone must not lead to the owner.
        self._finalizer = weakref.finalize(owner, self.pipeline.finish)
        self.finish: Callable[[], Any] = self._finalizer

    def request(self, *, main_grad: bool, process_groups: Any) -> Request:
        """What the hooks are to read."""
        return make_request(
            self.config,
            main_grad=main_grad,
            process_groups=process_groups,
            on_structure=self._on_structure,
            on_stacks=self._on_stacks,
            on_parameters=self._on_parameters,
            on_inside=self._on_inside,
            on_collectives=self._on_collectives,
        )

    def begin(self, attachment: Any) -> None:
        """The hooks are in place: write what is known before the first step."""
        self.pipeline.run_info["engine"] = attachment.engine
        self.pipeline.run_info["tensors"] = self.pipeline.info_part.run(attachment.describe) or []
        self.pipeline.begin()

    def discard(self) -> None:
        """Nothing was recorded, and another session takes its place: leave no trace."""
        self._finalizer.detach()
        self.pipeline.discard()

    def reschedule(self, config: Config) -> None:
        """Other steps are sampled from now on; files and rules go on."""
        self.config = config
        self.pipeline.run_info["config"] = config.to_dict()

    def _make_alerts(self, history: AlertHistory) -> Alerts | None:
        config, process = self.config, self._process
        if not config.alert.rules:
            return None
        return Alerts(
            config.alert,
            rank=process.rank,
            directory=process.output_dir / "anomaly_detected" / f"rank{process.rank}",
            history=history,
            append=bool(config.append_output),
            state_file=None if self.run_dir is None else self.run_dir / "alert_state.npz",
            pp_stage=process.pp_stage,
            group_mates=process.pipeline,
            on_failure=self.coverage.switched_off,
        )

    def _on_parameters(self, engine: str, tensors: list[dict[str, Any]]) -> None:
        self.pipeline.run_info["engine"] = engine
        # Those that are gone have rows too.
        present = {(entry["vpp_stage"], entry["name"]) for entry in tensors}
        gone = [one for one in self.pipeline.run_info["tensors"] if (one["vpp_stage"], one["name"]) not in present]
        self.pipeline.run_info["tensors"] = [*tensors, *gone]
        self.pipeline.begin()

    def _on_inside(self, how: dict[str, dict[str, list[str]]]) -> None:
        self.pipeline.run_info["inside_compiled"] = how
        self.pipeline.begin()

    def _on_collectives(self, used: dict[str, list[dict[str, str]]]) -> None:
        self.pipeline.run_info["collectives"] = used
        self.pipeline.begin()

    def _on_structure(self, document: dict[str, Any]) -> None:
        write_structure(self._process.output_dir, self._process.rank, document)

    def _on_stacks(self, stacks: dict[str, str]) -> None:
        if self.run_dir is not None:
            self.pipeline.run_later(write_stacks, self.run_dir, stacks)
