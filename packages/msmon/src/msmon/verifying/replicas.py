"""Ranks that hold the same tensor hold the same values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

import attrs
import numpy as np

from msmon.reading.index import Index, Ints, TensorKey
from msmon.reading.run import execution_position
from msmon.verifying.equality import Equality, common_statistics, different, value_texts
from msmon.verifying.expectations import Expectations
from msmon.verifying.report import Outcome, Violation, ranks_in_words
from msmon.verifying.windows import Observed, Window, micro_step_of, row_keys
from msmon_io import FINGERPRINT

NAME = "replicas"
TITLE = "Ranks that hold the same tensor hold the same values"
DATA_TYPES = ("param_origin", "grad_reduced", "exp_avg", "exp_avg_sq", "param_updated")
"""Not `state`: optimizers that share out their work keep there what only one rank needs."""

#: Of ranks that compute the same values each for itself, how far norms may lie apart: kernels need not add up in the
#: same order twice.
APART, APART_HALF = 1e-3, 0.1

_DIFFERENT_START = "different from the first recorded step on: other seeds, or a checkpoint that not all ranks loaded"
_CORRUPTED = "hardware suspect (silent data corruption): one tensor of one rank alone, and nothing else differed"
_LOADED = "weights of one rank were changed between two steps: something was loaded or written there only"
_NOT_REDUCED = "gradients differ after the reduction: it was skipped, or not made over all ranks"
_UPDATED = (
    "other values came out of equal gradients and equal weights: the optimizers are not set up alike, or hardware"
)
_GRADIENTS_UNKNOWN = "after this update; whether the gradients were equal is not known, since not all ranks wrote them"
_APART = "replicas that are computed on each rank came apart: a gradient that is not reduced over the group?"
_TIE = "there are two, and nothing else tells which of them is wrong"

Changes = Mapping[tuple[TensorKey, int], Collection[int]]
"""(tensor, step) -> ranks."""


@attrs.frozen(kw_only=True)
class _Found:
    step: int
    data_type: str
    row: int
    label: str
    tensor: TensorKey
    micro_step: int | None
    groups: Sequence[Sequence[int]]
    """Ranks with equal values, the largest group first."""
    stat: str
    values: Mapping[int, str]
    """First rank of each group -> its value."""
    computed: bool = False


class Replicas:
    """The first step at which replicas of a tensor differ."""

    data_types = DATA_TYPES

    def __init__(self, expectations: Expectations) -> None:
        self._expected = expectations
        self._equality = Equality()
        self._found: dict[tuple[str, int, str], _Found] = {}
        self._classes: dict[str, tuple[int, list[tuple[Ints, list[Ints], list[Ints]]]]] = {}
        self._compared: set[str] = set()
        """Data types that two ranks wrote."""
        self._first_step: int | None = None
        self._evidence: Mapping[str, Changes] = {}

    def look(self, window: Window) -> None:
        """Compare the replicas of these steps."""
        if self._first_step is None and len(window.steps):
            self._first_step = int(window.steps[0])
        for data_type in DATA_TYPES:
            observed = window.types.get(data_type)
            if observed is None:
                continue
            for rows, exact, computed in self._patterns(observed.index):
                for group in exact:
                    self._compare(window, observed, rows, group)
                for group in computed:
                    self._compare_computed(window, observed, rows, group)
        self._compare_tied(window)

    def _patterns(self, index: Index) -> list[tuple[Ints, list[Ints], list[Ints]]]:
        """Rows that the same ranks hold: the rows, groups of ranks with the same bits, and of such that compute."""
        known = self._classes.get(index.data_type)
        if known is None or known[0] != len(index.rows):
            exact, computed = self._expected.class_rows(index)
            both = np.concatenate([exact, computed])
            patterns, of_row = np.unique(both, axis=1, return_inverse=True)
            found = []
            for number in range(patterns.shape[1]):
                rows = np.flatnonzero(of_row.reshape(-1) == number)
                own, wider = np.split(patterns[:, number], 2)
                groups = _groups(own)
                # One of each group with the same bits stands for it.
                single = np.full(len(own), -1)
                for group in groups:
                    single[min(group)] = wider[min(group)]
                found.append((rows, [g for g in groups if len(g) > 1], [g for g in _groups(single) if len(g) > 1]))
            known = self._classes[index.data_type] = len(index.rows), found
        return known[1]

    def _compare(self, window: Window, observed: Observed, rows: Ints, group: Ints) -> None:
        chosen: Ints | slice = slice(None) if len(rows) == len(observed.index.rows) else rows
        broken = np.zeros((len(window.steps), len(rows)), np.bool_)
        before = self._equality.comparisons
        for at in group[1:].tolist():
            broken |= self._equality.unequal(observed, int(group[0]), observed, at, chosen)
        if self._equality.comparisons > before:
            self._compared.add(observed.index.data_type)
        self._note(window, observed, rows, group, broken)

    def _compare_computed(self, window: Window, observed: Observed, rows: Ints, group: Ints) -> None:
        if not observed.has("norm"):
            return
        reference = observed.values(int(group[0]), "norm")[:, rows]
        broken = np.zeros(reference.shape, np.bool_)
        keys = row_keys(observed.index)
        limit = np.array([self._limit(keys[row].tensor, observed.index.data_type) for row in rows.tolist()])
        for at in group[1:].tolist():
            values = observed.values(at, "norm")[:, rows]
            both = observed.present(int(group[0]))[:, rows] & observed.present(at)[:, rows]
            with np.errstate(invalid="ignore"):
                broken |= both & (np.abs(values - reference) > limit * np.maximum(np.abs(values), np.abs(reference)))
            self._equality.by_statistics += int(both.sum())
        self._note(window, observed, rows, group, broken, computed=True)

    def _limit(self, tensor: TensorKey, data_type: str) -> float:
        shared = self._expected.tensors.get(self._expected.parameter(tensor, data_type), {})
        dtype = next((str(one.entry.fields.get("dtype")) for one in shared.values()), "")
        return APART_HALF if "16" in dtype or "8" in dtype else APART

    def _note(
        self,
        window: Window,
        observed: Observed,
        rows: Ints,
        group: Ints,
        broken: np.typing.NDArray[np.bool_],
        *,
        computed: bool = False,
    ) -> None:
        keys = row_keys(observed.index) if broken.any() else []
        for column in np.flatnonzero(broken.any(axis=0)).tolist():
            row, step = int(rows[column]), int(broken[:, column].argmax())
            key = keys[row]
            place = observed.index.data_type, row, ",".join(map(str, group.tolist()))
            if place in self._found:
                continue
            groups, stat = _equal_groups(observed, group.tolist(), step, row, computed=computed)
            texts = {one[0]: value_texts(observed, one[0], step, row, [stat]).get(stat, "?") for one in groups}
            self._found[place] = _Found(
                step=int(window.steps[step]),
                data_type=observed.index.data_type,
                row=row,
                label=key.tensor.label(),
                tensor=key.tensor,
                micro_step=micro_step_of(key),
                groups=[[self._expected.ranks[at] for at in one] for one in groups],
                stat=stat,
                values={self._expected.ranks[at]: text for at, text in texts.items()},
                computed=computed,
            )

    def _compare_tied(self, window: Window) -> None:
        for (at, tensor), (other_at, other) in self._expected.tied():
            for data_type in ("param_origin", "param_updated"):
                observed = window.types.get(data_type)
                rows = {} if observed is None else {row.tensor: number for row, number in observed.index.rows.items()}
                if observed is None or tensor not in rows or other not in rows:
                    continue
                a, b = np.array([rows[tensor]]), np.array([rows[other]])
                broken = self._equality.unequal(observed, at, observed, other_at, a, b)[:, 0]
                place = data_type, rows[tensor], f"{at},{other_at}"
                if broken.any() and place not in self._found:
                    step = int(broken.argmax())
                    stat = FINGERPRINT if observed.has(FINGERPRINT) else observed.index.stats[observed.numbers()[0]]
                    ranks = self._expected.ranks
                    self._found[place] = _Found(
                        step=int(window.steps[step]),
                        data_type=data_type,
                        row=rows[tensor],
                        label=f"{tensor.label()}, tied to {other.label()}",
                        tensor=tensor,
                        micro_step=None,
                        groups=[[ranks[at]], [ranks[other_at]]],
                        stat=stat,
                        values={
                            ranks[at]: value_texts(observed, at, step, rows[tensor], [stat]).get(stat, "?"),
                            ranks[other_at]: value_texts(observed, other_at, step, rows[other], [stat]).get(stat, "?"),
                        },
                    )

    def outcome(self, evidence: Mapping[str, Changes]) -> Outcome:
        """What was found.

        Args:
            evidence: data type -> on which ranks a tensor was changed between two steps, did not move in an update, or
                is not what it should be after the reduction: of two replicas that differ, that one is wrong.
        """
        self._evidence = evidence
        return Outcome(
            invariant=NAME,
            title=TITLE,
            comparisons=self._equality.comparisons,
            how=self._equality.how,
            reason="" if self._equality.comparisons else self._reason(),
            violations=list(self._violations()),
        )

    def _reason(self) -> str:
        if len(self._expected.ranks) < 2:
            return "the run has one rank"
        if not self._expected.known:
            return (
                "no rank has recorded which ranks hold the same: no engine that knows was found, and set_monitor was "
                "given no dp_group"
            )
        if self._classes:
            return (
                "no two ranks recorded the same part of a tensor (with dp_group or tp_group the first rank of a group "
                "alone writes what all of it hold)"
            )
        return "neither weights, moments nor reduced gradients were recorded (param_distribution, mv_distribution)"

    def _violations(self) -> Iterator[Violation]:
        found = sorted(self._found.values(), key=lambda one: (one.step, execution_position(one.data_type), one.row))
        together = Counter((one.step, one.data_type) for one in found)
        known: dict[TensorKey, list[int]] = {}
        for one in found:
            minority = self._minority(one) or known.get(one.tensor, [])
            known.setdefault(one.tensor, minority)
            # The ranks in question come first.
            named = sorted(one.groups, key=lambda ranks: not set(ranks) <= set(minority))
            first = (one.step, one.data_type) == (found[0].step, found[0].data_type)
            yield Violation(
                step=one.step,
                data_type=one.data_type,
                tensor=one.label,
                micro_step=one.micro_step,
                ranks=tuple(sorted(rank for ranks in one.groups for rank in ranks)),
                minority=tuple(sorted(minority)),
                stat=one.stat,
                values={ranks_in_words(ranks): one.values[ranks[0]] for ranks in named},
                # What comes after is what became of it.
                guess=self._guess(one, minority, alone=together[one.step, one.data_type] == 1) if first else "",
            )

    def _minority(self, one: _Found) -> list[int]:
        sizes = [len(ranks) for ranks in one.groups]
        if len(sizes) > 1 and sizes[0] > sizes[1]:
            return [rank for ranks in one.groups[1:] for rank in ranks]
        members = {rank for ranks in one.groups for rank in ranks}
        wrong = members & set(self._evidence.get(one.data_type, {}).get((one.tensor, one.step), ()))
        return sorted(wrong) if wrong < members else []

    def _guess(self, one: _Found, minority: Collection[int], *, alone: bool) -> str:
        if one.computed:
            return _APART
        if one.data_type in ("param_origin", "param_updated") and one.step == self._first_step and not alone:
            return _DIFFERENT_START
        if one.data_type == "grad_reduced":
            guess = _NOT_REDUCED
        elif one.data_type != "param_origin" and "grad_reduced" not in self._compared:
            guess = _GRADIENTS_UNKNOWN
        elif alone and len(minority) < 2:
            guess = _CORRUPTED
        elif one.data_type == "param_origin":
            guess = _LOADED if len(minority) == 1 else ""
        else:
            guess = _UPDATED
        return "; ".join(part for part in (guess, "" if minority else _TIE) if part)


def _groups(labels: Ints) -> list[Ints]:
    return [np.flatnonzero(labels == label) for label in np.unique(labels[labels >= 0])]


def _equal_groups(
    observed: Observed, group: Sequence[int], step: int, row: int, *, computed: bool
) -> tuple[list[list[int]], str]:
    """The ranks with equal values, the largest group first, and a statistic in which the groups differ."""
    stats = common_statistics(observed, observed)
    groups: list[list[int]] = []
    own = {at: {stat: observed.values(at, stat)[step, row : row + 1] for stat in stats} for at in group}
    prints = {at: value_texts(observed, at, step, row, [FINGERPRINT]).get(FINGERPRINT) for at in group}
    for at in group:
        if not observed.present(at)[step, row]:
            continue
        for other in groups:
            if computed:
                a, b = own[at]["norm"][0], own[other[0]]["norm"][0]
                same = abs(a - b) <= APART * max(abs(a), abs(b))
            elif prints[at] is not None and prints[other[0]] is not None:
                same = prints[at] == prints[other[0]]
            else:
                same = not different(own[at], own[other[0]])[0]
            if same:
                other.append(at)
                break
        else:
            groups.append([at])
    groups.sort(key=lambda ranks: (-len(ranks), ranks[0]))
    first, second = groups[0][0], groups[1][0] if len(groups) > 1 else groups[0][0]
    unequal = [stat for stat in stats if own[first][stat][0] != own[second][stat][0]]
    if not unequal and prints[first] is not None:
        return groups, FINGERPRINT
    return groups, next((stat for stat in ("norm", *unequal) if stat in unequal), stats[0])
