"""Which arguments of a collective are sent from this rank, and which are filled on it."""

from __future__ import annotations

from collections.abc import Mapping

import mindspore
from attrs import frozen
from mindspore import communication

from msmon_hooks import collective_calls
from msmon_hooks.collective_calls import Api

_INTO = Api(sent=("input_tensor",), received=("output_tensor",))
_UNEVEN = Api(sent=("input",), received=("output",))

IN_PLACE: Mapping[str, Api] = {
    "all_reduce": Api(sent=("tensor",), received=("tensor",)),
    "reduce": Api(sent=("tensor",), received=("tensor",), receiver="dst"),
    "broadcast": Api(sent=("tensor",), received=("tensor",), sender="src"),
    "all_gather": Api(sent=("tensor",), received=("tensor_list",)),
    "all_gather_into_tensor": _INTO,
    "all_gather_into_tensor_uneven": _UNEVEN,
    "gather": Api(sent=("tensor",), received=("gather_list",), receiver="dst"),
    "gather_into_tensor": Api(sent=("input_tensor",), received=("output_tensor",), receiver="dst"),
    "scatter": Api(sent=("scatter_list",), received=("tensor",), sender="src"),
    "scatter_tensor": Api(sent=("input_tensor",), received=("output_tensor",), sender="src"),
    "reduce_scatter": Api(sent=("input_list",), received=("output",)),
    "reduce_scatter_tensor": _UNEVEN,
    "reduce_scatter_tensor_uneven": _UNEVEN,
    "all_to_all": Api(sent=("input_tensor_list",), received=("output_tensor_list",)),
    "all_to_all_single": _UNEVEN,
    "send": Api(sent=("tensor",)),
    "isend": Api(sent=("tensor",)),
    "recv": Api(received=("tensor",)),
    "irecv": Api(received=("tensor",)),
    "barrier": Api(),
}
"""Functions of `mindspore.mint.distributed`, which write into tensors that they are given."""

RETURNING = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather_into_tensor",
    "gather_into_tensor",
    "scatter_tensor",
    "reduce_scatter_tensor",
    "send",
    "isend",
    "recv",
    "irecv",
    "barrier",
)
"""Functions of `mindspore.ops.communication` (before 2.9: `communication.comm_func`), which return the result."""

OPERATORS = (
    "AllReduce",
    "AllGather",
    "ReduceScatter",
    "Reduce",
    "Broadcast",
    "AlltoAll",
    "CollectiveScatter",
    "CollectiveGather",
    "Send",
    "Receive",
)
"""Operators of `mindspore.ops`."""


@frozen(kw_only=True)
class CollectiveCall(collective_calls.CollectiveCall):
    """See `msmon_hooks.collective_calls.CollectiveCall`."""

    @staticmethod
    def is_tensor(value: object) -> bool:
        """Whether an argument is a tensor."""
        return isinstance(value, mindspore.Tensor)

    @property
    def group(self) -> str:
        """The name of the group."""
        return str(self.arguments.get("group") or communication.GlobalComm.WORLD_COMM_GROUP)

    def is_root(self, parameter: str) -> bool:
        """Whether this rank is the one that a parameter names; also where there is no such parameter."""
        return not parameter or int(communication.get_rank()) == (self.arguments.get(parameter) or 0)
