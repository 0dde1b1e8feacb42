"""Adam's moments are the last ones and the gradient, weighted: nothing else changes them between two updates.

Both are linear: the sum of the first moment follows from the gradient's sum, that of the second from its norm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import attrs
import numpy as np

from msmon.reading.blocks import Block
from msmon.reading.index import TensorKey
from msmon.reading.statistics import Floats
from msmon.verifying.expectations import Expectations
from msmon.verifying.gradient_sums import precision_of
from msmon.verifying.report import Outcome, Violation
from msmon.verifying.windows import Observed, Window

NAME = "moments"
TITLE = "Adam's moments are those before and the gradient, weighted by one factor"

GRADIENT = "grad_reduced"
MOMENTS = ("exp_avg", "exp_avg_sq")

#: As for sums of gradients; healthy trainings reach a tenth of it.
_SAFETY = 4.0
#: Sums whose rounding is less than this share of what tells the factor do tell it.
_TELLING = 0.01
#: If it does not hold of more than this share, the optimizer is another one, or adds something to the gradient.
_MOSTLY = 0.1

_CORRUPTED = (
    "changed between two steps on this rank alone: hardware suspect (silent data corruption), or a write by mistake"
)
_LOADED = "moments of one rank were changed between two steps: something was loaded or written there only"
_MORE = "what the optimizer adds to the moments is not the gradient alone"


@attrs.frozen(kw_only=True)
class _Step:
    """A moment of a tensor on a rank, that does not follow from the one before."""

    step: int
    at: int
    tensor: TensorKey
    found: float
    should: float


class Moments:
    """Compares sums of moments with what follows from those of the step before and the gradient."""

    data_types = (GRADIENT, *MOMENTS)

    def __init__(self, expectations: Expectations, digits: int | None) -> None:
        self._expected = expectations
        self._rounded = digits is not None
        self._factors: dict[str, float] = {}
        """Moment -> its decay."""
        self._last: tuple[int, dict[str, Observed]] | None = None
        self._checked: Counter[str] = Counter()
        self._broken: dict[str, list[_Step]] = {}
        self._reason = f"{GRADIENT} and Adam's moments were not both recorded (wg_distribution, mv_distribution)"

    def look(self, window: Window) -> None:
        """See these steps."""
        gradient = window.types.get(GRADIENT)
        moments = {name: window.types[name] for name in MOMENTS if name in window.types}
        if gradient is None or not moments:
            return
        if self._rounded:
            self._reason = "the recorded statistics are rounded: that needs the Parquet store"
            return
        lacking = [stat for stat in ("mean", "norm") if not all(o.has(stat) for o in (gradient, *moments.values()))]
        if lacking:
            self._reason = f"{' and '.join(lacking)} not in ops"
            return
        steps, types = window.steps, {GRADIENT: gradient, **moments}
        if self._last is not None:
            steps = np.concatenate([[self._last[0]], steps])
            types = {name: _joined(self._last[1].get(name), one) for name, one in types.items()}
        for name in moments:
            self._follow(name, types[name], types[GRADIENT], np.asarray(steps))
        self._last = int(window.steps[-1]), {name: _last_step(one) for name, one in types.items()}

    def _follow(self, name: str, moments: Observed, gradient: Observed, steps: np.typing.NDArray[np.int64]) -> None:
        gradients = {row.tensor: number for row, number in gradient.index.rows.items()}
        pairs = [(row.tensor, number) for row, number in moments.index.rows.items() if row.tensor in gradients]
        if not pairs or len(steps) < 2:
            return
        own = np.array([number for _, number in pairs])
        of_gradient = np.array([gradients[tensor] for tensor, _ in pairs])
        found = []
        for at in range(len(self._expected.ranks)):
            numel, eps = self._sizes(name, at, [tensor for tensor, _ in pairs])
            there = moments.present(at)[:, own] & gradient.present(at)[:, of_gradient]
            both = there[1:] & there[:-1] & (np.diff(steps) == 1)[:, None]
            total = moments.values(at, "mean")[:, own] * numel
            norm, length = moments.values(at, "norm")[:, own], gradient.values(at, "norm")[:, of_gradient]
            if name == "exp_avg":
                added = gradient.values(at, "mean")[:, of_gradient] * numel
            else:
                # Of squares each is rounded, and the longest of the errors is as long as they are.
                added = length**2
                length = added
            sizes = norm[1:] + norm[:-1] + length[:-1]
            sums = np.abs(total[1:]) + np.abs(total[:-1]) + np.abs(added[:-1])
            found.append((at, both, total, added[:-1], _SAFETY * eps * sizes + eps * sums))
        factor = self._factors.get(name) or _factor(found)
        if factor is None:
            return
        self._factors[name] = factor
        for at, both, total, added, limit in found:
            should = factor * total[:-1] + (1 - factor) * added
            with np.errstate(invalid="ignore"):
                known = both & np.isfinite(should) & np.isfinite(total[1:])
                broken = known & (np.abs(total[1:] - should) > limit)
            self._checked[name] += int(known.sum())
            for step, column in zip(*np.nonzero(broken), strict=True):
                one = _Step(
                    step=int(steps[step + 1]),
                    at=at,
                    tensor=pairs[column][0],
                    found=float(total[step + 1, column]),
                    should=float(should[step, column]),
                )
                self._broken.setdefault(name, []).append(one)

    def _sizes(self, name: str, at: int, tensors: list[TensorKey]) -> tuple[Floats, Floats]:
        """Elements of this rank's part of each tensor, and how exact one of them is."""
        numel, eps = [], []
        for tensor in tensors:
            shared = self._expected.tensors.get(tensor, {}).get(at)
            shard = None if shared is None else shared.entry.shard(name)
            numel.append(1 if shared is None else shared.entry.numel if shard is None else shard.numel)
            eps.append(precision_of("" if shared is None else str(shared.entry.fields.get("dtype", "")))[0])
        # Optimizers keep moments in single precision at best.
        return np.array(numel, np.float64), np.maximum(eps, precision_of("float32")[0])

    # What was found

    def _violations(self) -> Iterator[Violation]:
        for name, broken in self._broken.items():
            if len(broken) > _MOSTLY * self._checked[name]:
                continue
            times = Counter((one.at, one.tensor) for one in broken)
            at_step: dict[int, list[_Step]] = {}
            for one in broken:
                at_step.setdefault(one.step, []).append(one)
            for step, ones in at_step.items():
                # What is so on all ranks alike, or again and again, is the program's purpose, or a step was skipped.
                if len(ones) > 1 and len({one.at for one in ones}) == len(self._expected.ranks):
                    continue
                for one in ones:
                    if times[one.at, one.tensor] > 1:
                        continue
                    rank = self._expected.ranks[one.at]
                    yield Violation(
                        step=step,
                        data_type=name,
                        tensor=one.tensor.label(),
                        ranks=(rank,),
                        minority=(rank,),
                        stat="sum of all elements",
                        values={"before this update": f"{one.found:.9g}", "should be": f"{one.should:.9g}"},
                        guess=_CORRUPTED if len(ones) == 1 else _LOADED,
                    )

    def changes(self) -> dict[str, dict[tuple[TensorKey, int], tuple[int, ...]]]:
        """Moment -> (tensor, step) -> the ranks on which it is not what follows."""
        found: dict[str, dict[tuple[TensorKey, int], tuple[int, ...]]] = {}
        for name, broken in self._broken.items():
            if len(broken) <= _MOSTLY * self._checked[name]:
                own = found.setdefault(name, {})
                for one in broken:
                    own[one.tensor, one.step] = (
                        *own.get((one.tensor, one.step), ()),
                        self._expected.ranks[one.at],
                    )
        return found

    def outcome(self) -> Outcome:
        """Whether it holds."""
        known = {name for name, count in self._checked.items() if len(self._broken.get(name, ())) <= _MOSTLY * count}
        if not known:
            return Outcome(invariant=NAME, title=TITLE, reason=_MORE if self._checked else self._reason)
        violations = sorted(self._violations(), key=lambda one: one.step)
        return Outcome(
            invariant=NAME,
            title=TITLE,
            comparisons=sum(self._checked[name] for name in known),
            how="sums of moments with those of the step before and of gradients",
            violations=violations,
        )


