"""What a verification found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

State = Literal["holds", "broken", "not checked"]


@attrs.frozen(kw_only=True)
class Violation:
    """One tensor of which an invariant does not hold, at the first step at which it does not.

    Example:
        >>> one = Violation(step=7, data_type="param_origin", tensor="fc.weight", ranks=(0, 1, 2, 3), minority=(1,),
        ...                 stat="norm", values={"rank 1": "3.5", "ranks 0, 2, 3": "3.25"})
        >>> one.place()
        'step 7, param_origin, fc.weight, rank 1'
    """

    step: int
    data_type: str
    tensor: str
    """Its name, with the pipeline stage in front where there are several; "" where all tensors are meant."""
    ranks: tuple[int, ...]
    """All that were compared."""
    minority: tuple[int, ...] = ()
    """Those that differ from the majority, or from what they should be; empty where that cannot be told."""
    micro_step: int | None = None
    stat: str = ""
    """Of what `values` are: a statistic, `fingerprint`, or what the values mean."""
    values: Mapping[str, str]
    """Whose -> the value. Two or more, of which the first is the one in question."""
    guess: str = ""
    """What it looks like, where there is something that does."""

    def place(self) -> str:
        """Step, data type, micro-step, tensor and the ranks in question."""
        parts = [f"step {self.step}", self.data_type]
        if self.micro_step is not None:
            parts.append(f"micro-step {self.micro_step}")
        if self.tensor:
            parts.append(self.tensor)
        return ", ".join([*parts, ranks_in_words(self.minority or self.ranks)])


@attrs.frozen(kw_only=True)
class Outcome:
    """What became of one invariant."""

    invariant: str
    """Its short name, such as `replicas`."""
    title: str
    """Its sentence."""
    comparisons: int = 0
    """How many times two values were compared that should agree (or differ)."""
    how: str = ""
    """What was compared: fingerprints, or statistics."""
    reason: str = ""
    """Why it was not checked, or how to have all of it checked."""
    violations: Sequence[Violation] = ()
    """The earliest first, in the order of the training step; a tensor of a data type comes once."""
    notes: Sequence[str] = ()
    state: State = attrs.field(init=False)

    @state.default
    def _state(self) -> State:
        if not self.comparisons:
            return "not checked"
        return "broken" if self.violations else "holds"


@attrs.frozen(kw_only=True)
class Report:
    """All invariants of a run."""

    run: str
    ranks: tuple[int, ...]
    steps: tuple[int, int, int] | None
    """First, last and number of the steps that were looked at."""
    outcomes: Sequence[Outcome]
    notes: Sequence[str] = ()

    @property
    def holds(self) -> bool:
        """Whether nothing is broken."""
        return all(one.state != "broken" for one in self.outcomes)

    @property
    def first(self) -> Violation | None:
        """The earliest violation of all invariants: the one to look at."""
        found = [one for outcome in self.outcomes for one in outcome.violations[:1]]
        return min(found, key=lambda one: one.step, default=None)

    def outcome(self, invariant: str) -> Outcome:
        """The outcome of one invariant.

        Raises:
            KeyError: there is none of that name.
        """
        found = {one.invariant: one for one in self.outcomes}
        return found[invariant]

    def to_dict(self) -> dict[str, Any]:
        """As `msmon verify --json` prints it."""
        return {"schema": 1, "holds": self.holds, **attrs.asdict(self)}


def ranks_in_words(ranks: Sequence[int]) -> str:
    """
    >>> ranks_in_words([3]), ranks_in_words([0, 1, 2, 5]), ranks_in_words([0, 1])
    ('rank 3', 'ranks 0-2, 5', 'ranks 0, 1')
    """
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    words = []
    for first, last in spans:
        words += [str(first)] if first == last else [f"{first}-{last}"] if last > first + 1 else [str(first), str(last)]
    return f"rank{'s'[: len(ranks) != 1]} {', '.join(words)}"
