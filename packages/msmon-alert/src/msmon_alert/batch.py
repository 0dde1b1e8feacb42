"""One table of statistics as the rules see it: values, and which row of the histories belongs to which tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import attrs
import numpy as np
import numpy.typing as npt

from msmon_alert.tag import split_tag

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp] | slice
"""History rows of a table's tensors; a slice where they are adjacent, so that no copy is needed."""

NO_NUMBERS = frozenset({"shape", "dtype", "fingerprint"})
"""Statistics that are text, on which no rule has anything to say."""
COUNTS = frozenset({"nans", "infs"})
"""Statistics that count elements, so that their size says nothing about the values."""
_PROVE_NAN = ("min", "max", "norm", "absmax", "rms")


def _compact(rows: list[int]) -> Rows:
    if rows and rows == list(range(rows[0], rows[0] + len(rows))):
        return slice(rows[0], rows[0] + len(rows))
    return np.array(rows, dtype=np.intp)


class Layout:
    """The tags of one table and their rows in the histories; most steps have the same."""

    def __init__(self, tags: Sequence[str], tag_rows: dict[str, int], tensor_rows: dict[str, int]) -> None:
        self.tags = list(tags)
        self.rows = _compact([tag_rows.setdefault(tag, len(tag_rows)) for tag in self.tags])
        split = [split_tag(tag) for tag in self.tags]
        self.tensors = _compact([tensor_rows.setdefault(tensor, len(tensor_rows)) for tensor, _ in split])
        self._data_types = [data_type for _, data_type in split]
        self._masks: dict[str, Bools] = {}
        self.rounds = self._find_rounds()

    def mask(self, data_type: str) -> Bools:
        """Which rows have this data type."""
        if data_type not in self._masks:
            self._masks[data_type] = np.array([own == data_type for own in self._data_types], dtype=np.bool_)
        return self._masks[data_type]

    def _find_rounds(self) -> list[list[int]]:
        """Groups of positions in which no tag occurs twice: the second value of a tag must see the first in its
        history. Empty for the usual table, whose tags all differ."""
        if len(set(self.tags)) == len(self.tags):
            return []
        seen: dict[str, int] = {}
        rounds: list[list[int]] = []
        for position, tag in enumerate(self.tags):
            turn = seen.get(tag, 0)
            seen[tag] = turn + 1
            if turn == len(rounds):
                rounds.append([])
            rounds[turn].append(position)
        return rounds


class TagIndex:
    """Gives every tag its row in the histories, for ever, and remembers the tables seen."""

    _KEPT = 256

    def __init__(self) -> None:
        self.tags: dict[str, int] = {}
        self.tensors: dict[str, int] = {}
        self._layouts: dict[tuple[int, str, str], Layout] = {}

    def layout(self, tags: Sequence[str]) -> Layout:
        """The layout of these tags. An equal list costs one comparison of the lists, which is nearly free where the
        strings are the same objects; identity alone would miss a list that was changed in place."""
        if not tags:
            return Layout([], self.tags, self.tensors)
        tags = tags if type(tags) is list else list(tags)
        key = (len(tags), tags[0], tags[-1])
        layout = self._layouts.get(key)
        if layout is None or layout.tags != tags:
            if len(self._layouts) >= self._KEPT:
                self._layouts.pop(next(iter(self._layouts)))
            layout = self._layouts[key] = Layout(tags, self.tags, self.tensors)
        return layout


@attrs.frozen(kw_only=True, slots=False)
class Batch:
    """One table of one step, ready for the rules. n tensors, k statistics."""

    step: int
    stats: tuple[str, ...]
    """k names of statistics, the columns of `values`."""
    values: Floats
    """float64 [n, k]."""
    no_grad: Bools
    """[n], the tensor is an input that needs no gradient (for a weight: it is frozen on purpose)."""
    discrete: Bools
    """[n], the tensor is of an integer or bool type."""
    layout: Layout = attrs.field(repr=False)

    @property
    def rows(self) -> Rows:
        """Row of each tag in the histories."""
        return self.layout.rows

    @property
    def tensors(self) -> Rows:
        """Row of each tensor, which is the same for all its data types (`param_origin` and `param_updated`)."""
        return self.layout.tensors

    def column(self, stat: str) -> Floats:
        """The values [n] of a statistic that is there."""
        return self.values[:, self.stats.index(stat)]

    def columns(self) -> Iterator[tuple[int, str, Floats]]:
        """Index, name and values [n] of each statistic that is a number."""
        for index, stat in enumerate(self.stats):
            if stat not in NO_NUMBERS:
                yield index, stat, self.values[:, index]

    @cached_property
    def holds_nan(self) -> Bools:
        """[n], the tensor holds a NaN. The mean or std of a tensor may be nan because it holds Inf; min, max, norm and
        the count of NaN are not, so where the table has one of these it decides."""
        proofs = [~(values <= 0) for _, stat, values in self.columns() if stat == "nans"]
        proofs += [np.isnan(values) for _, stat, values in self.columns() if stat in _PROVE_NAN]
        return self._any(proofs or [np.isnan(values) for _, _, values in self.columns()])

    @cached_property
    def holds_inf(self) -> Bools:
        """[n], some statistic shows that the tensor holds Inf."""
        return self._any([values > 0 if stat == "infs" else np.isinf(values) for _, stat, values in self.columns()])

    def _any(self, proofs: list[Bools]) -> Bools:
        found: Bools = np.logical_or.reduce([np.zeros(len(self.values), dtype=np.bool_), *proofs])
        return found
