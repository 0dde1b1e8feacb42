"""One anomaly as it lies in `anomaly.json`, and its place in the order of what happened."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msmon_alert.alert import Alert

Record = dict[str, Any]
"""The object of one anomaly. Always there: rank, step, micro_step, pp_stage, vpp_stage, call_id, tag_name, message,
group_mates. Files of the older tool have just these; newer ones also rule, stats, value, history."""

_PHASES = {
    "param_origin": 0,
    "actv": 1,
    "input": 1,
    "output": 1,
    "attention_hook": 1,
    "actv_grad": 2,
    "input_grad": 2,
    "output_grad": 2,
    "acc_grad": 2,
    "pre_grad": 2,
    "post_grad": 2,
}
_FORWARD = 1
_BACKWARD = 2
_OPTIMIZER = 3
PHASE_NAMES = ("weights", "forward", "backward", "optimizer")


def anomaly_record(
    alert: Alert,
    *,
    rank: int,
    call_id: int,
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


def data_type(tag: str) -> str:
    """The last part of a tag.

    >>> data_type("0:fc1.weight/rank0/grad_reduced")
    'grad_reduced'
    """
    return tag.rpartition("/")[2]


def phase(tag: str) -> int:
    """Part of the step to which a tag belongs, an index of `PHASE_NAMES`; unknown data types come last."""
    kind = data_type(tag)
    found = _PHASES.get(kind)
    if found is not None:
        return found
    return _BACKWARD if kind.startswith("grad_") else _OPTIMIZER


def order_key(record: Mapping[str, Any]) -> tuple[int, int | None, tuple[int, ...]]:
    """Step; micro-step, or None for the last one of the step; and the order within these.

    Within a micro-step: phase, virtual stage, pipeline stage, call id, rank. Stages count up in forward, down
    otherwise.

    Raises:
        ValueError: a field is missing or of the wrong type, with its name and value.
    """
    tag = record.get("tag_name")
    if type(tag) is not str:
        raise ValueError(f"tag_name is {tag!r}, not a string")
    step, call_id, rank, pp_stage, vpp_stage = (
        _integer(record, name) for name in ("step", "call_id", "rank", "pp_stage", "vpp_stage")
    )
    part = phase(tag)
    micro_step: int | None = 0
    if part != 0:
        micro_step = None if record.get("micro_step") is None else _integer(record, "micro_step")
    sign = 1 if part == _FORWARD else -1
    return step, micro_step, (part, sign * vpp_stage, sign * pp_stage, call_id, rank)


def _integer(record: Mapping[str, Any], name: str) -> int:
    value = record.get(name)
    if type(value) is not int:
        raise ValueError(f"{name} is {value!r}, not an integer")
    return value
