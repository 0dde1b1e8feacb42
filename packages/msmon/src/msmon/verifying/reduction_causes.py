"""What a gradient after the reduction looks like that is not what it should be."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from msmon.verifying.expectations import Expectations
from msmon.verifying.gradient_sums import Sums


@attrs.frozen(kw_only=True)
class Cause:
    """An explanation that gives the very value that was found."""

    text: str
    ranks: tuple[int, ...] = ()
    """The ranks in question."""


NOT_REDUCED_ANYWHERE = Cause(text="ranks have gradients of their own after it: it was not reduced on any of them")
"""What it is if the copies of several ranks are wrong, and not for one cause."""


def cause_of(
    sums: Sums, at: int, column: int, found: float, factor: float, limit: float, expected: Expectations
) -> Cause | None:
    """What explains a sum that is not what it should be; None: nothing known.

    Args:
        at, column: the step in `sums`, and the tensor.
        found: the sum.
        factor: of all gradients at the step.
        limit: how far from it the value may lie.
    """
    found = found / factor
    should = sums.expected[at, column]
    limit = limit / min(factor, 1.0)
    for value, cause in _candidates(sums, at, column, should, expected):
        # An explanation that lies within rounding of the truth explains nothing.
        if abs(found - value) <= limit < abs(should - value):
            return cause
    return None


def _candidates(
    sums: Sums, at: int, column: int, should: float, expected: Expectations
) -> Iterator[tuple[float, Cause]]:
    ranks, size, steps = expected.ranks, len(sums.members), expected.grad_acc_steps
    yield 0.0, Cause(text="the gradient is gone after the reduction")
    several = [(ranks[member], sums.own[member][at, column]) for member in sums.members] if size > 1 else []
    for rank, alone in several:
        yield should - alone, Cause(text=f"the gradient of rank {rank} is missing from the sum", ranks=(rank,))
    for rank, alone in several:
        yield should + alone, Cause(text=f"the gradient of rank {rank} is in the sum twice", ranks=(rank,))
        # Before the division that comes with a reduction.
        yield alone * size, Cause(text=f"it is the gradient of rank {rank} alone: it was not reduced", ranks=(rank,))
        yield (
            alone,
            Cause(text=f"it is the gradient of rank {rank} alone, divided by the number of ranks", ranks=(rank,)),
        )
    for name, members in sums.groups.items():
        if len(members) < size and all(member in sums.own for member in members):
            part = sum(sums.own[member][at, column] for member in members)
            yield (
                part,
                Cause(text=f"it is the sum over the group {name!r} alone: the reduction over the others is missing"),
            )
    for factor, name in _factors(size, steps):
        yield should * factor, Cause(text=f"{factor:.4g} times what it should be: looks like {name}")
    for name, members in sums.groups.items():
        count = len(members)
        if 1 < count < size:
            yield should * count, Cause(text=f"{count} times what it should be: not divided by the size of {name!r}")
            yield should / count, Cause(text=f"a {count}th of what it should be: divided by the size of {name!r} twice")


def _factors(ranks: int, steps: int) -> Iterator[tuple[float, str]]:
    if ranks > 1:
        yield float(ranks), f"a missing division by the number of ranks ({ranks}), or a reduction made twice"
        yield 1 / ranks, f"a division by the number of ranks ({ranks}) made twice"
    if steps > 1:
        yield float(steps), f"a missing division by grad_acc_steps ({steps})"
        yield 1 / steps, f"a division by grad_acc_steps ({steps}) made twice"
    if ranks > 1 and steps > 1:
        yield (
            float(ranks * steps),
            f"a missing division by the number of ranks and by grad_acc_steps ({ranks} x {steps})",
        )
    if ranks > 1:
        yield 1 / ranks**2, f"a division by the number of ranks ({ranks}) made three times"


def factor_name(value: float, limit: float, ranks: int, steps: int) -> str:
    """What a factor of all gradients looks like; "": like nothing known.

    >>> factor_name(4.0, 1e-3, 2, 4)
    'a missing division by grad_acc_steps (4)'
    """
    return next((name for factor, name in _factors(ranks, steps) if abs(value - factor) <= limit), "")
