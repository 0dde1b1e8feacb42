"""Descriptions of tensors that are the same in every step, made once."""

from __future__ import annotations

from msmon_hooks.events import Shard, TensorRef


class RefCache:
    """Makes `TensorRef` objects, and hands out the one of the step before where nothing is different.

    Steps of a training are alike: the same tensors in the same order. One reference is kept per row of a step.

    Example:
        >>> refs = RefCache()
        >>> first = refs.ref("actv", "fc1.output", 0, 0, 1, (1,), (8, 4), "torch.float32", False, True)
        >>> refs.ref("actv", "fc1.output", 0, 0, 1, (1,), (8, 4), "torch.float32", False, True) is first
        True
    """

    def __init__(self) -> None:
        self._refs: dict[tuple[str, str, int, int | None], TensorRef] = {}

    def ref(
        self,
        data_type: str,
        name: str,
        vpp_stage: int,
        micro_step: int | None,
        call_id: int,
        order: tuple[int, ...],
        shape: tuple[int, ...],
        dtype: str,
        is_input: bool = False,
        requires_grad: bool = True,
        shard: Shard | None = None,
    ) -> TensorRef:
        """The description with these fields."""
        key = (data_type, name, vpp_stage, micro_step)
        ref = self._refs.get(key)
        if (
            ref is None
            or ref.call_id != call_id
            or ref.order != order
            or ref.shape != shape
            or ref.dtype != dtype
            or ref.requires_grad != requires_grad
            or ref.is_input != is_input
            or ref.shard is not shard
        ):
            ref = self._refs[key] = TensorRef(
                data_type=data_type,
                name=name,
                vpp_stage=vpp_stage,
                micro_step=micro_step,
                call_id=call_id,
                order=order,
                shape=tuple(shape),
                dtype=dtype,
                is_input=is_input,
                requires_grad=requires_grad,
                shard=shard,
            )
        return ref
