"""The kinds of tensor that are monitored, in the order of a training step, and what is true of each.

The one place for these facts: whoever needs one looks here, or is told by `msmon`.
"""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import in_

PHASES = ("weights", "forward", "backward", "optimizer")
"""The parts of a training step, in their order."""


@frozen(kw_only=True)
class DataType:
    """One kind of tensor. Its name begins the names of output files."""

    name: str
    phase: str = field(validator=in_(PHASES))
    """When in a step its tensors are there; one of `PHASES`."""
    in_micro_steps: bool = False
    """Whether each micro-step may have its own row."""
    of_parameters: bool = False
    """Whether its rows are parameters, of which a rank may hold only a part."""
    columns: tuple[str, ...] = ()
    """Its own columns, in the order in which the numbers are computed; empty: the statistics of tensors."""


DATA_TYPES = {
    one.name: one
    for one in (
        DataType(name="param_origin", phase="weights", of_parameters=True),
        DataType(name="actv", phase="forward", in_micro_steps=True),
        DataType(name="attention_hook", phase="forward", in_micro_steps=True, columns=("entropy", "softmax_max")),
        DataType(
            name="moe_router_logit_hook", phase="forward", in_micro_steps=True, columns=("per_token_expert_entropy",)
        ),
        DataType(name="actv_grad", phase="backward", in_micro_steps=True),
        DataType(name="grad_unreduced", phase="backward", in_micro_steps=True, of_parameters=True),
        DataType(name="grad_reduced", phase="backward", of_parameters=True),
        DataType(name="exp_avg", phase="optimizer", of_parameters=True),
        DataType(name="exp_avg_sq", phase="optimizer", of_parameters=True),
        DataType(name="state", phase="optimizer"),
        DataType(name="linear_hook", phase="optimizer", columns=("sr", "kernel_norm")),
        DataType(name="moe_router_weight_hook", phase="optimizer", columns=("router_weight_similarity",)),
        DataType(name="other", phase="optimizer"),
        DataType(name="param_updated", phase="optimizer", of_parameters=True),
    )
}
"""Name to data type, in the order of a training step.

Example:
    >>> [one.name for one in DATA_TYPES.values() if one.phase == "forward"]
    ['actv', 'attention_hook', 'moe_router_logit_hook']
"""

ADAM_HISTOGRAM = "adam_histogram"
"""Histograms of Adam's update and ratio. Their rows hold counts, and become pictures instead of tables."""
