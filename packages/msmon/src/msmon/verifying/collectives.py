"""What comes out of a collective is the same on all ranks, and what goes in adds up to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import numpy as np

from msmon.reading.index import TensorKey
from msmon.reading.run import Run
from msmon.reading.statistics import Floats
from msmon.verifying.equality import Equality, common_statistics, largest, value_texts
from msmon.verifying.expectations import ranks_of
from msmon.verifying.report import Outcome, Violation, ranks_in_words
from msmon.verifying.windows import Mask, Observed, Window

NAME = "collectives"
TITLE = "What comes out of a collective is the same on all its ranks, and what goes in adds up to it"

OTHER = "other"
_EVERYWHERE = ("all_reduce", "broadcast", "all_gather", "all_gather_into_tensor", "AllReduce", "Broadcast", "AllGather")
"""Functions whose result is the same on all ranks of the group."""
_REDUCE = ("all_reduce", "AllReduce")
#: Of the largest element: half precision, and nobody has recorded how many elements there are.
_SUM_LIMIT = 4 * 2.0**-8


@attrs.define(kw_only=True)
class _Held:
    """One row of a collective."""

    name: str
    ranks: tuple[int, ...]
    """Positions."""
    kind: str
    steps: int = 0
    broken: int = 0
    first: Violation | None = None


class Collectives:
    """Compares the rows of collectives that were called for one group of ranks only."""

    data_types = (OTHER,)

    def __init__(self, run: Run) -> None:
        self._ranks = tuple(run.ranks)
        self._groups = _groups(run)
        self._equality = Equality()
        self._held: dict[tuple[str, str], _Held] = {}
        self._looked = False

    def look(self, window: Window) -> None:
        """See these steps."""
        observed = window.types.get(OTHER)
        if observed is None:
            return
        rows = {row.tensor: number for row, number in observed.index.rows.items()}
        for key, row in rows.items():
            function, _, side = key.name.partition(".")
            group = self._groups.get(function)
            if side.startswith(("pre_", "post_")):
                self._looked = True
            if group is None or not side.startswith("post_"):
                continue
            ranks, reduction = group
            if function in _EVERYWHERE:
                self._equal(window, observed, key, row, ranks)
            sent = rows.get(attrs.evolve(key, name=f"{function}.pre_0"))
            if function in _REDUCE and reduction in ("sum", "avg") and sent is not None and observed.has("mean"):
                self._sum(window, observed, key, row, sent, ranks, reduction)

    def _equal(self, window: Window, observed: Observed, key: TensorKey, row: int, ranks: tuple[int, ...]) -> None:
        one = np.array([row])
        there = np.logical_and.reduce([observed.present(at)[:, row] for at in ranks])
        broken = np.zeros(len(window.steps), np.bool_)
        for at in ranks[1:]:
            broken |= self._equality.unequal(observed, ranks[0], observed, at, one)[:, 0]
        held = self._held.setdefault((key.name, "equal"), _Held(name=key.name, ranks=ranks, kind="equal"))
        self._count(held, there, broken & there)
        if held.first is None and held.broken:
            step = int((broken & there).argmax())
            stats = common_statistics(observed, observed)
            texts = {at: value_texts(observed, at, step, row, stats) for at in ranks}
            stat = next((s for s in stats if len({text[s] for text in texts.values()}) > 1), stats[0])
            together: dict[str, list[int]] = {}
            for at in ranks:
                together.setdefault(texts[at][stat], []).append(self._ranks[at])
            groups = sorted(together.items(), key=lambda item: len(item[1]))
            tie = len(groups[0][1]) == len(groups[-1][1])
            held.first = Violation(
                step=int(window.steps[step]),
                data_type=OTHER,
                tensor=key.name,
                ranks=tuple(self._ranks[at] for at in ranks),
                minority=() if tie else tuple(groups[0][1]),
                stat=stat,
                values={ranks_in_words(members): value for value, members in groups},
                guess="other values arrived on some ranks than on others",
            )

    def _sum(
        self,
        window: Window,
        observed: Observed,
        key: TensorKey,
        row: int,
        sent: int,
        ranks: tuple[int, ...],
        reduction: str,
    ) -> None:
        there = np.logical_and.reduce([observed.present(at)[:, [row, sent]].all(axis=1) for at in ranks])
        parts: list[Floats] = [observed.values(at, "mean")[:, sent] for at in ranks]
        expected = np.sum(parts, axis=0) / (len(ranks) if reduction == "avg" else 1)
        found = observed.values(ranks[0], "mean")[:, row]
        sizes = [stat for stat in ("absmax", "min", "max", "rms") if observed.has(stat)]
        if not sizes:
            return
        size = np.zeros(len(found))
        for at in ranks:
            size += largest(observed.values(at, stat)[:, sent] for stat in sizes)
        with np.errstate(invalid="ignore"):
            known = there & np.isfinite(expected) & np.isfinite(found)
            broken = known & (np.abs(found - expected) > _SUM_LIMIT * size)
        self._equality.by_statistics += int(known.sum())
        held = self._held.setdefault((key.name, "sum"), _Held(name=key.name, ranks=ranks, kind="sum"))
        self._count(held, known, broken)
        if held.first is None and held.broken:
            step = int(broken.argmax())
            held.first = Violation(
                step=int(window.steps[step]),
                data_type=OTHER,
                tensor=key.name,
                ranks=tuple(self._ranks[at] for at in ranks),
                stat="mean",
                values={"came out": f"{found[step]:.9g}", f"{reduction} of what went in": f"{expected[step]:.9g}"},
            )

    @staticmethod
    def _count(held: _Held, there: Mask, broken: Mask) -> None:
        held.steps += int(there.sum())
        held.broken += int(broken.sum())

    def outcome(self) -> Outcome:
        """Whether it holds."""
        if not self._equality.comparisons:
            return Outcome(invariant=NAME, title=TITLE, reason=self._reason())
        violations = sorted(self._violations(), key=lambda one: one.step)
        return Outcome(
            invariant=NAME,
            title=TITLE,
            comparisons=self._equality.comparisons,
            how=self._equality.how,
            violations=violations,
        )

    def _reason(self) -> str:
        if not self._looked:
            return "collectives were not recorded (cc_distribution)"
        return "no function was called for the same one group of ranks by all of them"

    def _violations(self) -> Iterator[Violation]:
        for one in self._held.values():
            # What mostly does not hold is something else: results that are waited for in the next step, say.
            if one.first is not None and 2 * one.broken <= one.steps:
                yield one.first


def _groups(run: Run) -> dict[str, tuple[tuple[int, ...], str]]:
    """Function -> positions of its ranks and how they reduce, where all calls of all ranks are for the same."""
    position = {rank: at for at, rank in enumerate(run.ranks)}
    used: dict[str, set[tuple[str, str]]] = {}
    for rank in run.ranks.values():
        collectives = rank.info.get("collectives")
        for function, calls in (collectives if isinstance(collectives, Mapping) else {}).items():
            for call in calls if isinstance(calls, list) else ():
                used.setdefault(str(function), set()).add((_text(call, "ranks"), _text(call, "reduction")))
    found = {}
    for function, calls in used.items():
        ranks = ranks_of(next(iter(calls))[0])
        if len(calls) == 1 and len(ranks) > 1 and all(rank in position for rank in ranks):
            found[function] = tuple(position[rank] for rank in ranks), next(iter(calls))[1]
    return found


def _text(call: Any, key: str) -> str:
    return str(call.get(key, "")) if isinstance(call, Mapping) else ""
