"""Applies the alert rules to a step, and writes down what fired."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, frozen
from numpy.typing import NDArray

import msmon_alert
from msmon.config import AlertConfig
from msmon_hooks import DATA_TYPES, StepEnd, TensorRef
from msmon_io import tag

logger = logging.getLogger("msmon")

SECONDS_BETWEEN_SAVES = 60.0
"""A killed run can be resumed with histories that are at most so old."""
LINES_A_STEP = 10
"""How many alerts of a step are logged; the rest are counted."""


@frozen(kw_only=True, eq=False)
class _Rows:
    """Rows of one step in the order of execution, as the rules want to know them."""

    given: Sequence[TensorRef]
    order: NDArray[np.intp]
    refs: list[TensorRef]
    tags: list[str]
    no_grad: NDArray[np.bool_]
    discrete: NDArray[np.bool_]

    @classmethod
    def of(cls, given: Sequence[TensorRef], rank: int) -> _Rows:
        order = np.argsort([ref.call_id for ref in given], kind="stable")
        refs = [given[index] for index in order.tolist()]
        return cls(
            given=given,
            order=order,
            refs=refs,
            tags=[tag(ref.vpp_stage, ref.name, ref.micro_step, rank, ref.data_type) for ref in refs],
            no_grad=np.array([ref.is_input and not ref.requires_grad for ref in refs]),
            discrete=np.array([_is_discrete(ref.dtype) for ref in refs]),
        )


@define
class AlertHistory:
    """What a training's alerts go on with when another configuration comes into force."""

    is_begun: bool = False
    """`anomaly.json` holds records of this training, to which later ones are added."""
    rules: dict[str, Any] | None = None
    """The histories of the rules, `msmon_alert.Monitor.state_dict()`."""


class Alerts:
    """The rules of one rank.

    Args:
        config: the rules, and whether anomalies are written down.
        directory: where `anomaly.json` of this rank goes.
        history: what alerts of this training under another configuration have left; is kept up to date.
        append: continue the file, and the histories, of another process (resumed training).
        state_file: where the rules' histories are kept; they are restored from it with `append`.
        on_failure: called with the name of a rule that raised and is off from then on, and with the reason.
    """

    def __init__(
        self,
        config: AlertConfig,
        *,
        rank: int,
        directory: Path,
        history: AlertHistory,
        append: bool,
        state_file: Path | None = None,
        pp_stage: int = 0,
        group_mates: Sequence[int] = (),
        on_failure: Callable[[str, str], object] | None = None,
    ) -> None:
        self.count = 0
        """Tensors and steps in which a rule fired."""
        self._rank = rank
        self._rows: dict[tuple[str, ...], _Rows] = {}
        self._pp_stage = pp_stage
        self._group_mates = list(group_mates) or [rank]
        rules = msmon_alert.rules_from_config(config.rule_dicts())
        self._monitor = msmon_alert.Monitor(rules, on_failure=on_failure)
        self._file: msmon_alert.AnomalyFile | None = None
        self._unwritten = 0
        self._state_file = state_file
        self._saved_at = time.monotonic()
        self._history = history
        if config.dump:
            self._open(directory, append or history.is_begun)
        state, history.rules = history.rules, None
        if state is not None:
            self._monitor.load_state_dict(state)
        elif append and state_file is not None and state_file.exists():
            self._restore(state_file)

    def _open(self, directory: Path, append: bool) -> None:
        try:
            self._file = msmon_alert.AnomalyFile(directory, append=append)
            self._history.is_begun = True
        except (OSError, ValueError) as error:
            logger.error("anomalies are logged, but not written to %s: %s", directory, error)

    def _restore(self, state_file: Path) -> None:
        try:
            self._monitor.load_state_dict(msmon_alert.load_state(state_file))
        except (OSError, ValueError) as error:
            logger.error("the rules begin without history, %s cannot be used: %s", state_file, error)

    def observe(
        self, event: StepEnd, refs: Sequence[TensorRef], values: NDArray[np.float64], stats: Sequence[str]
    ) -> None:
        """Apply the rules to rows of a step, in the order of execution.

        Args:
            event: the step.
            refs: one per row of `values`; the same object as in the step before where nothing else is in it.
            values: float64 `[n, len(stats)]`.
            stats: names of the columns.
        """
        if not refs:
            return
        key = tuple(stats)
        rows = self._rows.get(key)
        if rows is None or rows.given is not refs:
            rows = self._rows[key] = _Rows.of(refs, self._rank)
        alerts = self._monitor.observe(
            event.step, rows.tags, stats, values[rows.order], no_grad=rows.no_grad, discrete=rows.discrete
        )
        self.count += len(alerts)
        for alert in alerts[:LINES_A_STEP]:
            logger.warning("%s", alert.message)
        if len(alerts) > LINES_A_STEP:
            logger.warning("step %d: %d more anomalies", event.step, len(alerts) - LINES_A_STEP)
        if self._file is not None and alerts:
            self._write([self._record(event, rows.refs[alert.index], alert) for alert in alerts])
        if time.monotonic() - self._saved_at > SECONDS_BETWEEN_SAVES:
            self._save()

    def _write(self, records: list[dict[str, object]]) -> None:
        assert self._file is not None
        try:
            self._file.write(records)
        except OSError as error:
            if not self._unwritten:
                logger.error("%s: anomalies are not written, training goes on: %s", self._file.path, error)
            self._unwritten += len(records)

    def _save(self) -> None:
        self._saved_at = time.monotonic()
        if self._state_file is None:
            return
        try:
            msmon_alert.save_state(self._monitor.state_dict(), self._state_file)
        except OSError as error:
            logger.error("the rules' histories are not saved for a resumed run: %s", error)
            self._state_file = None

    def _record(self, event: StepEnd, ref: TensorRef, alert: msmon_alert.Alert) -> dict[str, object]:
        return msmon_alert.anomaly_record(
            alert,
            rank=self._rank,
            phase=DATA_TYPES[ref.data_type].phase,
            micro_step=_micro_step(event, ref),
            pp_stage=self._pp_stage,
            vpp_stage=ref.vpp_stage,
            call_id=ref.call_id,
            group_mates=self._group_mates,
        )

    def close(self) -> None:
        """Nothing more will come: save the histories and report what could not be written."""
        self._save()
        self._history.rules = self._monitor.state_dict()
        if self._file is not None:
            self._file.close()
        if self._unwritten:
            logger.error("%d anomalies could not be written", self._unwritten)


def _micro_step(event: StepEnd, ref: TensorRef) -> int:
    """Where a tensor that exists once a step stands among the micro-steps: at the end, but weights at the beginning."""
    if ref.micro_step is not None:
        return ref.micro_step
    return 0 if DATA_TYPES[ref.data_type].phase == "weights" else event.last_micro_step


def _is_discrete(dtype: str) -> bool:
    kind = dtype.rpartition(".")[2].lower()
    return kind.startswith(("int", "uint", "bool"))
