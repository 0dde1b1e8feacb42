"""Which modules and parameters `targets` names, and which of a module's tensors."""

import re
from collections.abc import Mapping

from attrs import field, frozen

from msmon.config.problems import Problems, join, kind, nearest

_SPEC = re.compile(r"(tuple|list)\[(\d{1,6})\](?::(\d{1,6}))?\Z", re.ASCII)
_STAGE = re.compile(r"(\d{1,6}):(.*)\Z", re.ASCII | re.DOTALL)
_ALLOWED = '"tensor", "tuple[n]:i" with i < n, "tuple[n]" or ""'
SIDES = ("input", "output", "input_grad", "output_grad")


@frozen(kw_only=True)
class Selector:
    """Which tensors of one side of a module are monitored.

    >>> parse_selector("tuple[2]:1").index
    1
    """

    text: str
    """The specification as it stands in the file: `tensor`, `tuple[n]:i`, `list[n]:i`, `tuple[n]` or empty."""

    length: int | None = None
    """The number of elements that the sequence must have, 1 for a bare tensor; None: any form is taken."""

    index: int | None = None
    """The one element that is monitored; None: all of them."""


@frozen(kw_only=True)
class Target:
    """One entry of `targets`."""

    key: str
    """The name as it stands in the file, perhaps with a stage prefix."""

    name: str
    """The `named_modules()` or `named_parameters()` name without the prefix."""

    stage: int | None = None
    """The virtual pipeline stage of the prefix `"0:"`; None: every stage."""

    sides: Mapping[str, Selector] = field(factory=dict)
    """Which of `SIDES` are monitored (`input`: forward inputs, `input_grad`: their gradients); empty: everything."""

    def to_dict(self) -> dict[str, str]:
        """The specification as it stands in the file."""
        return {side: selector.text for side, selector in self.sides.items()}


def parse_selector(text: str) -> Selector:
    """A Selector from its specification.

    Raises:
        ValueError: the text is none of the allowed forms, or the element does not exist.
    """
    if text == "":
        return Selector(text=text)
    if text == "tensor":
        return Selector(text=text, length=1)
    match = _SPEC.match(text)
    if match is None:
        raise ValueError("an unknown form")
    length = int(match[2])
    index = None if match[3] is None else int(match[3])
    if index is not None and index >= length:
        last = (
            f"the last element of {match[1]}[{length}] is {length - 1}" if length else "an empty tuple has no element"
        )
        raise ValueError(last)
    return Selector(text=text, length=length, index=index)


def parse_targets(value: object, path: str, problems: Problems) -> tuple[Target, ...]:
    """The check of the field `targets`."""
    if not isinstance(value, Mapping):
        note = "write the names as keys, each with {}" if isinstance(value, (list, str)) else f"not {kind(value)}"
        problems.refuse(path, value, "an object of module or parameter names", note)
        return ()
    return tuple(_target(key, spec, join(path, key), problems) for key, spec in value.items())


def _target(key: object, spec: object, path: str, problems: Problems) -> Target:
    if not isinstance(key, str):
        problems.refuse(path, key, "a string as name", f"not {kind(key)}")
        key = ""
    stage = _STAGE.match(key)
    if not isinstance(spec, Mapping):
        problems.refuse(path, spec, f"{{}} or an object with {', '.join(SIDES)}", f"not {kind(spec)}")
        spec = {}
    for side in spec:
        if side not in SIDES:
            problems.unknown_key(path, side, SIDES)
    found = {side: _selector(spec[side], join(path, side), problems) for side in SIDES if side in spec}
    return Target(
        key=key,
        name=stage[2] if stage else key,
        stage=int(stage[1]) if stage else None,
        sides={side: selector for side, selector in found.items() if selector is not None},
    )


def _selector(text: object, path: str, problems: Problems) -> Selector | None:
    if not isinstance(text, str):
        problems.refuse(path, text, _ALLOWED, f"not {kind(text)}")
        return None
    try:
        return parse_selector(text)
    except ValueError as error:
        near = nearest(text, ("tensor",))
        problems.refuse(path, text, _ALLOWED, f'did you mean "{near}"?' if near else str(error))
        return None
