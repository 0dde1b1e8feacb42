"""Reading the values of a torch tensor as runs of plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from attrs import frozen

from msmon_stats.layout import layout_of
from msmon_stats.torch.wrapped import failure, inside

# A piece that has to be converted or gathered is copied into some hundred KiB, whatever the size of the tensor; for a
# tensor of many millions of values into a thousandth of it, so that an accelerator gets work of a useful size.
PIECE = 1 << 16

_FLOATS = ("float64", "float32", "float16", "bfloat16")
_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
KERNEL_DTYPES: dict[torch.dtype, str] = {
    getattr(torch, name): name for name in _FLOATS + _INTEGERS if hasattr(torch, name)
} | {torch.bool: "uint8"}
"""The dtypes that kernels read as they are stored, and the kernels' names for them."""

_FLOAT8 = frozenset(
    getattr(torch, name)
    for name in dir(torch)
    if name.startswith("float8_") and isinstance(getattr(torch, name), torch.dtype)
)
_COMPLEX = frozenset((torch.complex32, torch.complex64, torch.complex128))
SPARSE = frozenset((torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc))
# Memory that was freed (a sharded parameter outside its use) shows as an offset from address 0.
_LOWEST_ADDRESS = 1 << 40
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_strided = torch.strided


@frozen(kw_only=True)
class Reading:
    """The stored values of a tensor as contiguous 1-D pieces of a dtype in `KERNEL_DTYPES`."""

    pieces: Iterator[torch.Tensor]
    times: int
    """How often each stored value occurs (expanded axes)."""
    implicit: int
    """Zeros beside them that are not stored (sparse)."""


def plain(tensor: Any) -> str | None:
    """The kernels' name for the dtype of a tensor that is one contiguous run of values, None for any other.

    Asked for every tensor of a step, so no operator of torch is called.
    """
    if (
        type(tensor) in _PLAIN
        and tensor.layout is _strided
        and not tensor.is_nested
        and tensor.is_contiguous()
        and not tensor.is_neg()
    ):
        return KERNEL_DTYPES.get(tensor.dtype)
    return None


def address_of(tensor: torch.Tensor) -> int | None:
    """Where the values of a plain tensor begin; None if it has no memory of its own."""
    try:
        address: int = tensor.data_ptr()
    except RuntimeError:
        return None
    if address < _LOWEST_ADDRESS and tensor.numel() > 0 and (tensor.is_meta or tensor.untyped_storage().nbytes() == 0):
        return None
    return address


def unsupported_reason(tensor: Any) -> str | None:
    """See `msmon_stats.unsupported_reason`."""
    tensor = local(tensor)
    reason = _unsupported(tensor)
    return reason and (failure(tensor) or reason)


def _unsupported(tensor: torch.Tensor) -> str | None:
    if tensor.is_meta:
        return "a tensor on the meta device holds no data"
    if tensor.is_nested:
        return "a nested tensor with holes between its parts"
    if tensor.is_quantized:
        return f"quantized values ({tensor.dtype}) have to be dequantized first"
    dtype = tensor.dtype
    if dtype not in KERNEL_DTYPES and dtype not in _FLOAT8 and dtype not in _COMPLEX:
        return f"values of dtype {dtype} are not numbers"
    if tensor.layout in SPARSE or tensor.layout is not torch.strided:
        return None
    return _missing_memory(tensor)


def _missing_memory(tensor: torch.Tensor) -> str | None:
    if tensor.numel() == 0:
        return None
    try:
        storage = tensor.untyped_storage()
        offset, shape, strides = tensor.storage_offset(), tensor.shape, tensor.stride()
    except (RuntimeError, NotImplementedError):
        storage = None
    # Tensors that stand for others: batched by vmap, traced, fake, wrappers of a third party. Some say that they have
    # a storage, but it lies nowhere.
    if storage is None or storage.device.type == "meta" or (type(tensor) not in _PLAIN and tensor.data_ptr() == 0):
        return f"a {type(tensor).__name__} without memory of its own"
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if storage.nbytes() < (last + 1) * tensor.element_size():
        return "the memory of the tensor is freed (a sharded parameter outside its use?)"
    return None


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a DTensor that lies on this rank, the values inside of what wraps them; any other tensor itself.

    The result of a functional collective is waited for, as torch does before it is used: until then it has no memory.
    """
    part = getattr(tensor, "_local_tensor", None)
    part = tensor if part is None else part
    wait = getattr(part, "trigger_wait", None)
    if wait is None:
        return part if type(part) in _PLAIN and not part.is_nested else inside(part)
    waited = wait()
    # torch 2.1 gives the wrapper back, later versions what is in it.
    return part.elem if waited is part else waited


@frozen(kw_only=True)
class Stored:
    """What is stored of a tensor, detached."""

    values: torch.Tensor
    """Strided, its axes in the order of memory; of one dimension where they fill one run of memory."""
    dense: bool
    """Whether they do."""
    times: int
    """As `Reading` has them."""
    implicit: int


def stored(tensor: torch.Tensor) -> Stored:
    """The stored values of a supported local tensor; nothing is copied.

    An uncoalesced sparse tensor is coalesced first, which waits for the device.
    """
    tensor = tensor.detach()
    implicit = 0
    if tensor.layout in SPARSE:
        total = tensor.numel()
        # Entries of one position may occur several times; their sum is the value.
        tensor = tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor.values()
        implicit = total - tensor.numel()
    elif tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.resolve_neg()
    if tensor.numel() == 0:
        return Stored(values=tensor.reshape(-1), dense=True, times=1, implicit=implicit)
    layout = layout_of(tensor.shape, tensor.stride())
    if layout.dense:
        values = tensor.as_strided((tensor.numel() // layout.times,), (1,))
    else:
        kept = sorted(layout.axes)
        values = tensor[tuple(slice(None) if axis in kept else 0 for axis in range(tensor.dim()))]
        values = values.permute([kept.index(axis) for axis in layout.axes])
    return Stored(values=values, dense=layout.dense, times=layout.times, implicit=implicit)


def read(tensor: torch.Tensor) -> Reading:
    """The values of a supported local tensor, detached.

    Values whose dtype no kernel knows are converted: complex numbers to their absolute value, fp8 to float32 (exactly).
    """
    found = stored(tensor)
    values = found.values
    if values.numel() == 0:
        pieces: Iterator[torch.Tensor] = iter(())
    elif found.dense and values.dtype in KERNEL_DTYPES:
        pieces = iter((values,))
    else:
        convert = _conversion(values.dtype)
        parts = split(values, max(PIECE, values.numel() >> 10))
        copied = (part.contiguous().view(-1) for part in parts)
        pieces = copied if convert is None else (convert(part) for part in copied)
    return Reading(pieces=pieces, times=found.times, implicit=found.implicit)


def _conversion(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor] | None:
    return torch.Tensor.float if dtype in _FLOAT8 else absolute if dtype in _COMPLEX else None


def absolute(values: torch.Tensor) -> torch.Tensor:
    """Of complex numbers."""
    return (values.to(torch.complex64) if values.dtype is torch.complex32 else values).abs()


def split(values: torch.Tensor, size: int) -> Iterator[torch.Tensor]:
    """Strided values in parts of at most so many."""
    if values.numel() <= size:
        yield values
        return
    if values.is_contiguous():
        values = values.view(-1)
    inner = values.numel() // len(values)
    for part in values.split(max(1, size // inner)):
        # A row that is itself too long is split along its next axis.
        yield from split(part[0] if len(part) == 1 else part, size)
