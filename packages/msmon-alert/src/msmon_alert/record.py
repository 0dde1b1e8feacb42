"""One anomaly as it lies in `anomaly.json`, and its place in the order of what happened."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msmon_alert.alert import Alert
from msmon_alert.tag import split_tag

Record = dict[str, Any]
"""The object of one anomaly. Always there: rank, step, micro_step, pp_stage, vpp_stage, call_id, tag_name, message,
group_mates. Files of the older tool have just these; newer ones also phase, rule, stats, value, history."""

_PHASES = {
    "param_origin": 0,
    "actv": 1,
    "input": 1,
    "output": 1,
    "actv_grad": 2,
    "input_grad": 2,
    "output_grad": 2,
    "acc_grad": 2,
    "pre_grad": 2,
    "post_grad": 2,
}
"""Of records that do not say their phase, those of the older tool: by data type."""
_FORWARD = 1
_BACKWARD = 2
_OPTIMIZER = 3
PHASE_NAMES = ("weights", "forward", "backward", "optimizer")
"""The parts of a training step, in their order."""


def anomaly_record(
    alert: Alert,
    *,
    rank: int,
    call_id: int,
    phase: str | None = None,
    micro_step: int | None = None,
    pp_stage: int = 0,
    vpp_stage: int = 0,
    group_mates: Sequence[int] = (),
) -> Record:
    """The `anomaly.json` object of an alert.

    Args:
        alert: what fired.
        rank: rank of this process.
        call_id: place of the tensor in the step on this rank, counting up.
        phase: when in the step the tensor was there, one of `PHASE_NAMES`; None: what the tag's data type says.
        micro_step: None where the tensor belongs to the whole step.
        pp_stage: pipeline stage.
        vpp_stage: virtual pipeline stage.
        group_mates: ranks of the pipeline group.

    >>> from msmon_alert import Fired
    >>> fired = Fired(stat="norm", rule="AnomalyNan", value=float("inf"), history=None)
    >>> alert = Alert(tag="0:fc.weight/rank0/exp_avg", step=3, index=0, fired=(fired,))
    >>> record = anomaly_record(alert, rank=0, call_id=7)
    >>> record["tag_name"], record["call_id"], record["rule"], record["value"]
    ('0:fc.weight/rank0/exp_avg', 7, 'AnomalyNan', 'inf')
    """
    return {
        "rank": rank,
        "step": alert.step,
        "phase": PHASE_NAMES[_phase_of_tag(alert.tag)] if phase is None else phase,
        "micro_step": micro_step,
        "pp_stage": pp_stage,
        "vpp_stage": vpp_stage,
        "call_id": call_id,
        "tag_name": alert.tag,
        "message": alert.message,
        "group_mates": list(group_mates),
        "rule": alert.rule,
        "stats": {
            fired.stat: {"rule": fired.rule, "value": _json_number(fired.value), "history": _json_number(fired.history)}
            for fired in alert.fired
        },
        "value": _json_number(alert.value),
        "history": _json_number(alert.history),
    }


def record_key(record: Mapping[str, Any]) -> str:
    """Key of a record in its file: `<tag>_step_<step>_call_<call id>`."""
    return f"{record['tag_name']}_step_{record['step']}_call_{record['call_id']}"


def _json_number(value: float | None) -> float | str | None:
    """JSON has no nan and no infinity; they become the strings "nan", "inf", "-inf"."""
    return value if value is None or math.isfinite(value) else str(value)


def phase(record: Mapping[str, Any]) -> int:
    """Part of the step to which a record belongs, an index of `PHASE_NAMES`.

    >>> phase({"tag_name": "0:fc1.weight/rank0/routing", "phase": "forward"}), phase({"tag_name": "0:a/rank0/pre_grad"})
    (1, 2)
    """
    said = record.get("phase")
    return PHASE_NAMES.index(said) if said in PHASE_NAMES else _phase_of_tag(record["tag_name"])


def _phase_of_tag(tag: str) -> int:
    """Data types that nobody knows come last."""
    kind = split_tag(tag)[1]
    found = _PHASES.get(kind)
    if found is not None:
        return found
    return _BACKWARD if kind.startswith("grad_") else _OPTIMIZER


def place_in_micro_step(phase: int, *, vpp_stage: int, pp_stage: int, call_id: int, rank: int) -> tuple[int, ...]:
    """Sorts what happened within a micro-step: stages count up in forward, down otherwise."""
    sign = 1 if phase == _FORWARD else -1
    return phase, sign * vpp_stage, sign * pp_stage, call_id, rank


def order_key(record: Mapping[str, Any]) -> tuple[int, int | None, tuple[int, ...]]:
    """Step; micro-step, or None for the last one of the step; and `place_in_micro_step`.

    Raises:
        ValueError: a field is missing or of the wrong type, with its name and value.
    """
    if type(record.get("tag_name")) is not str:
        raise ValueError(f"tag_name is {record.get('tag_name')!r}, not a string")
    step, call_id, rank, pp_stage, vpp_stage = (
        _integer(record, name) for name in ("step", "call_id", "rank", "pp_stage", "vpp_stage")
    )
    part = phase(record)
    micro_step: int | None = 0
    if part != 0:
        micro_step = None if record.get("micro_step") is None else _integer(record, "micro_step")
    place = place_in_micro_step(part, vpp_stage=vpp_stage, pp_stage=pp_stage, call_id=call_id, rank=rank)
    return step, micro_step, place


def _integer(record: Mapping[str, Any], name: str) -> int:
    value = record.get(name)
    if type(value) is not int:
        raise ValueError(f"{name} is {value!r}, not an integer")
    return value
