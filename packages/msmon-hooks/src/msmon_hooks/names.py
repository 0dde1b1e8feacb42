"""Names of modules, parameters and tensors, as they appear in rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

_WRAPPERS = re.compile(
    r"(?:^|(?<=\.))(?:_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module|_forward_module)(?:\.|$)"
)
_SQUASH = (r"layers?\.", r"embeddings?\.", "final", "output", "norm")

# What modules are given besides tensors most of the time; the check spares the slow ones.
_LEAVES = frozenset({type(None), bool, int, float, str})

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
    """The parts of a tuple, list, mapping, named tuple or dataclass by index, key or field; None for anything else.

    Example:
        >>> elements({"a": 1}), elements((1, 2)), elements("text")
        ([('a', 1)], [('0', 1), ('1', 2)], None)
    """
    if type(value) in _LEAVES:
        return None
    if isinstance(value, tuple | list):
        keys = getattr(type(value), "_fields", None) or map(str, range(len(value)))
        return list(zip(keys, value, strict=False))
    if isinstance(value, Mapping):
        return [(str(key), item) for key, item in value.items()]
    if is_dataclass(value) and not isinstance(value, type):
        return [(one.name, getattr(value, one.name, None)) for one in fields(value)]
    return None


def tensor_leaves(value: Any, is_tensor: Callable[[Any], bool], path: Path = ()) -> list[tuple[Path, Any]]:
    """Every tensor in nested containers, with its path.

    Positions count elements that are no tensors too, so that a name stays the same when a value is None once.

    Example:
        >>> tensor_leaves({"a": (None, 1.5)}, lambda x: isinstance(x, float))
        [(('a', '1'), 1.5)]
    """
    if is_tensor(value):
        return [(path, value)]
    parts = elements(value)
    if parts is None:
        return []
    return [leaf for key, item in parts for leaf in tensor_leaves(item, is_tensor, (*path, key))]


def leaf_name(base: str, path: Path) -> str:
    """`base` with the path of a tensor behind it.

    Example:
        >>> leaf_name("rnn.output", ("1", "0")), leaf_name("fc.output", ())
        ('rnn.output_1_0', 'fc.output')
    """
    return "_".join((base, *path))
