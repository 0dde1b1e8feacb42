"""Shortened names that stay unique."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msmon_hooks.names import squash_name


class ShortNames:
    """Full names to the shorter ones that rows carry.

    Names of one stage that would become the same keep their full form, all of them: no row is lost, and which
    name a tensor has does not depend on the order in which modules were made. A module that is added later and whose
    full name is another one's short form gets a number behind it.

    Example:
        >>> short = ShortNames(enabled=True)
        >>> short.learn(0, ["encoder.layers.0.fc", "decoder.layers.0.fc", "decoder.layers.0.norm1"])
        >>> short(0, "decoder.layers.0.norm1"), short(0, "encoder.layers.0.fc")
        ('layers.0.norm1', 'encoder.layers.0.fc')
    """

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._names: dict[tuple[int, str], str] = {}

    def learn(self, stage: int, names: Iterable[str]) -> None:
        """Give each new name its short form; names that have one keep it."""
        if not self._enabled:
            return
        new = [name for name in dict.fromkeys(names) if (stage, name) not in self._names]
        taken = {short for (at, _), short in self._names.items() if at == stage}
        shortened = {name: squash_name(name) for name in new}
        # A full name may also be what another one is shortened to.
        wishes = Counter(shortened.values()) + Counter(name for name in new if shortened[name] != name)
        for name, short in shortened.items():
            chosen = short if wishes[short] == 1 and short not in taken else name
            number = 1
            while chosen in taken:
                number += 1
                chosen = f"{name}#{number}"
            taken.add(chosen)
            self._names[stage, name] = chosen

    def __call__(self, stage: int, name: str) -> str:
        """The short form of a name that was learned; of any other, the name itself."""
        return self._names.get((stage, name), name)
