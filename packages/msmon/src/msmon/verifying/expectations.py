"""Who should be equal to whom, and what is the sum of what: from what the ranks have recorded and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import attrs
import numpy as np

from msmon.reading.index import Index, Ints, TensorKey
from msmon.reading.run import Run
from msmon.reading.tensor_entries import TensorEntry, parameter_name
from msmon_hooks.layout import ranks_of_text

#: Groups whose ranks compute the same values, each for itself. In all others they receive the same bits.
_COMPUTED = frozenset({"tensor"})

Labels = tuple[int, ...]
"""For each rank of the run a number, equal on ranks that belong together; -1 where a rank does not hold the tensor."""


@attrs.frozen(kw_only=True)
class Shared:
    """One tensor on one rank: its entry in `run.json`, and the layout in it."""

    entry: TensorEntry
    layout: Mapping[str, Any] | None
    """None: the engine did not know."""


@attrs.frozen(kw_only=True, eq=False)
class Sum:
    """A gradient that is summed over ranks."""

    members: Labels
    """Ranks with the same number are summed over."""
    divided_by: Mapping[int, float | None]
    """Rank -> by what the sum is divided; None: not known."""
    dtype: str
    """In which precision the sum is made; "": that of the parameter."""
    numel: Mapping[int, int]
    """Rank -> elements of its gradient before the reduction."""
    groups: Mapping[int, Mapping[str, tuple[int, ...]]]
    """Rank -> dimension of parallelism -> the ranks summed over."""


class Expectations:
    """What the ranks of a run have said of the tensors that they share."""

    def __init__(self, run: Run) -> None:
        self.ranks = tuple(run.ranks)
        self._position = {rank: at for at, rank in enumerate(self.ranks)}
        self.tensors: dict[TensorKey, dict[int, Shared]] = {}
        """Tensor -> position of a rank -> what it said."""
        for at, rank in enumerate(run.ranks.values()):
            for place, entry in (rank.tensors or {}).items():
                layout = entry.fields.get("layout")
                shared = Shared(entry=entry, layout=layout if isinstance(layout, Mapping) else None)
                self.tensors.setdefault(TensorKey(rank.pp_stage, *place), {})[at] = shared
        self.known = any(one.layout is not None for ranks in self.tensors.values() for one in ranks.values())
        """Whether any rank said anything."""
        announced = (rank.info.get("grad_acc_steps") for rank in run.ranks.values())
        self.grad_acc_steps = max((steps for steps in announced if type(steps) is int and steps > 0), default=1)
        self.data_groups = self._data_groups()
        """Groups of positions of ranks that get different data, each with its own."""
        self.tensor_groups = self._groups("tensor")
        """Groups of positions of ranks that get the same data."""
        self._components: dict[tuple[Any, ...], Labels] = {}

    def parameter(self, row: TensorKey, data_type: str) -> TensorKey:
        """The parameter that a row is about."""
        name = parameter_name(row.name, data_type, lambda name: attrs.evolve(row, name=name) in self.tensors)
        return row if name == row.name else attrs.evolve(row, name=name)

    def equal(self, tensor: TensorKey, data_type: str) -> tuple[Labels, Labels]:
        """Ranks that hold the same values of a tensor.

        Returns:
            Those that have the very same bits, and those that should by what they compute, which include the former.
        """
        shared = self.tensors.get(tensor, {})
        exact = self._parts(self._labels(shared, "equal_over", without=_COMPUTED), shared, data_type)
        return exact, self._parts(self._labels(shared, "equal_over"), shared, data_type)

    def tied(self) -> list[tuple[tuple[int, TensorKey], tuple[int, TensorKey]]]:
        """Pairs of (position of a rank, tensor) under different names that are one parameter."""
        found = []
        by_word: dict[str, list[tuple[int, TensorKey, set[int]]]] = {}
        for tensor, shared in self.tensors.items():
            for at, one in shared.items():
                word = one.layout.get("tied") if one.layout else None
                if word and one.layout is not None:
                    ranks = ranks_of(_text_of(one.layout, str(word)))
                    by_word.setdefault(str(word), []).append((at, tensor, {self._position.get(r, -1) for r in ranks}))
        for entries in by_word.values():
            for number, (at, tensor, group) in enumerate(entries):
                for other, name, _ in entries[number + 1 :]:
                    if name != tensor and other != at and other in group:
                        found.append(((at, tensor), (other, name)))
        return found

    def sum_of(self, tensor: TensorKey) -> Sum | None:
        """Over which ranks its gradient is summed; None where a rank that holds it did not know."""
        shared = self.tensors.get(tensor, {})
        layouts = {at: one.layout for at, one in shared.items()}
        if not layouts or any(not isinstance((one or {}).get("summed_over"), Mapping) for one in layouts.values()):
            return None
        known = {at: layout for at, layout in layouts.items() if layout is not None}
        return Sum(
            members=self._labels(shared, "summed_over"),
            divided_by={at: _number(layout.get("divided_by")) for at, layout in known.items()},
            dtype=next((str(layout["dtype"]) for layout in known.values() if layout.get("dtype")), ""),
            numel={at: elements(shared[at]) for at in known},
            groups={
                at: {str(name): ranks_of(str(text)) for name, text in layout["summed_over"].items()}
                for at, layout in known.items()
            },
        )

    def missing_from(self, summed: Sum, at: int) -> list[int]:
        """Ranks that a sum is over and that the run does not have."""
        return [rank for ranks in summed.groups[at].values() for rank in ranks if rank not in self._position]

    def class_rows(self, index: Index) -> tuple[Ints, Ints]:
        """`equal` of all rows of a data type: two arrays of the shape (ranks, rows)."""
        shape = (len(self.ranks), len(index.rows))
        exact, computed = np.full(shape, -1), np.full(shape, -1)
        found: dict[TensorKey, tuple[Labels, Labels]] = {}
        for row, number in index.rows.items():
            tensor = self.parameter(row.tensor, index.data_type)
            if tensor not in found:
                found[tensor] = self.equal(tensor, index.data_type)
            exact[:, number], computed[:, number] = found[tensor]
        return exact, computed

    def _labels(self, shared: Mapping[int, Shared], key: str, without: frozenset[str] = frozenset()) -> Labels:
        """Components of the ranks that hold a tensor, over the groups that they name."""
        texts = tuple(
            None if (one := shared.get(at)) is None or one.layout is None else _text(one.layout.get(key), without)
            for at in range(len(self.ranks))
        )
        if texts not in self._components:
            self._components[texts] = self._joined(texts)
        return self._components[texts]

    def _joined(self, texts: Sequence[tuple[str, ...] | None]) -> Labels:
        labels = np.array([-1 if text is None else at for at, text in enumerate(texts)], np.int64)
        for at, groups in enumerate(texts):
            for text in groups or ():
                mates = [self._position[rank] for rank in ranks_of(text) if rank in self._position]
                mates = [mate for mate in (at, *mates) if labels[mate] >= 0]
                together = np.isin(labels, labels[mates]) & (labels >= 0)
                labels[together] = labels[mates].min()
        return tuple(labels.tolist())

    def _parts(self, labels: Labels, shared: Mapping[int, Shared], data_type: str) -> Labels:
        """Of ranks that belong together those with the same part of the tensor."""
        numbers: dict[tuple[int, str], int] = {}
        found = []
        for at, label in enumerate(labels):
            if label < 0:
                found.append(-1)
                continue
            shard = shared[at].entry.shard(data_type)
            found.append(numbers.setdefault((label, "" if shard is None else shard.part), len(numbers)))
        return tuple(found)

    def _groups(self, *names: str) -> list[tuple[int, ...]]:
        texts = {
            text
            for shared in self.tensors.values()
            for one in shared.values()
            for name in names
            if (text := _text_of(one.layout, name))
        }
        groups = (tuple(self._position[r] for r in ranks_of(text) if r in self._position) for text in sorted(texts))
        return [group for group in groups if len(group) > 1]

    def _data_groups(self) -> list[tuple[int, ...]]:
        return self._groups("data", "replicas")


def elements(one: Shared) -> int:
    """Elements of a gradient before the reduction on one rank."""
    numel = (one.layout or {}).get("numel")
    return numel if type(numel) is int else one.entry.numel


@lru_cache(4096)
def ranks_of(text: str) -> tuple[int, ...]:
    """The ranks of a group, or none where the text does not say any."""
    try:
        return tuple(ranks_of_text(text))
    except ValueError:
        return ()


def _text_of(layout: Mapping[str, Any] | None, name: str) -> str:
    """The ranks of a group that hold the same, or ""."""
    groups = (layout or {}).get("equal_over")
    return str(groups.get(name, "")) if isinstance(groups, Mapping) else ""


def _text(groups: Any, without: frozenset[str]) -> tuple[str, ...] | None:
    if not isinstance(groups, Mapping):
        return None
    return tuple(str(text) for name, text in groups.items() if name not in without)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
