"""What nobody touches stays, and what has a gradient moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from msmon.reading.blocks import Block
from msmon.reading.index import Ints, TensorKey
from msmon.reading.run import Run
from msmon.reading.statistics import Floats
from msmon.verifying.equality import Equality, value_texts
from msmon.verifying.expectations import Expectations
from msmon.verifying.report import Outcome, Violation
from msmon.verifying.windows import Mask, Observed, Window
from msmon_io import FINGERPRINT

NAME = "untouched"
TITLE = "Weights stay between two steps and without a gradient; with one they move"

ORIGIN, UPDATED, GRADIENT = "param_origin", "param_updated", "grad_reduced"
ADAM = ("exp_avg", "exp_avg_sq")

#: So many steps in a row a weight has to stand still before it counts as one that nobody updates.
_STANDING = 3
#: A gradient that is smaller, relative to the median of all tensors, may move nothing that float32 can hold.
_SMALL = 1e-3

_CHANGED = "changed between two steps on this rank alone"
_CORRUPTED = f"{_CHANGED}: hardware suspect (silent data corruption), or a write by mistake"
_LOADED = f"{_CHANGED}, and others with it: something was loaded or written there only"


@attrs.frozen(kw_only=True)
class _Change:
    """The first time that a weight was changed between two steps."""

    step: int
    ranks: tuple[int, ...]
    """Positions of the ranks."""
    values: Mapping[int, tuple[str, str, str]]
    """Position -> statistic, value before, value after."""


class Untouched:
    """Compares weights before and after updates, and gradients with both."""

    data_types = (ORIGIN, UPDATED, GRADIENT, *ADAM)

    def __init__(self, run: Run, expectations: Expectations, digits: int | None) -> None:
        self._expected = expectations
        self._rounded = digits is not None
        self._equality = Equality()
        self._without_gradient = [_named_without_gradient(rank.coverage) for rank in run.ranks.values()]
        self._changes: dict[TensorKey, _Change] = {}
        self._times: Counter[TensorKey] = Counter()
        self._at_step: Counter[tuple[int, int]] = Counter()
        """(step, position of a rank) -> how many weights were changed before it."""
        self._last: tuple[int, Observed] | None = None
        self._moved: dict[tuple[int, TensorKey], tuple[int, int, int, int]] = {}
        """(rank, tensor) -> steps with a gradient, at how many it moved, standing still since, first such step."""
        self._alone: dict[tuple[int, TensorKey], tuple[int, int]] = {}
        """(rank, tensor) -> the first step at which it moved without a gradient, and how often it stood still."""
        self._held: Counter[int] = Counter()
        """Position of a rank -> of how many weights it has a part."""
        self._stopped: dict[tuple[TensorKey, int], tuple[int, ...]] = {}
        self._steps = 0
        self._looked = False
        self._cannot_move = ""

    def look(self, window: Window) -> None:
        """See these steps."""
        self._steps += len(window.steps)
        origin, updated = window.types.get(ORIGIN), window.types.get(UPDATED)
        if origin is None or updated is None:
            return
        self._looked = True
        rows = {row.tensor: number for row, number in updated.index.rows.items()}
        tensors = [row.tensor for row in origin.index.rows if row.tensor in rows]
        before = np.array([number for row, number in origin.index.rows.items() if row.tensor in rows], np.int64)
        after = np.array([rows[tensor] for tensor in tensors], np.int64)
        if not tensors:
            return
        for at in range(len(self._expected.ranks)):
            self._held[at] = max(self._held[at], int(origin.present(at)[:, before].any(axis=0).sum()))
        joined = np.diff(window.steps) == 1
        self._between(
            _part(updated, slice(0, -1)),
            _part(origin, slice(1, None)),
            tensors,
            after,
            before,
            window.steps[1:],
            joined,
        )
        if self._last is not None:
            step, last = self._last
            first = window.steps[:1]
            self._between(
                last, _part(origin, slice(0, 1)), tensors, after, before, first, np.asarray(first == step + 1)
            )
        self._last = int(window.steps[-1]), _copy(_part(updated, slice(-1, None)))
        gradient = window.types.get(GRADIENT)
        if gradient is not None:
            ranks = range(len(self._expected.ranks))
            found = [self._with_gradient(window, at, origin, updated, gradient, tensors, before, after) for at in ranks]
            self._stopped_partly(window, tensors, found)

    def _between(
        self,
        updated: Observed,
        origin: Observed,
        tensors: Sequence[TensorKey],
        after: Ints,
        before: Ints,
        steps: Ints,
        joined: Mask,
    ) -> None:
        if not joined.any() or after.max(initial=-1) >= updated.blocks[0].values.shape[2]:
            return
        changed = np.array(
            [
                self._equality.unequal(updated, at, origin, at, after, before) & joined[:, None]
                for at in range(len(self._expected.ranks))
            ]
        )
        for step, column in zip(*np.nonzero(changed.any(axis=0)), strict=True):
            tensor, ranks = tensors[column], np.flatnonzero(changed[:, step, column]).tolist()
            self._times[tensor] += 1
            for at in ranks:
                self._at_step[int(steps[step]), at] += 1
            if tensor not in self._changes:
                self._changes[tensor] = _Change(
                    step=int(steps[step]),
                    ranks=tuple(ranks),
                    values={
                        at: _two_values(updated, origin, at, int(step), int(after[column]), int(before[column]))
                        for at in ranks
                    },
                )

    def _with_gradient(
        self,
        window: Window,
        at: int,
        origin: Observed,
        updated: Observed,
        gradient: Observed,
        tensors: Sequence[TensorKey],
        before: Ints,
        after: Ints,
    ) -> tuple[Mask, Mask]:
        """Where a weight should move, and where it does."""
        nowhere = np.zeros((len(window.steps), len(tensors)), np.bool_)
        rows = {row.tensor: number for row, number in gradient.index.rows.items()}
        columns = np.array([rows.get(tensor, -1) for tensor in tensors])
        wrote = gradient.present(at)
        # Ranks that leave gradients to another one say nothing.
        if not wrote.any():
            return nowhere, nowhere
        known = columns >= 0
        has = nowhere.copy()
        has[:, known] = wrote[:, columns[known]]
        there = origin.present(at)[:, before] & updated.present(at)[:, after]
        moved = self._equality.unequal(origin, at, updated, at, before, after)
        self._moving_alone(window, at, tensors, there & ~has & np.asarray(wrote.any(axis=1))[:, None], moved, has)
        exact = not self._rounded or (origin.has(FINGERPRINT) and updated.has(FINGERPRINT))
        if not exact or not gradient.has("norm"):
            self._cannot_move = (
                "whether weights with a gradient move was not checked: that needs "
                + ("norm" if exact else "fingerprint")
                + (" in ops" if exact else " in ops, or the Parquet store, since rounded statistics hide small updates")
            )
            return nowhere, nowhere
        sizes = np.full(has.shape, np.nan)
        numel = np.array([self._numel(at, tensor) for tensor in tensors])
        sizes[:, known] = gradient.values(at, "norm")[:, columns[known]] / np.sqrt(numel[known])
        return self._standing(window, at, tensors, there & has, moved, sizes), moved

    def _stopped_partly(self, window: Window, tensors: Sequence[TensorKey], found: Sequence[tuple[Mask, Mask]]) -> None:
        """Note the weights that stand still on some ranks and move on others."""
        stands = np.array([should & ~moved for should, moved in found])
        partly = stands.any(axis=0) & np.any([should & moved for should, moved in found], axis=0)
        for step, column in zip(*np.nonzero(partly), strict=True):
            ranks = np.flatnonzero(stands[:, step, column])
            self._stopped[tensors[column], int(window.steps[step])] = tuple(self._expected.ranks[at] for at in ranks)

    def _telling(self, window: Window, at: int, tensors: Sequence[TensorKey]) -> Mask:
        """Tensors whose updates would show: Adam makes all as large, and single precision holds them."""
        adam = {row.tensor for name in ADAM if name in window.types for row in window.types[name].index.rows}
        single = np.array([self._is_single(at, tensor) for tensor in tensors])
        return np.asarray(single & np.array([tensor in adam for tensor in tensors]))

    def _is_single(self, at: int, tensor: TensorKey) -> bool:
        shared = self._expected.tensors.get(tensor, {}).get(at)
        return shared is not None and str(shared.entry.fields.get("dtype")).lower().endswith(("float32", "float64"))

    def _numel(self, at: int, tensor: TensorKey) -> int:
        shared = self._expected.tensors.get(tensor, {}).get(at)
        if shared is None:
            return 1
        shard = shared.entry.shard(GRADIENT)
        return max(shared.entry.numel if shard is None else shard.numel, 1)

    def _moving_alone(
        self, window: Window, at: int, tensors: Sequence[TensorKey], alone: Mask, moved: Mask, has: Mask
    ) -> None:
        for column in np.flatnonzero(alone.any(axis=0)).tolist():
            tensor = tensors[column]
            if not has[:, column].any() and tensor.name not in self._without_gradient[at]:
                continue
            here = np.flatnonzero(alone[:, column])
            moves = here[moved[here, column]]
            first, stood = self._alone.get((at, tensor), (-1, 0))
            if first < 0 and len(moves):
                first = int(window.steps[moves[0]])
            self._alone[at, tensor] = first, stood + len(here) - len(moves)

    def _standing(
        self, window: Window, at: int, tensors: Sequence[TensorKey], there: Mask, moved: Mask, sizes: Floats
    ) -> Mask:
        telling = self._telling(window, at, tensors)
        with np.errstate(invalid="ignore"):
            median = np.nanmedian(np.where(there, sizes, np.nan), axis=1) if there.any() else np.zeros(len(sizes))
            usable = there & telling & np.isfinite(sizes) & (sizes > _SMALL * median[:, None])
        count = np.maximum(there.sum(axis=1), 1)
        # Where most stand still the learning rate is 0.
        usable &= ((moved & there).sum(axis=1) > count / 2)[:, None]
        for column in np.flatnonzero(usable.any(axis=0)).tolist():
            place = at, tensors[column]
            steps, moves, standing, first = self._moved.get(place, (0, 0, 0, -1))
            here = np.flatnonzero(usable[:, column])
            now = moved[here, column]
            if now.any():
                last = int(np.flatnonzero(now)[-1])
                rest = here[last + 1 :]
                standing, first = len(rest), int(window.steps[rest[0]]) if len(rest) else -1
            else:
                first = int(window.steps[here[0]]) if not standing else first
                standing += len(here)
            self._moved[place] = steps + len(here), moves + int(now.sum()), standing, first
        return usable

    # What was found

    def changes(self) -> dict[tuple[TensorKey, int], tuple[int, ...]]:
        """(tensor, step) -> the ranks on which it was changed between the step before and this one."""
        ranks = self._expected.ranks
        return {(t, one.step): tuple(ranks[at] for at in one.ranks) for t, one in self._changes.items()}

    def stopped(self) -> dict[tuple[TensorKey, int], tuple[int, ...]]:
        """(tensor, step) -> the ranks whose update did not move it, where that of others did."""
        return self._stopped

    def outcome(self) -> Outcome:
        """Whether it holds."""
        if not self._equality.comparisons:
            reason = "param_origin and param_updated not recorded (param_distribution)"
            if self._looked:
                reason = "no two steps in a row were recorded, and no gradients"
            return Outcome(invariant=NAME, title=TITLE, reason=reason)
        violations = sorted(
            [*self._wrongly_changed(), *self._moved_alone(), *self._stood_still()], key=lambda v: v.step
        )
        return Outcome(
            invariant=NAME,
            title=TITLE,
            comparisons=self._equality.comparisons,
            how=self._equality.how,
            reason=self._cannot_move,
            violations=violations,
            notes=list(self._notes()),
        )

    def _is_wrong(self, tensor: TensorKey, change: _Change) -> bool:
        """Whether a change is none that a program makes on purpose, on all ranks alike or again and again."""
        exact, _ = self._expected.equal(tensor, ORIGIN)
        holders = {at for at, label in enumerate(exact) if label >= 0}
        mates = {at for at in holders for other in change.ranks if exact[at] == exact[other]}
        if mates - set(change.ranks):
            return True
        # Nobody holds the same: then one tensor at one step, of many, or most of a rank, and nothing of others.
        alone = all(self._at_step[change.step, at] == 1 for at in change.ranks)
        once = len(change.ranks) == 1 and self._times[tensor] == 1 and self._steps > _STANDING
        return once and (alone or self._loaded(change))

    def _loaded(self, change: _Change) -> bool:
        """Whether most weights of a rank changed at a step, and none of any other rank."""
        (at,) = change.ranks
        others = [self._at_step[change.step, one] for one in range(len(self._expected.ranks)) if one != at]
        return bool(others) and not any(others) and self._at_step[change.step, at] > self._held[at] / 2

    def _wrongly_changed(self) -> Iterator[Violation]:
        for tensor, change in self._changes.items():
            if not self._is_wrong(tensor, change):
                continue
            ranks = tuple(self._expected.ranks[at] for at in change.ranks)
            stat, before, after = change.values[change.ranks[0]]
            alone = all(self._at_step[change.step, at] == 1 for at in change.ranks)
            yield Violation(
                step=change.step,
                data_type=ORIGIN,
                tensor=tensor.label(),
                ranks=ranks,
                minority=ranks,
                stat=stat,
                values={"before this step": after, "after the step before": before},
                guess=_CORRUPTED if alone else _LOADED,
            )

    def _moved_alone(self) -> Iterator[Violation]:
        for (at, tensor), (step, stood) in self._alone.items():
            # One that moves whenever it has no gradient is an optimizer that decays weights in any case.
            if step >= 0 and stood:
                rank = self._expected.ranks[at]
                yield Violation(
                    step=step,
                    data_type=UPDATED,
                    tensor=tensor.label(),
                    ranks=(rank,),
                    minority=(rank,),
                    values={"weight": "changed by the update", "gradient": "none"},
                    guess="moves without a gradient, and did not at other steps",
                )

    def _stood_still(self) -> Iterator[Violation]:
        for (at, tensor), (steps, moves, standing, first) in self._moved.items():
            if standing < _STANDING:
                continue
            rank = self._expected.ranks[at]
            never = f"nobody updates it: it has a gradient at {steps} steps and never moves, while others do"
            since = f"it moved at {moves} steps, and has a gradient and stands still since"
            yield Violation(
                step=first,
                data_type=UPDATED,
                tensor=tensor.label(),
                ranks=(rank,),
                minority=(rank,),
                values={"weight": "as before the update", "gradient": "not zero"},
                guess=since if moves else never,
            )

    def _notes(self) -> Iterator[str]:
        on_purpose = [tensor for tensor, change in self._changes.items() if not self._is_wrong(tensor, change)]
        if on_purpose:
            names = ", ".join(tensor.label() for tensor in on_purpose[:3])
            first = min(self._changes[tensor].step for tensor in on_purpose)
            yield (
                f"the program itself changes {len(on_purpose):,} weights between steps, first before step {first} "
                f"({names}{', ...' if len(on_purpose) > 3 else ''}); taken for its purpose"
            )


def _named_without_gradient(coverage: Mapping[str, object]) -> frozenset[str]:
    missing = coverage.get("missing")
    entries = missing if isinstance(missing, list) else []
    return frozenset(
        str(one.get("name"))
        for one in entries
        if isinstance(one, Mapping) and one.get("data_type") == GRADIENT and one.get("reason") == "no gradient"
    )


def _part(observed: Observed, steps: slice) -> Observed:
    blocks = tuple(
        Block(first=one.first, values=one.values[:, steps], present=one.present[:, steps]) for one in observed.blocks
    )
    return attrs.evolve(observed, blocks=blocks)


def _copy(observed: Observed) -> Observed:
    """Not a view, which would keep the whole window."""
    blocks = tuple(
        Block(first=one.first, values=one.values.copy(), present=one.present.copy()) for one in observed.blocks
    )
    return attrs.evolve(observed, blocks=blocks)


def _two_values(updated: Observed, origin: Observed, at: int, step: int, row: int, other: int) -> tuple[str, str, str]:
    stats = [updated.index.stats[number] for number in updated.numbers()]
    stats = [stat for stat in ("norm", *stats) if origin.has(stat) and updated.has(stat)]
    before = value_texts(updated, at, step, row, [*stats, FINGERPRINT])
    after = value_texts(origin, at, step, other, [*stats, FINGERPRINT])
    stat = next((one for one in before if before[one] != after.get(one)), stats[0])
    return stat, before[stat], after.get(stat, "?")
