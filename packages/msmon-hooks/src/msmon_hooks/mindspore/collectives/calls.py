"""Which arguments of a collective are sent from this rank, and which are filled on it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import mindspore
from attrs import field, frozen
from mindspore import communication


@frozen(kw_only=True)
class Api:
    """One function."""

    sent: tuple[str, ...] = ()
    """Parameters whose values go out."""
    received: tuple[str, ...] = ()
    """Parameters that hold the result afterwards; before the call they may hold anything."""
    sender: str = ""
    """Parameter that names the only rank that sends."""
    receiver: str = ""
    """Parameter that names the only rank on which there is a result."""


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
"""Functions of ``mindspore.mint.distributed``, which write into tensors that they are given."""

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
"""Functions of ``mindspore.ops.communication`` (before 2.9: ``communication.comm_func``), which return the result."""

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
"""Operators of ``mindspore.ops``."""


@frozen(kw_only=True)
class Call:
    """One call on this rank: its arguments and their positions."""

    name: str
    api: Api
    arguments: Mapping[str, Any]
    positions: Mapping[str, int] = field(factory=dict)

    @classmethod
    def of(cls, name: str, api: Api, signature: inspect.Signature, args: Any, kwargs: Any) -> Call | None:
        """None where the arguments do not fit; MindSpore will say so."""
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return None
        bound.apply_defaults()
        positions = {parameter: index for index, parameter in enumerate(bound.arguments)}
        return cls(name=name, api=api, arguments=bound.arguments, positions=positions)

    @property
    def group(self) -> str:
        """The name of the group."""
        return str(self.arguments.get("group") or communication.GlobalComm.WORLD_COMM_GROUP)

    def sent(self) -> dict[int, list[Any]]:
        """The tensors that go out from this rank."""
        return self._of(self.api.sent) if self._is_root(self.api.sender) else {}

    def received(self) -> dict[int, list[Any]]:
        """The tensors that are filled on this rank."""
        return self._of(self.api.received) if self._is_root(self.api.receiver) else {}

    def all_tensors(self) -> Iterator[Any]:
        """Everything that is sent or filled, for descriptions."""
        for value in self.arguments.values():
            yield from tensors_in(value)

    def _of(self, parameters: tuple[str, ...]) -> dict[int, list[Any]]:
        found = {self.positions[name]: list(tensors_in(self.arguments.get(name))) for name in parameters}
        return {position: tensors for position, tensors in found.items() if tensors}

    def _is_root(self, parameter: str) -> bool:
        return not parameter or int(communication.get_rank()) == (self.arguments.get(parameter) or 0)


def tensors_in(value: Any) -> Iterator[Any]:
    """The tensors of an argument: itself, or those in (nested) lists."""
    if isinstance(value, mindspore.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
