"""What goes into and comes out of modules, as the document `module_struct.json` shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msmon_hooks.names import elements

Describe = Callable[[Any], str | None]
"""A tensor's size and dtype as text; None for anything that is no tensor."""


def describe_tensor(shape: tuple[int, ...], dtype: str) -> str:
    """How the document writes a tensor.

    Example:
        >>> describe_tensor((2, 5), "torch.int64")
        'size=(2, 5), dtype=torch.int64'
    """
    return f"size={tuple(shape)}, dtype={dtype}"


def inputs_document(args: tuple[Any, ...], kwargs: Mapping[str, Any], describe: Describe) -> dict[str, str]:
    """What a module is called with: positional arguments by index, the others by keyword.

    Example:
        >>> inputs_document((1.5, None), {"mask": 2.5}, lambda x: f"number {x}" if isinstance(x, float) else None)
        {'config': 'list[3]', '0': 'number 1.5', '1': "<class 'NoneType'>", 'mask': 'number 2.5'}
    """
    parts = {str(index): value for index, value in enumerate(args)} | dict(kwargs)
    return _document(f"list[{len(parts)}]", parts, describe)


def output_document(output: Any, describe: Describe) -> dict[str, str]:
    """What a module returns: a tensor, or its elements by index, key or field.

    Example:
        >>> output_document((1.5, (2.5,)), lambda x: f"number {x}" if isinstance(x, float) else None)
        {'config': 'tuple[2]', '0': 'number 1.5', '1': "<class 'tuple'>"}
    """
    text = describe(output)
    if text is not None:
        return {"config": "tensor", "tensor": text}
    found = elements(output)
    parts = {"0": output} if found is None else dict(found)
    return _document(f"tuple[{len(parts)}]", parts, describe)


def gradients_document(gradients: Mapping[str, str | None]) -> dict[str, str]:
    """The gradients of inputs or outputs, element by element; None where an element got no gradient of its own.

    Example:
        >>> gradients_document({"0": "size=(2, 5), dtype=torch.float32", "1": None})
        {'config': 'tuple[2]', '0': 'size=(2, 5), dtype=torch.float32', '1': "<class 'NoneType'>"}
    """
    absent = str(type(None))
    return {"config": f"tuple[{len(gradients)}]"} | {key: text or absent for key, text in gradients.items()}


def output_elements(output: Any, is_tensor: Callable[[Any], bool]) -> dict[str, Any]:
    """The elements of an output by the key under which the document lists them; a bare tensor is element 0."""
    parts = None if is_tensor(output) else elements(output)
    return dict(parts) if parts is not None else {"0": output}


def _document(config: str, parts: Mapping[str, Any], describe: Describe) -> dict[str, str]:
    return {"config": config} | {key: describe(value) or str(type(value)) for key, value in parts.items()}
