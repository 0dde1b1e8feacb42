"""Which modules and parameters a configuration asks for."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping

from attrs import field, frozen


@frozen(kw_only=True)
class Elements:
    """Which elements of a module's inputs or outputs are meant.

    Example:
        >>> Elements(length=2, index=1)
        Elements(length=2, index=1)
    """

    length: int | None = None
    """How many elements there should be; None: any number."""
    index: int | None = None
    """The one element that is monitored; None: all of them."""


_ALL = Elements()


@frozen(kw_only=True)
class Sides:
    """What is monitored of one module: which elements of `input`, `output`, `input_grad` and `output_grad`.

    An empty mapping stands for all of all four.
    """

    elements: Mapping[str, Elements] = field(factory=dict)

    def of(self, side: str) -> Elements | None:
        """The elements of a side that are monitored, or None where the side is not."""
        return self.elements.get(side) if self.elements else _ALL


class Targets:
    """Matches names of modules and parameters against the configured ones.

    Args:
        wanted: name, with or without a stage prefix (`"1:layers.0"`), to `Sides`.
        all_modules: monitor the activations of every module; a named one follows its own entry.
        module_parts: only modules in whose name one of these occurs; empty: this says nothing.

    Example:
        >>> targets = Targets({"fc2": Sides()})
        >>> targets.module(0, "fc1"), targets.parameter(0, "fc2.weight"), targets.parameter(0, "fc1.weight")
        (None, True, False)
    """

    def __init__(
        self, wanted: Mapping[str, Sides], *, all_modules: bool = False, module_parts: Collection[str] = ()
    ) -> None:
        self._wanted = dict(wanted)
        self._module_parts = frozenset(module_parts)
        self._all_modules = all_modules or not wanted
        self._matched: set[str] = set()

    def _find(self, stage: int, name: str) -> Sides | None:
        for key in (f"{stage}:{name}", name):
            if key in self._wanted:
                self._matched.add(key)
                return self._wanted[key]
        return None

    def module(self, stage: int, name: str) -> Sides | None:
        """What is monitored of a module's activations, or None. A module stands for itself only."""
        if self._module_parts:
            parts = {part for part in self._module_parts if part in name}
            self._matched |= parts
            return Sides() if parts else None
        found = self._find(stage, name)
        return found if found is not None or not self._all_modules else Sides()

    def parameter(self, stage: int, name: str) -> bool:
        """Whether a parameter is monitored: by its own name, or by that of a module above it."""
        if not self._wanted:
            return True
        parts = name.split(".")
        above = [".".join(parts[:end]) for end in range(len(parts), -1, -1)]
        # All of them are looked up, so that every configured name that matches is known to have matched.
        return any([self._find(stage, prefix) is not None for prefix in above])  # noqa: C419

    def unmatched(self, key: str, names: Iterable[str]) -> list[str]:
        """A sentence for each configured name that matched nothing so far, with the nearest of `names`.

        `key`: where the configuration has them.
        """
        known = list(names)
        found = []
        for name in (*self._wanted, *sorted(self._module_parts)):
            if name not in self._matched:
                near = difflib.get_close_matches(name.partition(":")[2] or name, known, n=3)
                also = f"; near: {', '.join(near)}" if near else ""
                found.append(f"{key}: nothing in the model is called {name!r}{also}")
        return found
