"""What a mark says of a tensor, as text in a graph."""

from __future__ import annotations

from functools import lru_cache

from attrs import fields, frozen

_BETWEEN = "\x1f"
FORWARD, GRADIENT = "f", "g"


@frozen(kw_only=True)
class Leaf:
    """One tensor among the inputs or outputs of one call of a module, or the gradient of it.

    Example:
        >>> leaf = Leaf(kind="f", module=".fc1", side="input", position=0, length=1, path="0")
        >>> Leaf.parse(leaf.text()) == leaf
        True
    """

    kind: str
    """`FORWARD` or `GRADIENT`."""
    call: int = -1
    """Number of the call in the graph, in the order in which calls begin."""
    end: int = -1
    """The same in the order in which they end."""
    module: str
    """Which module: `.fc1` inside of the module at which compiled code is entered, `0:model.fc1` else."""
    side: str
    """`input` or `output`."""
    position: int
    """Of the element among the inputs or outputs."""
    index: int = 0
    """Of the tensor among those of this side."""
    tensors: int = 1
    """How many there are of them."""
    gradient: int = 0
    """1 where its gradient is marked, too."""
    positional: int = 0
    """How many of the inputs are positional."""
    length: int
    """How many inputs or outputs there are."""
    path: str
    """Of the tensor among them, its parts joined by `_`; empty for an output that is a tensor itself."""

    def text(self) -> str:
        """What the mark carries."""
        return _BETWEEN.join(str(getattr(self, name)) for name in _NAMES)

    @classmethod
    @lru_cache(maxsize=4096)
    def parse(cls, text: str) -> Leaf:
        """The leaf that a mark carries."""
        values = text.split(_BETWEEN, len(_NAMES) - 1)
        found = {name: int(value) if name in _NUMBERS else value for name, value in zip(_NAMES, values, strict=True)}
        return cls(**found)  # type: ignore[arg-type]


_NAMES = [field.name for field in fields(Leaf)]
_NUMBERS = frozenset(_NAMES) - {"kind", "module", "side", "path"}
