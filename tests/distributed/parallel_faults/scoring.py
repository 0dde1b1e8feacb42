"""What a verification is worth: compares its first violation with the fault that was put in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from attrs import frozen

from msmon.verifying import Report, Violation

from .scene import Truth


@frozen(kw_only=True)
class Verdict:
    """One training, judged."""

    engine: str
    kind: str
    """"": a healthy one."""
    seed: int
    truth: Truth | None
    first: Violation | None
    ranks: tuple[int, ...]
    """Those that the first violation names, and others of the same tensor at the same step."""

    @property
    def found(self) -> bool:
        """Something is broken, and nothing is before the fault."""
        return self.first is not None and (self.truth is None or self.first.step >= self.truth.step)

    @property
    def right_step(self) -> bool:
        """At the step of the fault."""
        return self.first is not None and self.truth is not None and self.first.step == self.truth.step

    @property
    def right_tensor(self) -> bool:
        """One of the tensors that have the fault."""
        if self.first is None or self.truth is None:
            return False
        named = {part.rpartition(":")[2] for part in self.first.tensor.split(", tied to ")}
        return not self.truth.tensors or bool(named & set(self.truth.tensors))

    @property
    def right_rank(self) -> bool:
        """The very ranks."""
        if self.truth is None:
            return False
        some = self.truth.any_rank and bool(self.ranks) and set(self.ranks) <= set(self.truth.ranks)
        return some or self.ranks == self.truth.ranks

    @property
    def hit(self) -> bool:
        """All of it."""
        return self.right_step and self.right_tensor and self.right_rank

    def line(self) -> str:
        """In one line."""
        name = f"{self.engine}, {self.kind or 'healthy'}, seed {self.seed}"
        told = "nothing" if self.first is None else f"{self.first.place()} ({self.first.guess or 'no guess'})"
        if self.truth is None:
            return f"{name}: {'quiet' if self.first is None else 'FALSE ALARM: ' + told}"
        if self.hit:
            return f"{name}: found"
        wrong = [what for what, right in self._rights() if not right]
        drawn = f"step {self.truth.step}, {', '.join(self.truth.tensors) or 'all'}, ranks {self.truth.ranks}"
        recorded = "" if self.truth.recorded else " (not recorded)"
        return f"{name}: MISSED {', '.join(wrong)}{recorded}: {drawn}; told {told}"

    def _rights(self) -> list[tuple[str, bool]]:
        return [("step", self.right_step), ("tensor", self.right_tensor), ("rank", self.right_rank)]


def judge(engine: str, kind: str, seed: int, truth: Truth | None, report: Report) -> Verdict:
    """The verdict on one training."""
    first = report.first
    ranks: set[int] = set()
    if first is not None:
        same = [
            one
            for outcome in report.outcomes
            for one in outcome.violations
            if first in outcome.violations and (one.step, one.tensor, one.data_type) == _place(first)
        ]
        ranks = {rank for one in same for rank in one.minority or one.ranks}
    return Verdict(engine=engine, kind=kind, seed=seed, truth=truth, first=first, ranks=tuple(sorted(ranks)))


def _place(one: Violation) -> tuple[int, str, str]:
    return one.step, one.tensor, one.data_type


def table(verdicts: Sequence[Verdict]) -> str:
    """A row for each kind of fault and engine, then the healthy runs."""
    rows = [("kind", "engine", "runs", "found", "step", "tensor", "rank", "all three")]
    faulty = [one for one in verdicts if one.kind]
    for kind in dict.fromkeys(one.kind for one in faulty):
        of_kind = [one for one in faulty if one.kind == kind]
        for engine in dict.fromkeys(one.engine for one in of_kind):
            rows.append((kind, engine, *_counts([one for one in of_kind if one.engine == engine])))
    if faulty:
        rows.append(("all", "", *_counts(faulty)))
        shown = [one for one in faulty if one.truth is not None and one.truth.recorded]
        rows.append(("all that the recorded statistics can show", "", *_counts(shown)))
    lines = _aligned(rows) if faulty else []
    healthy = [one for one in verdicts if not one.kind]
    if healthy:
        quiet: list[tuple[str, ...]] = [("healthy", "runs", "false alarms")]
        for engine in dict.fromkeys(one.engine for one in healthy):
            own = [one for one in healthy if one.engine == engine]
            quiet.append((engine, str(len(own)), str(sum(one.first is not None for one in own))))
        quiet.append(("all", str(len(healthy)), str(sum(one.first is not None for one in healthy))))
        lines += ["", *_aligned(quiet)]
    return "\n".join(lines)


def _counts(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    def count(right: Callable[[Verdict], bool]) -> str:
        return str(sum(map(right, verdicts)))

    return (
        str(len(verdicts)),
        count(lambda one: one.found),
        count(lambda one: one.right_step),
        count(lambda one: one.right_tensor),
        count(lambda one: one.right_rank),
        count(lambda one: one.hit),
    )


def _aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    rows = list(rows)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    filled = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    lines = [f"| {' | '.join(row)} |" for row in filled]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]
