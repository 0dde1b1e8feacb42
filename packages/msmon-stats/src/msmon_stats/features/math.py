"""The operators that features are written with, so that each algorithm exists once for all frameworks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from attrs import frozen

# Whole numbers up to here are exact in float32.
_MOST_CHUNK = 1 << 24


@frozen(kw_only=True)
class Math:
    """Operators of one framework. Arrays in, arrays out, on their device and without waiting for it."""

    quiet: Callable[[Any], AbstractContextManager[Any]]
    """A context in which nothing is recorded for gradients and no precision is changed."""
    plain: Callable[[Any], Any]
    """The values of a tensor without its history; of a sharded one the local part."""
    single: Callable[[Any], Any]
    """As float32; float64 stays."""
    wide: Callable[[Any], Any]
    """As float64; as float32, where the device has no float64."""
    whole: Callable[[Any], Any]
    """Whole numbers as they are added up: float64; int32, where the device has no float64."""
    like: Callable[[Any, Any], Any]
    """The first in the dtype of the second."""
    exp: Callable[[Any], Any]
    expm1: Callable[[Any], Any]
    log: Callable[[Any], Any]
    sqrt: Callable[[Any], Any]
    sign: Callable[[Any], Any]
    isnan: Callable[[Any], Any]
    where: Callable[[Any, Any, Any], Any]
    minus: Callable[[Any, Any, Any], Any]
    """`minus(a, b, c)`: `a - b * c`, `b` of no dimension."""
    norm: Callable[[Any], Any]
    """Euclidean norm of all values, accumulated and given as `wide` does."""
    sum: Callable[..., Any]
    """`sum(x)` of all, `sum(x, axis)` along one axis."""
    largest: Callable[[Any, int], Any]
    """Along one axis."""
    largest_size: Callable[[Any], Any]
    """The largest absolute value of all."""
    stack: Callable[[Sequence[Any]], Any]
    constant: Callable[[tuple[float, ...], Any], Any]
    """Numbers as a float64 array on the device of the second argument. Where that has no float64: the least float32
    numbers that are not below them, so that `x < number` means the same."""
    arange: Callable[[int, Any], Any]
    """0 to n - 1 as int64 on the device of the second argument."""
    searchsorted: Callable[[Any, Any], Any]
    """For each value the number of edges that are not above it."""
    bincount: Callable[[Any, int], Any]
    """How often each of the indices 0 to n - 1 occurs, as `whole` gives it; of at most 2^24 indices."""
    chunk: Callable[[Any], int]
    """How many values of a tensor are a useful amount of work for its device."""

    def real(self, tensor: Any) -> Any:
        """The values as `plain` gives them; `ValueError` for complex ones, whose imaginary part would be lost."""
        values = self.plain(tensor)
        if "complex" in str(values.dtype).lower():
            raise ValueError(f"values of dtype {values.dtype} are complex; what is computed here is made for real ones")
        return values

    def chunks(self, *tensors: Any) -> Iterator[tuple[Any, ...]]:
        """Flat pieces of tensors of equal size, so that temporaries stay small."""
        flat = [tensor.reshape(-1) for tensor in tensors]
        size = len(flat[0]) if len(flat[0].shape) else 1
        length = min(max(self.chunk(tensors[0]), size >> 8), _MOST_CHUNK)
        for start in range(0, size, length):
            yield tuple(part[start : start + length] for part in flat)
