"""The gradient that the optimizer consumes is the mean (or sum) of those before the reduction, times one factor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from msmon.reading.index import TensorKey
from msmon.reading.statistics import Floats
from msmon.verifying.expectations import Expectations
from msmon.verifying.factors import UNKNOWN, Factor, factors_at
from msmon.verifying.gradient_sums import AFTER, BEFORE, GradientSums, Sums
from msmon.verifying.reduction_causes import NOT_REDUCED_ANYWHERE, Cause, cause_of, factor_name
from msmon.verifying.report import Outcome, Violation
from msmon.verifying.windows import Mask, Window

NAME = "reductions"
TITLE = "The mean or sum over ranks of the gradients before the reduction is the gradient after it"
CLIPPING = "clipping"
CLIPPING_TITLE = "Gradients are clipped and scaled by one factor for all parameters and ranks"

#: If more than this share of the sums is no multiple of what it should be, for no known reason, the program changes
#: gradients between the reduction and the step.
_CHANGED = 0.05

#: So large a share of the tensors is no fault of one of them; and a program that does so does it from the first steps.
_MANY = 0.3
_EARLY = 2

_CHANGED_REASON = (
    "gradients are changed between the reduction and the step in a way that is no common factor (clipping by value or "
    "by parameter, noise, a communication hook): {share:.0%} of {count:,} sums"
)


@attrs.frozen(kw_only=True)
class _Broken:
    step: int
    tensor: TensorKey
    ranks: tuple[int, ...]
    expected: float
    found: float
    cause: Cause | None
    on: tuple[int, ...] = ()
    """Ranks whose copy of the gradient it is; empty: what all have together."""


class Reductions:
    """Compares sums of gradients before and after the reduction, and collects the factors between them."""

    data_types = (BEFORE, AFTER)

    def __init__(self, expectations: Expectations, digits: int | None) -> None:
        self._expected = expectations
        self._sums = GradientSums(expectations, digits)
        self._checked = 0
        self._unexplained = 0
        self._unexplained_tensors: dict[TensorKey, int] = {}
        """Tensor -> the first step at which nothing explains what became of its gradient."""
        self._broken: dict[tuple[TensorKey, tuple[int, ...]], _Broken] = {}
        self._tensors: set[TensorKey] = set()
        self._seen: set[str] = set()
        self._few = False
        self._compared_factors = 0
        self._steps: list[int] = []
        self._factors: dict[tuple[int, ...], list[Factor]] = {}
        """Ranks that sum up -> of each step the factor and how exact it is; NaN where it is not known."""
        self._divisors_known: set[tuple[int, ...]] = set()
        self._local: list[tuple[int, dict[int, float]]] = []

    def look(self, window: Window) -> None:
        """See these steps."""
        self._seen.update(one for one in self.data_types if one in window.types)
        made = list(self._sums.of(window))
        self._few = self._few or (not made and len(self._seen) == 2 and not self._sums.reasons)
        by_members: dict[tuple[int, ...], list[Sums]] = {}
        for sums in made:
            by_members.setdefault(tuple(sums.members), []).append(sums)
            self._tensors.update(sums.tensors)
        before = len(self._steps)
        self._steps += window.steps.tolist()
        at_steps = [factors_at(at, by_members) for at in range(len(window.steps))]
        for members, own in by_members.items():
            factors = [one.get(members, UNKNOWN) for one in at_steps]
            known = self._factors.setdefault(members, [UNKNOWN] * before)
            known += factors
            if all(sums.divisor_known for sums in own):
                self._divisors_known.add(members)
            factor = np.array([value for value, _ in factors])[:, None]
            exact = np.array([limit for _, limit in factors])[:, None]
            local = self._locally_clipped(own, window, factor, exact)
            for sums in own:
                self._compare(sums, window, factor, exact, local)
        for known in self._factors.values():
            known += [UNKNOWN] * (len(self._steps) - len(known))

    def _compare(self, sums: Sums, window: Window, factor: Floats, exact: Floats, local: set[int]) -> None:
        with np.errstate(invalid="ignore", over="ignore"):
            should = factor * sums.expected
            limit = sums.limit * np.maximum(factor, 1.0) + exact * np.abs(sums.expected)
        here = [at for at, step in enumerate(window.steps.tolist()) if step in local]
        # Where each rank has all of it, each of them may be wrong alone.
        for at, found in sums.after.items() if sums.whole else ((None, sums.found),):
            with np.errstate(invalid="ignore", over="ignore"):
                known = np.isfinite(should) & np.isfinite(found)
                bad = known & (np.abs(found - should) > limit)
            bad[here] = False
            self._checked += int(known.sum())
            self._note(sums, window, at, found, should, limit, factor, bad)

    def _note(
        self,
        sums: Sums,
        window: Window,
        holder: int | None,
        found: Floats,
        should: Floats,
        limit: Floats,
        factor: Floats,
        bad: Mask,
    ) -> None:
        for column in np.flatnonzero(bad.any(axis=0)).tolist():
            at = int(bad[:, column].argmax())
            value = float(found[at, column])
            cause = cause_of(sums, at, column, value, float(factor[at, 0]), float(limit[at, column]), self._expected)
            place = sums.tensors[column], tuple(sums.members)
            ranks = self._expected.ranks
            if cause is None:
                self._unexplained += int(bad[:, column].sum())
                self._unexplained_tensors.setdefault(sums.tensors[column], int(window.steps[at]))
            broken = _Broken(
                step=int(window.steps[at]),
                tensor=sums.tensors[column],
                ranks=tuple(ranks[member] for member in sums.members),
                expected=float(should[at, column]),
                found=value,
                cause=cause,
                on=() if holder is None else (ranks[holder],),
            )
            before = self._broken.get(place)
            if before is None:
                self._broken[place] = broken
            elif before.step == broken.step and before.on and broken.on and before.on != broken.on:
                same = before.cause == broken.cause or before.cause is None or broken.cause is None
                cause = before.cause if same else NOT_REDUCED_ANYWHERE
                self._broken[place] = attrs.evolve(before, on=(*before.on, *broken.on), cause=cause)

    def _locally_clipped(self, own: Sequence[Sums], window: Window, factor: Floats, exact: Floats) -> set[int]:
        """Steps at which each rank's part has a factor of its own: the sum of part over factor is what it should be."""
        found: set[int] = set()
        if any(sums.whole for sums in own):
            return found
        members = list(own[0].members)
        for at, step in enumerate(window.steps.tolist()):
            parts, expected, limit = _equations(own, at, members)
            if len(expected) < 2 * len(members) or not np.isfinite(factor[at, 0]):
                continue
            with np.errstate(invalid="ignore"):
                apart = np.abs(parts.sum(axis=1) - factor[at, 0] * expected)
                bad = apart > limit * max(factor[at, 0], 1.0) + exact[at, 0] * np.abs(expected)
            if bad.sum() <= len(bad) * _CHANGED:
                continue
            inverse, *_ = np.linalg.lstsq(parts / limit[:, None], expected / limit, rcond=None)
            rest = np.abs(parts @ inverse - expected)
            if (inverse > 0).all() and (rest <= 4 * limit * np.maximum(inverse.max(), 1.0)).all():
                found.add(step)
                ranks = self._expected.ranks
                self._local.append((step, {ranks[at]: float(1 / x) for at, x in zip(members, inverse, strict=True)}))
        return found

    # What was found

    @property
    def _changed(self) -> bool:
        """Whether the program changes gradients: many of them, or from the first steps on."""
        if self._unexplained <= _CHANGED * self._checked:
            return False
        early = self._steps[min(_EARLY, len(self._steps)) - 1]
        many = len(self._unexplained_tensors) > _MANY * len(self._tensors)
        return many or any(step <= early for step in self._unexplained_tensors.values())

    def reductions(self) -> Outcome:
        """Whether the reductions add up."""
        violations = [] if self._changed else [*self._wrong_factors(), *self._wrong_tensors()]
        violations.sort(key=lambda one: one.step)
        if not self._checked or self._changed:
            return Outcome(invariant=NAME, title=TITLE, reason=self._reason())
        return Outcome(
            invariant=NAME,
            title=TITLE,
            comparisons=self._checked,
            how="sums of all elements, from means and numbers of elements",
            reason="; ".join(f"{reason}: {count} not checked" for reason, count in self._sums.reasons.items()),
            violations=violations,
            notes=[text for text in (self._factor_note(),) if text and not violations],
        )

    def clipping(self) -> Outcome:
        """Whether it is one factor."""
        if not self._checked or self._changed:
            return Outcome(invariant=CLIPPING, title=CLIPPING_TITLE, reason=self._reason())
        violations = list(self._apart())
        return Outcome(
            invariant=CLIPPING,
            title=CLIPPING_TITLE,
            comparisons=self._checked + self._compared_factors,
            how="factors between sums of gradients before and after",
            violations=violations,
        )

    def _reason(self) -> str:
        if self._changed:
            return _CHANGED_REASON.format(share=self._unexplained / self._checked, count=self._checked)
        missing = [data_type for data_type in self.data_types if data_type not in self._seen]
        if missing:
            return f"{' and '.join(missing)} not recorded (wg_distribution)"
        if self._few:
            return 'sums need "mean", and "norm", "rms" or "absmax", in ops'
        if self._sums.reasons:
            return "; ".join(self._sums.reasons)
        return "no step has both gradients of a tensor"

    def _wrong_tensors(self) -> Iterator[Violation]:
        for one in sorted(self._broken.values(), key=lambda one: one.step):
            yield Violation(
                step=one.step,
                data_type=AFTER,
                tensor=one.tensor.label(),
                ranks=one.ranks,
                minority=self._minority(one),
                stat="sum of all elements",
                values={"after": f"{one.found:.9g}", "should be": f"{one.expected:.9g}"},
                guess=_factor_text(one) if one.cause is None else one.cause.text,
            )

    @staticmethod
    def _minority(one: _Broken) -> tuple[int, ...]:
        if one.on and len(one.on) < len(one.ranks):
            return one.on
        return () if one.cause is None else one.cause.ranks

    def blamed(self) -> dict[tuple[TensorKey, int], tuple[int, ...]]:
        """(tensor, step) -> the ranks whose reduced gradient is wrong, where it is not that of all."""
        if self._changed:
            return {}
        return {(one.tensor, one.step): ranks for one in self._broken.values() if (ranks := self._minority(one))}

    def _wrong_factors(self) -> Iterator[Violation]:
        """Steps at which all gradients together are larger than they should be, or have been divided once more."""
        for members, factors in self._factors.items():
            if members not in self._divisors_known:
                continue
            values, limits = np.array(factors).T
            known = np.isfinite(values)
            with np.errstate(invalid="ignore"):
                wrong = known & (values > 1 + limits)
            wrong |= self._divided_again(values, limits, len(members))
            if not wrong.any():
                continue
            at = int(wrong.argmax())
            ranks = tuple(self._expected.ranks[member] for member in members)
            name = factor_name(values[at], limits[at], len(members), self._expected.grad_acc_steps)
            yield Violation(
                step=self._steps[at],
                data_type=AFTER,
                tensor="",
                ranks=ranks,
                stat="factor of all gradients",
                values={
                    "after over before": f"{values[at]:.6g}",
                    "should be": "1, or less where gradients are clipped",
                },
                guess=f"{values[at]:.4g} times what it should be" + (f": looks like {name}" if name else ""),
            )

    def _divided_again(self, values: Floats, limits: Floats, ranks: int) -> Mask:
        """Clipping has another factor at every step; a division has the same."""
        found = np.zeros(len(values), np.bool_)
        wrong = {1 / ranks, 1 / ranks**2} - {1.0, 1 / self._expected.grad_acc_steps}
        for value in wrong:
            with np.errstate(invalid="ignore"):
                same = np.abs(values - value) <= limits + 1e-9
            # Twice in a row, with no step in between that has another one.
            twice = same[1:] & same[:-1]
            found[1:] |= twice
            found[:-1] |= twice
        return found

    def _factor_note(self) -> str:
        """What a constant factor is that is not wrong."""
        for members, factors in self._factors.items():
            values, limits = np.array(factors).T
            known = np.isfinite(values)
            if known.sum() < 2 or not (np.abs(values[known] - values[known][0]) <= limits[known] + 1e-9).all():
                continue
            value, steps = values[known][0], self._expected.grad_acc_steps
            if steps > 1 and abs(value - 1 / steps) <= limits[known][0]:
                return f"the program divides gradients by grad_acc_steps ({steps}) after the reduction"
            mean = 1.0 if members in self._divisors_known else 1 / len(members)
            if min(abs(value - 1), abs(value - mean)) > limits[known][0]:
                return f"at every step all gradients after are {value:.6g} times those before"
        return ""

    def _apart(self) -> Iterator[Violation]:
        """Groups of ranks with different factors at one step."""
        for step, factors in self._local[:1]:
            yield Violation(
                step=step,
                data_type=AFTER,
                tensor="",
                ranks=tuple(factors),
                stat="factor",
                values={f"rank {rank}": f"{value:.6g}" for rank, value in factors.items()},
                guess="each rank clips its part by a factor of its own: by the local norm instead of the global one?",
            )
        groups = [members for members in self._factors if members in self._divisors_known]
        if len(groups) < 2:
            return
        values = np.array([[value for value, _ in self._factors[members]] for members in groups])
        limits = np.array([[limit for _, limit in self._factors[members]] for members in groups])
        self._compared_factors = int(np.isfinite(values).sum())
        # A factor that is not known is no bound.
        low = np.fmax.reduce(values - limits, axis=0)
        high = np.fmin.reduce(values + limits, axis=0)
        with np.errstate(invalid="ignore"):
            apart = low > high
        if apart.any():
            at = int(apart.argmax())
            yield Violation(
                step=self._steps[at],
                data_type=AFTER,
                tensor="",
                ranks=tuple(sorted({self._expected.ranks[at] for members in groups for at in members})),
                stat="factor",
                values={
                    "ranks " + ", ".join(str(self._expected.ranks[one]) for one in members): f"{value:.6g}"
                    for members, value in zip(groups, values[:, at], strict=True)
                },
                guess="clipped by the local norm instead of the global one?",
            )


def _equations(own: Sequence[Sums], at: int, members: Sequence[int]) -> tuple[Floats, Floats, Floats]:
    """For each tensor the parts of the ranks, what they should add up to, and how exactly."""
    rows, expected, limits = [], [], []
    for sums in own:
        zeros = np.zeros(len(sums.tensors))
        parts = np.array([np.nan_to_num(sums.after[one][at]) if one in sums.after else zeros for one in members])
        good = np.isfinite(sums.expected[at]) & np.isfinite(sums.found[at])
        rows.append(parts.T[good])
        expected.append(sums.expected[at][good])
        limits.append(sums.limit[at][good])
    return np.concatenate(rows), np.concatenate(expected), np.concatenate(limits)


def _factor_text(one: _Broken) -> str:
    return f"{one.found / one.expected:.4g} times what it should be" if one.expected else ""
