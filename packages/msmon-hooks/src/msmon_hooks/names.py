"""Names of modules, parameters and tensors, as they appear in rows."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import MemberDescriptorType
from typing import Any

_WRAPPERS = re.compile(
    r"(?:^|(?<=\.))(?:_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module|_forward_module)(?:\.|$)"
)
_SQUASH = (r"layers?\.", r"embeddings?\.", "final", "output", "norm")

# What modules are given besides tensors most of the time; the check spares the slow ones.
_LEAVES = frozenset({type(None), bool, int, float, str})

_CLOSED = frozenset({"Cache", "Optimizer", "module"})
_DEPTH = 8

Path = tuple[str, ...]


def plain_name(name: str, wrapper_prefix: str = "") -> str:
    """The name without the parts that wrappers add.

    `wrapper_prefix` is the path by which data-parallel wrappers reach the user's model (`"module."`,
    `"module.module."`); a module that its author called `module` is not touched.

    Example:
        >>> plain_name("module._orig_mod.layers.0._checkpoint_wrapped_module.fc.weight", "module.")
        'layers.0.fc.weight'
    """
    if wrapper_prefix and (name + ".").startswith(wrapper_prefix):
        name = name[len(wrapper_prefix) :]
    return _WRAPPERS.sub("", name).rstrip(".")


def squash_name(name: str) -> str:
    """A shorter name: of the parts `layer(s).`, `embedding(s).`, `final`, `output`, `norm`, tried in this
    order, the first that occurs after a dot; kept from its last occurrence on.

    Example:
        >>> squash_name("model.decoder.layers.3.mlp.weight"), squash_name("head.weight")
        ('layers.3.mlp.weight', 'head.weight')
    """
    for part in _SQUASH:
        found = list(re.finditer(rf"(?<=\.){part}", name))
        if found:
            return name[found[-1].start() :]
    return name


def elements(value: Any) -> list[tuple[str, Any]] | None:
    """The parts of a tuple, list, mapping or dataclass by index, key or field, those of any other object that holds
    something (as DETR's `NestedTensor` does) by attribute; None for what has no parts.

    Nothing of the object is run: no property, no `__getattr__`.

    Example:
        >>> elements({"a": 1}), elements((1, 2)), elements("text")
        ([('a', 1)], [('0', 1), ('1', 2)], None)
        >>> from types import SimpleNamespace
        >>> elements(SimpleNamespace(tensors=1, mask=None))
        [('tensors', 1), ('mask', None)]
    """
    if type(value) in _LEAVES:
        return None
    parts = _container(value)
    return parts if parts is not None or is_closed(type(value)) else _attributes(value) or None


def tensor_leaves(
    value: Any, is_tensor: Callable[[Any], bool], path: Path = (), *, depth: int = _DEPTH, open_objects: bool = True
) -> list[tuple[Path, Any]]:
    """Every tensor in nested containers, with its path.

    Positions count elements that are no tensors too, so that a name stays the same when a value is None once.

    Args:
        value: a tensor, or what holds some.
        is_tensor: says which values are tensors.
        path: where `value` is.
        depth: how deep containers are looked into; one may hold itself.
        open_objects: look at attributes of objects, but not of those that such an object holds: they are rather
            what it works with than what it brings.

    Example:
        >>> tensor_leaves({"a": (None, 1.5)}, lambda x: isinstance(x, float))
        [(('a', '1'), 1.5)]
    """
    if is_tensor(value):
        return [(path, value)]
    if type(value) in _LEAVES or not depth:
        return []
    parts = _container(value)
    if parts is None:
        if not open_objects or is_closed(type(value)):
            return []
        parts, open_objects = _attributes(value), False
    found = []
    for key, item in parts:
        found += tensor_leaves(item, is_tensor, (*path, key), depth=depth - 1, open_objects=open_objects)
    return found


def _container(value: Any) -> list[tuple[str, Any]] | None:
    if isinstance(value, tuple | list):
        keys = getattr(type(value), "_fields", None) or map(str, range(len(value)))
        return list(zip(keys, value, strict=False))
    if isinstance(value, Mapping):
        return [(str(key), item) for key, item in value.items()]
    if is_dataclass(value) and not isinstance(value, type):
        own = dict(_attributes(value))
        return [(one.name, own.get(one.name)) for one in fields(value)]
    return None


def is_closed(cls: type) -> bool:
    """Whether nothing is looked for in objects of a class: functions, modules, classes; and caches of keys and values,
    of which every layer is given all.

    Example:
        >>> is_closed(type(print)), is_closed(object)
        (True, False)
    """
    return any("__call__" in vars(one) or one.__name__ in _CLOSED for one in cls.__mro__)


def _attributes(value: Any) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, slot in _slots(type(value)):  # type: ignore[arg-type]
        with contextlib.suppress(AttributeError):
            found.append((name, slot.__get__(value)))
    with contextlib.suppress(AttributeError):
        found += object.__getattribute__(value, "__dict__").items()
    return found


@lru_cache(maxsize=1024)
def _slots(cls: type) -> list[tuple[str, MemberDescriptorType]]:
    inherited = [pair for base in reversed(cls.__mro__) for pair in vars(base).items()]
    slots = [(name, one) for name, one in inherited if isinstance(one, MemberDescriptorType)]
    return [(name, slot) for name, slot in slots if not name.startswith("__")]


def leaf_name(base: str, path: Path) -> str:
    """`base` with the path of a tensor behind it.

    Example:
        >>> leaf_name("rnn.output", ("1", "0")), leaf_name("fc.output", ())
        ('rnn.output_1_0', 'fc.output')
    """
    return "_".join((base, *path))
