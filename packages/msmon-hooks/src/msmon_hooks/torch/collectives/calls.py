"""Which arguments of a collective are sent from this rank, and which are filled on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from attrs import frozen
from torch import distributed

from msmon_hooks import collective_calls
from msmon_hooks.collective_calls import Api, Tensors

_GATHER = Api(sent=("input_tensor",), received=("output_tensor",))
_SCATTER = Api(sent=("input",), received=("output",))

COLLECTIVES: Mapping[str, Api] = {
    "all_reduce": Api(sent=("tensor",), received=("tensor",)),
    "all_reduce_coalesced": Api(sent=("tensors",), received=("tensors",)),
    "reduce": Api(sent=("tensor",), received=("tensor",), receiver="dst"),
    "broadcast": Api(sent=("tensor",), received=("tensor",), sender="src"),
    "all_gather": Api(sent=("tensor",), received=("tensor_list",)),
    "all_gather_into_tensor": _GATHER,
    "all_gather_single": _GATHER,
    "_all_gather_base": _GATHER,
    "all_gather_coalesced": Api(sent=("input_tensor_list",), received=("output_tensor_lists",)),
    "gather": Api(sent=("tensor",), received=("gather_list",), receiver="dst"),
    "scatter": Api(sent=("scatter_list",), received=("tensor",), sender="src"),
    "reduce_scatter": Api(sent=("input_list",), received=("output",)),
    "reduce_scatter_tensor": _SCATTER,
    "reduce_scatter_single": _SCATTER,
    "_reduce_scatter_base": _SCATTER,
    "all_to_all": Api(sent=("input_tensor_list",), received=("output_tensor_list",)),
    "all_to_all_single": _SCATTER,
    "send": Api(sent=("tensor",)),
    "isend": Api(sent=("tensor",)),
    "recv": Api(received=("tensor",)),
    "irecv": Api(received=("tensor",)),
    "batch_isend_irecv": Api(),
    # They move pickled objects: logged, but their bytes have no statistics.
    "barrier": Api(),
    "monitored_barrier": Api(),
    "all_gather_object": Api(),
    "broadcast_object_list": Api(),
    "gather_object": Api(),
    "scatter_object_list": Api(),
    "send_object_list": Api(),
    "recv_object_list": Api(),
}
"""Functions of `torch.distributed`."""

_SELF = Api(sent=("self",), returns=True)

FUNCTIONAL: Mapping[str, Api] = {
    "all_reduce": _SELF,
    "all_reduce_coalesced": _SELF,
    "broadcast": Api(sent=("self",), sender="src", returns=True),
    "all_gather_tensor": _SELF,
    "all_gather_tensor_autograd": _SELF,
    "all_gather_single": _SELF,
    "all_gather_single_autograd": _SELF,
    "all_gather_into_tensor_coalesced": _SELF,
    "all_gather_single_coalesced": _SELF,
    "reduce_scatter_tensor": _SELF,
    "reduce_scatter_tensor_autograd": _SELF,
    "reduce_scatter_single": _SELF,
    "reduce_scatter_single_autograd": _SELF,
    "reduce_scatter_tensor_coalesced": Api(sent=("inputs",), returns=True),
    "reduce_scatter_single_coalesced": Api(sent=("inputs",), returns=True),
    "all_to_all_single": _SELF,
    "all_to_all_single_autograd": _SELF,
    "permute_tensor": _SELF,
}
"""Functions of `torch.distributed._functional_collectives`; DTensor calls them."""


@frozen(kw_only=True)
class CollectiveCall(collective_calls.CollectiveCall):
    """See `msmon_hooks.collective_calls.CollectiveCall`. `group_src` and `group_dst` name ranks within the group."""

    @staticmethod
    def is_tensor(value: object) -> bool:
        """Whether an argument is a tensor."""
        return isinstance(value, torch.Tensor)

    @property
    def group(self) -> Any:
        """The process group, None for the default one; a mesh, a name or a list of ranks in functional collectives."""
        if self.name == "batch_isend_irecv":
            return self.arguments["p2p_op_list"][0].group if self.arguments["p2p_op_list"] else None
        return self.arguments.get("group")

    @property
    def reduction(self) -> str:
        """How values are reduced: `sum`, `avg` and so on; "" where nothing is."""
        return str(self.arguments.get("op") or self.arguments.get("reduceOp") or "").rpartition(".")[2].lower()

    @property
    def takes_part(self) -> bool:
        """False on ranks outside the group: torch does nothing there."""
        return distributed.is_initialized() and _group_rank(self.group) != -1

    def sent(self) -> Tensors:
        """The tensors that go out from this rank."""
        if self.name == "batch_isend_irecv":
            tensors = [op.tensor for op in self.arguments["p2p_op_list"] if op.op.__name__ == "isend"]
            return {0: tensors} if tensors else {}
        return super().sent()

    def arrivals(self, returned: Any) -> Iterator[tuple[Any, Tensors]]:
        """What fills tensors, and which: a piece of work, the result of a functional collective, or None.

        Args:
            returned: what the function returned.
        """
        if self.name == "batch_isend_irecv":
            yield from self._point_to_point_arrivals(returned)
        elif self.api.returns:
            for tensor in self.tensors_in(returned):
                yield tensor, {0: [getattr(tensor, "elem", tensor)]}
        elif received := self.received():
            yield returned, received

    def all_tensors(self) -> Iterator[torch.Tensor]:
        """Everything that is sent or filled on this rank, for descriptions."""
        yield from super().all_tensors()
        for op in self.arguments.get("p2p_op_list", ()):
            yield op.tensor

    def _point_to_point_arrivals(self, works: list[Any]) -> Iterator[tuple[Any, Tensors]]:
        ops = self.arguments["p2p_op_list"]
        if len(works) == len(ops):
            for op, work in zip(ops, works, strict=True):
                if op.op.__name__ == "irecv":
                    yield work, {0: [op.tensor]}
        else:
            # One piece of work for the whole batch.
            yield works, {0: [op.tensor for op in ops if op.op.__name__ == "irecv"]}

    def is_root(self, parameter: str) -> bool:
        """Whether this rank is the one that a parameter names; also where there is no such parameter."""
        if not parameter:
            return True
        in_group = self.arguments.get(f"group_{parameter}")
        if in_group is not None:
            return bool(_group_rank(self.group) == in_group)
        return bool(distributed.get_rank() == (self.arguments.get(parameter) or 0))


def _group_rank(group: Any) -> int | None:
    """This rank within a group, -1 outside of it; None where the group is given by something else."""
    if group is None or isinstance(group, distributed.ProcessGroup):
        return int(distributed.get_rank(group))
    # What torch passes on ranks that are in no group that they made.
    return -1 if group is getattr(distributed.GroupMember, "NON_GROUP_MEMBER", object()) else None


def ranks_of_group(group: Any) -> list[int]:
    """The ranks of a group, None being all; none where it is given by something else."""
    if group is None or isinstance(group, distributed.ProcessGroup):
        return list(distributed.get_process_group_ranks(group if group is not None else distributed.group.WORLD))
    return []


def describe_group(group: Any) -> str:
    """Ranks and backend of a group, for messages."""
    ranks = ranks_of_group(group)
    if ranks:
        return f"ranks {ranks} ({distributed.get_backend(group)})"
    return str(group)
