"""Names of modules, parameters and tensors, as they appear in rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

_WRAPPERS = re.compile(
    r"(?:^|(?<=\.))(?:_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module|_forward_module)(?:\.|$)"
)
_SQUASH = (r"layers?\.", r"embeddings?\.", "final", "output", "norm")

Path = tuple[str, ...]


def plain_name(name: str, wrapper_prefix: str = "") -> str:
    """The name without the parts that wrappers add.

    ``wrapper_prefix`` is the path by which data-parallel wrappers reach the user's model (``"module."``,
    ``"module.module."``); a module that its author called ``module`` is not touched.

    Example:
        >>> plain_name("module._orig_mod.layers.0._checkpoint_wrapped_module.fc.weight", "module.")
        'layers.0.fc.weight'
    """
    if wrapper_prefix and (name + ".").startswith(wrapper_prefix):
        name = name[len(wrapper_prefix) :]
    return _WRAPPERS.sub("", name).rstrip(".")


def squash_name(name: str) -> str:
    """A shorter name: of the parts ``layer(s).``, ``embedding(s).``, ``final``, ``output``, ``norm``, tried in this
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


def tensor_leaves(value: Any, is_tensor: Callable[[Any], bool], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every tensor in nested tuples, lists, mappings, named tuples and dataclasses, with its path.

    Positions count elements that are no tensors too, so that a name stays the same when a value is None once.

    Example:
        >>> list(tensor_leaves({"a": (None, 1.5)}, lambda x: isinstance(x, float)))
        [(('a', '1'), 1.5)]
    """
    if is_tensor(value):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensor_leaves(item, is_tensor, (*path, str(key)))
    elif isinstance(value, tuple | list):
        keys = getattr(value, "_fields", None) or map(str, range(len(value)))
        for key, item in zip(keys, value, strict=False):
            yield from tensor_leaves(item, is_tensor, (*path, key))
    elif is_dataclass(value) and not isinstance(value, type):
        for attribute in fields(value):
            yield from tensor_leaves(getattr(value, attribute.name, None), is_tensor, (*path, attribute.name))


def leaf_name(base: str, path: Path) -> str:
    """``base`` with the path of a tensor behind it.

    Example:
        >>> leaf_name("rnn.output", ("1", "0")), leaf_name("fc.output", ())
        ('rnn.output_1_0', 'fc.output')
    """
    return "_".join((base, *path))