def _factor(found: list[tuple[int, np.typing.NDArray[np.bool_], Floats, Floats, Floats]]) -> float | None:
    """The decay that most agree on; None where nothing tells it."""
    ratios, weights = [], []
    for _, both, total, added, limit in found:
        with np.errstate(invalid="ignore", divide="ignore"):
            rest = total[:-1] - added
            ratio, exact = (total[1:] - added) / rest, limit / np.abs(rest)
        telling = both & np.isfinite(ratio) & (exact < _TELLING)
        ratios.append(ratio[telling])
        weights.append(1 / np.maximum(exact[telling], 1e-12))
    ratio, weight = np.concatenate(ratios), np.concatenate(weights)
    if not len(ratio):
        return None
    order = np.argsort(ratio, kind="stable")
    heaped = np.cumsum(weight[order])
    # Programs are given short numbers.
    return round(float(ratio[order[int(np.searchsorted(heaped, heaped[-1] / 2))]]), 5)


def _joined(last: Observed | None, now: Observed) -> Observed:
    """The last step of the window before in front of this one; rows that are new were not there."""
    blocks = []
    for at, one in enumerate(now.blocks):
        values = np.full((one.values.shape[0], 1, one.values.shape[2]), np.nan, one.values.dtype)
        present = np.zeros((one.present.shape[0], 1, one.present.shape[2]), np.bool_)
        if last is not None and last.index.stats == now.index.stats:
            rows = last.blocks[at].values.shape[2]
            values[:, :, :rows], present[:, :, :rows] = last.blocks[at].values, last.blocks[at].present
        blocks.append(
            Block(
                first=one.first,
                values=np.concatenate([values, one.values], axis=1),
                present=np.concatenate([present, one.present], axis=1),
            )
        )
    return attrs.evolve(now, blocks=tuple(blocks))


def _last_step(observed: Observed) -> Observed:
    """Not a view, which would keep the whole window."""
    blocks = tuple(
        Block(first=one.first, values=one.values[:, -1:].copy(), present=one.present[:, -1:].copy())
        for one in observed.blocks
    )
    return attrs.evolve(observed, blocks=blocks)
