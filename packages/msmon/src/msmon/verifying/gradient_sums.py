"""Sums of gradients before and after the reduction, with how far rounding can have moved them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from msmon.reading.index import Ints, TensorKey
from msmon.reading.statistics import Floats
from msmon.verifying.expectations import Expectations, Sum
from msmon.verifying.windows import Observed, Window, rows_by_tensor

BEFORE, AFTER = "grad_unreduced", "grad_reduced"

#: Units in the last place of the data type, in units of the standard deviation of a sum of rounding errors. Healthy
#: trainings reach 2 of it.
SAFETY = 16.0

_EPS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
#: The spacing of the smallest float16 numbers.
_TINY_HALF = 2.0**-24


@attrs.frozen(kw_only=True, eq=False)
class Sums:
    """Tensors that are summed over the same ranks. All arrays have the shape (steps, tensors)."""

    tensors: Sequence[TensorKey]
    members: Sequence[int]
    """Positions of the ranks summed over."""
    expected: Floats
    """The sum of all elements of the gradients before, divided as it should be; NaN where it is not known."""
    found: Floats
    """The sum of all elements of the gradient that the optimizer consumes."""
    limit: Floats
    """How far the two may lie apart."""
    own: Mapping[int, Floats]
    """Position of a rank -> the sum of all elements of its gradient before, divided alike."""
    after: Mapping[int, Floats]
    """Position of a rank -> the sum of all elements of the part of the reduced gradient that it holds."""
    whole: bool
    """Whether each rank holds all of the reduced gradient."""
    divisor_known: bool
    groups: Mapping[str, Sequence[int]]
    """Dimension of parallelism -> positions of the ranks of the group of the first member."""


@attrs.frozen(kw_only=True, eq=False)
class _Pattern:
    tensors: list[TensorKey]
    members: tuple[int, ...]
    summed: Sum
    eps: float
    tiny: float
    before: dict[int, Ints]
    """Position of a rank -> the tensors' elements there before the reduction."""
    holders: dict[int, Ints]
    """Position of a rank whose part counts -> its elements of each tensor."""
    whole: bool


