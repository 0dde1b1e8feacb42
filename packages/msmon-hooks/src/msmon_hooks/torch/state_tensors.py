"""The tensors in a parameter's state: found in whatever an optimizer puts there, and named as rows are."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from attrs import frozen
from torch import nn

from msmon_hooks.parameter_state import MOMENTS
from msmon_hooks.torch.packed_tensors import from_codes, is_packed, unpacked
from msmon_hooks.torch.state_names import Path, is_no_moment, moment_paths, row_name

_DEPTH = 4
_TENSORS = 256
"""More tensors of one parameter than that are not looked at; LBFGS keeps 200."""
_WITHOUT = (int, float, complex, str, bytes, type(None), set, frozenset, torch.dtype, torch.device)
"""Types that hold no tensor."""


@frozen(kw_only=True, eq=False, slots=True)
class StateTensor:
    """One tensor of a parameter's state."""

    path: Path
    key: Any
    """The last of the path, as it is."""
    beside: Mapping[Any, Any]
    """What holds the tensor, where that is a mapping."""
    tensor: torch.Tensor

    @property
    def code_keys(self) -> tuple[str, str] | None:
        """Of a tensor that is quantised block by block: the keys, beside its own, of what its codes stand for and of
        the largest value of each block."""
        if self.tensor.dtype is not torch.uint8:
            return None
        name = self.path[-1]
        number = name[len(name.rstrip("0123456789")) :]
        keys = f"qmap{number}", f"absmax{number}"
        return keys if all(isinstance(self.beside.get(key), torch.Tensor) for key in keys) else None

    @property
    def is_packed(self) -> bool:
        """Whether the values have to be computed."""
        return self.code_keys is not None or is_packed(self.tensor)

    def values(self) -> torch.Tensor:
        """The values of a packed one; `ValueError` says why they cannot be had."""
        if self.code_keys is None:
            return unpacked(self.tensor)
        book, scales = self.code_keys
        return from_codes(self.tensor, self.beside[book], self.beside[scales])


def is_flat(state: Mapping[Any, Any]) -> bool:
    """Whether all tensors are values of the state itself, none of them deeper inside."""
    return all(isinstance(value, (torch.Tensor, *_WITHOUT)) for value in state.values())


def state_keys(state: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    """The names of what there is, those in mappings inside included.

    Example:
        >>> list(state_keys({"step": 1, "exp_avg": None, 0: {"ema": 2.0}}))
        ['step', '0.ema']
    """
    for key, value in islice(state.items(), _TENSORS):
        if isinstance(value, Mapping) and value:
            yield from state_keys(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}"


def tensors_of(state: Mapping[Any, Any], parameter: torch.Tensor) -> list[StateTensor]:
    """The tensors of a state that are worth a row: no counters, no tables that belong to another tensor.

    Example:
        >>> state = {"step": torch.tensor(1.0), "Q": [torch.eye(2)], "mask": torch.ones(3, dtype=torch.bool)}
        >>> [one.path for one in tensors_of(state, torch.ones(3))]
        [('Q', '0')]
    """
    return list(islice((one for one in _walk(state, (), _DEPTH) if _is_wanted(one, parameter)), _TENSORS))


def names_of(tensors: Iterable[StateTensor], parameter: torch.Tensor, taken: set[str], optimizer: Any) -> list[str]:
    """How the rows of tensors are called; the names are added to `taken`."""
    by_path = {one.path: one for one in tensors}
    moments = moment_paths(
        {path: one.tensor.numel() for path, one in by_path.items()},
        parameter.numel(),
        siblings={path: [str(key) for key in one.beside] for path, one in by_path.items()},
        kind=str(getattr(optimizer, "__dict__", {}).get("optimizer_name", "")),
    )
    names = []
    for path in by_path:
        moment = moments.get(path)
        name = row_name(path, taken, type(optimizer).__name__) if moment is None or moment in taken else moment
        taken.add(name)
        names.append(name)
    return names


def _is_wanted(one: StateTensor, parameter: torch.Tensor) -> bool:
    tensor = one.tensor
    if tensor is parameter or is_no_moment(one.path[-1]):
        return False
    dtype = tensor.dtype
    if not (dtype.is_floating_point or dtype.is_complex or one.is_packed):
        return False
    # One number of a parameter that has several: a counter, a norm, a learning rate.
    return tensor.numel() != 1 or tensor.shape == parameter.shape or one.path[0] in MOMENTS


def _walk(value: Any, path: Path, depth: int) -> Iterator[StateTensor]:
    beside = value if isinstance(value, Mapping) else {}
    for key, one in _inside(value).items():
        if isinstance(one, torch.Tensor):
            yield StateTensor(path=(*path, str(key)), key=key, beside=beside, tensor=one)
        elif depth:
            yield from _walk(one, (*path, str(key)), depth - 1)


def _inside(value: Any) -> Mapping[Any, Any]:
    """What may hold tensors in a value, by key."""
    if isinstance(value, list | tuple | deque):
        return dict(enumerate(islice(value, _TENSORS)))
    if isinstance(value, Mapping):
        return value
    if isinstance(value, (*_WITHOUT, type, nn.Module, torch.optim.Optimizer)) or callable(value):
        return {}
    # A preconditioner, a projector: plain objects, of which no property is asked.
    attributes = getattr(value, "__dict__", None)
    return attributes if isinstance(attributes, dict) else {}
