"""Applies the alert rules to a step, and writes down what fired."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import msmon_alert
from msmon.config import AlertConfig
from msmon.tables import tag
from msmon_hooks import StepEnd, TensorRef

logger = logging.getLogger("msmon")

LINES_A_STEP = 10
"""How many alerts of a step are logged; the rest are counted."""


class Alerts:
    """The rules of one rank.

    Args:
        config: the rules, and whether anomalies are written down.
        directory: where ``anomaly.json`` of this rank goes.
        append: continue an existing file (resumed training).
    """

    def __init__(
        self,
        config: AlertConfig,
        *,
        rank: int,
        directory: Path,
        append: bool,
        pp_stage: int = 0,
        group_mates: Sequence[int] = (),
    ) -> None:
        self.count = 0
        """Tensors and steps in which a rule fired."""
        self._rank = rank
        self._pp_stage = pp_stage
        self._group_mates = list(group_mates) or [rank]
        self._monitor = msmon_alert.Monitor(msmon_alert.rules_from_config(config.rule_dicts()))
        self._file = msmon_alert.AnomalyFile(directory, append=append) if config.dump else None

    def observe(
        self, event: StepEnd, refs: Sequence[TensorRef], values: NDArray[np.float64], stats: Sequence[str]
    ) -> None:
        """Apply the rules to rows of a step, in the order of execution.

        Args:
            event: the step.
            refs: one per row of ``values``.
            values: float64 ``[n, len(stats)]``.
            stats: names of the columns.
        """
        if not refs:
            return
        order = sorted(range(len(refs)), key=lambda index: refs[index].call_id)
        rows = [refs[index] for index in order]
        alerts = self._monitor.observe(
            event.step,
            [tag(ref, self._rank) for ref in rows],
            stats,
            values[order],
            no_grad=np.array([ref.is_input and not ref.requires_grad for ref in rows]),
            discrete=np.array([_is_discrete(ref.dtype) for ref in rows]),
        )
        self.count += len(alerts)
        for alert in alerts[:LINES_A_STEP]:
            logger.warning("%s", alert.message)
        if len(alerts) > LINES_A_STEP:
            logger.warning("step %d: %d more anomalies", event.step, len(alerts) - LINES_A_STEP)
        if self._file is not None and alerts:
            self._file.write([self._record(event, rows[alert.index], alert) for alert in alerts])

    def _record(self, event: StepEnd, ref: TensorRef, alert: msmon_alert.Alert) -> dict[str, object]:
        return msmon_alert.anomaly_record(
            alert,
            rank=self._rank,
            micro_step=_micro_step(event, ref),
            pp_stage=self._pp_stage,
            vpp_stage=ref.vpp_stage,
            call_id=ref.call_id,
            group_mates=self._group_mates,
        )

    def close(self) -> None:
        """Nothing more will come."""
        if self._file is not None:
            self._file.close()


def _micro_step(event: StepEnd, ref: TensorRef) -> int:
    """Where a tensor that exists once a step stands among the micro-steps: at the end, but weights at the beginning."""
    if ref.micro_step is not None:
        return ref.micro_step
    return 0 if ref.data_type == "param_origin" else event.last_micro_step


def _is_discrete(dtype: str) -> bool:
    kind = dtype.rpartition(".")[2].lower()
    return kind.startswith(("int", "uint", "bool"))
