"""How a row is called where there are no columns for its stage, rank and data type: in the API, TensorBoard, alerts."""

from __future__ import annotations


def tag(vpp_stage: int, name: str, micro_step: int | None, rank: int, data_type: str) -> str:
    """`{vpp_stage}:{name}[:{micro_step}]/rank{rank}/{data_type}`.

    >>> tag(0, "fc1.input", 2, 1, "actv"), tag(0, "fc1.weight", None, 1, "grad_reduced")
    ('0:fc1.input:2/rank1/actv', '0:fc1.weight/rank1/grad_reduced')
    """
    micro = "" if micro_step is None else f":{micro_step}"
    return f"{vpp_stage}:{name}{micro}/rank{rank}/{data_type}"