class GradientSums:
    """Sums of the gradients of a run.

    Args:
        digits: significant digits of the statistics; None: all.
    """

    def __init__(self, expectations: Expectations, digits: int | None) -> None:
        self._expected = expectations
        self._rounding = 0.0 if digits is None else 0.5 * 10.0 ** (1 - digits)
        self._patterns: list[_Pattern] | None = None
        self._known: tuple[int, int] = (0, 0)
        self.reasons: dict[str, int] = {}
        """Why tensors cannot be looked at -> how many."""

    def of(self, window: Window) -> Iterator[Sums]:
        """The sums at these steps, one for each set of tensors that the same ranks sum up."""
        before, after = window.types.get(BEFORE), window.types.get(AFTER)
        if before is None or after is None or not before.has("mean") or not after.has("mean"):
            return
        size = _size_statistic(before)
        if size is None:
            return
        known = len(before.index.rows), len(after.index.rows)
        if self._patterns is None or known != self._known:
            self._patterns, self._known = self._find_patterns(before, after), known
        rows_before, rows_after = rows_by_tensor(before.index), rows_by_tensor(after.index)
        for pattern in self._patterns:
            columns = np.array([rows_after[tensor][0] for tensor in pattern.tensors])
            yield self._sums(pattern, before, after, [rows_before[t] for t in pattern.tensors], columns, size)

    def _find_patterns(self, before: Observed, after: Observed) -> list[_Pattern]:
        self.reasons = {}
        patterns: dict[tuple[object, ...], _Pattern] = {}
        rows_before, rows_after = rows_by_tensor(before.index), rows_by_tensor(after.index)
        for tensor in rows_after:
            if tensor not in rows_before:
                self._skip("of some tensors no gradient before the reduction was recorded")
                continue
            summed = self._expected.sum_of(tensor)
            if summed is None:
                self._skip("it is not known over which ranks the gradients are summed, or how")
                continue
            for label in sorted(set(summed.members) - {-1}):
                self._add(patterns, tensor, summed, label)
        return list(patterns.values())

    def _add(self, patterns: dict[tuple[object, ...], _Pattern], tensor: TensorKey, summed: Sum, label: int) -> None:
        members = tuple(at for at, one in enumerate(summed.members) if one == label)
        if self._expected.missing_from(summed, members[0]):
            self._skip("not all ranks that the gradients are summed over were recorded")
            return
        shared = self._expected.tensors[tensor]
        held = {self._expected.ranks[at] for at in shared}
        if any(rank not in held for ranks in summed.groups[members[0]].values() for rank in ranks):
            self._skip("of tied weights another pipeline stage has a gradient under another name")
            return
        parts: dict[str, tuple[int, int]] = {}
        holding = 0
        for at in members:
            shard = shared[at].entry.shard(AFTER)
            numel = summed.numel[at] if shard is None else shard.numel
            if numel:
                holding += 1
                parts.setdefault("" if shard is None else shard.part, (at, numel))
        holders = dict(parts.values())
        if sum(holders.values()) != summed.numel[members[0]]:
            self._skip("a part of the reduced gradient was not recorded")
            return
        whole = len(parts) == 1 and holding == len(members)
        if whole:
            # Each has all of it.
            holders = {at: summed.numel[at] for at in members}
        dtypes = {str(shared[at].entry.fields.get("dtype", "")) for at in members} | {summed.dtype}
        eps, tiny = (max(values) for values in zip(*map(precision_of, dtypes), strict=True))
        divisor = summed.divided_by[members[0]]
        key = members, tuple(holders), whole, divisor, eps, tiny
        pattern = patterns.setdefault(
            key,
            _Pattern(
                tensors=[], members=members, summed=summed, eps=eps, tiny=tiny, before={}, holders={}, whole=whole
            ),
        )
        pattern.tensors.append(tensor)
        for at in members:
            pattern.before[at] = np.append(pattern.before.get(at, np.zeros(0, np.int64)), summed.numel[at])
        for at, numel in holders.items():
            pattern.holders[at] = np.append(pattern.holders.get(at, np.zeros(0, np.int64)), numel)

    def _skip(self, reason: str) -> None:
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def _sums(
        self, pattern: _Pattern, before: Observed, after: Observed, rows: list[list[int]], columns: Ints, size: str
    ) -> Sums:
        summed, members = pattern.summed, pattern.members
        divisor = summed.divided_by[members[0]]
        scale = 1.0 / (divisor or 1.0)
        own: dict[int, Floats] = {}
        shape = (len(before.blocks[0].values[0]), len(pattern.tensors))
        squares, digits = np.zeros(shape), np.zeros(shape)
        numel = np.maximum(pattern.before[members[0]], 1)
        for at in members:
            mean, length = (last_micro_step(before, at, stat, rows) for stat in ("mean", size))
            own[at] = mean * pattern.before[at] * scale
            length = length * np.sqrt(pattern.before[at]) if size != "norm" else length
            squares += (length * scale) ** 2
            digits += np.abs(own[at])
        expected = np.sum([own[at] for at in members], axis=0)
        found = np.full(shape, np.nan)
        parts: dict[int, Floats] = {}
        for at, held in pattern.holders.items():
            present = after.present(at)[:, columns]
            parts[at] = np.where(present, after.values(at, "mean")[:, columns] * held, np.nan)
            if pattern.whole:
                found = np.where(np.isnan(found), parts[at], found)
        if not pattern.whole:
            # A part without elements has no row, and one of NaN makes the whole NaN.
            found = np.sum([np.where(pattern.holders[at] > 0, part, 0.0) for at, part in parts.items()], axis=0)
            digits += np.sum([np.abs(np.nan_to_num(part)) for part in parts.values()], axis=0)
        else:
            digits += np.abs(np.nan_to_num(found))
        limit = SAFETY * pattern.eps * np.sqrt(len(members) * squares)
        limit += self._rounding * digits + 1e-13 * np.sqrt(squares * numel)
        limit += pattern.tiny * np.sqrt(numel) * len(members)
        return Sums(
            tensors=pattern.tensors,
            members=members,
            expected=expected,
            found=found,
            limit=limit,
            own=own,
            after=parts,
            whole=pattern.whole,
            divisor_known=divisor is not None,
            groups={
                name: [self._expected.ranks.index(rank) for rank in ranks]
                for name, ranks in summed.groups[members[0]].items()
            },
        )


def last_micro_step(observed: Observed, at: int, stat: str, rows: list[list[int]]) -> Floats:
    """A statistic of each tensor's last micro-step: there the gradient is the sum over all of them."""
    values, present = observed.values(at, stat), observed.present(at)
    found = np.full((len(values), len(rows)), np.nan)
    for depth in range(max(map(len, rows))):
        chosen = np.array([own[min(depth, len(own) - 1)] for own in rows])
        found = np.where(present[:, chosen], values[:, chosen], found)
    return found


def _size_statistic(observed: Observed) -> str | None:
    return next((stat for stat in ("norm", "rms", "absmax") if observed.has(stat)), None)


def precision_of(dtype: str) -> tuple[float, float]:
    """Half a unit in the last place of 1, and the spacing of the smallest numbers where that matters.

    >>> precision_of("torch.bfloat16"), precision_of("torch.float16"), precision_of("")
    ((0.00390625, 0.0), (0.00048828125, 5.960464477539063e-08), (0.0, 0.0))
    """
    name = dtype.rpartition(".")[2].lower()
    if name.startswith("float8"):
        return 2.0**-3, 2.0**-9
    return _EPS.get(name, _EPS["float32"] if name else 0.0), _TINY_HALF if name == "float16" else 0.0
