"""Which rows, steps, statistics and ranks of two runs belong together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from msmon.reading.blocks import Block, read_blocks
from msmon.reading.diff.result import OneSided
from msmon.reading.diff.rules import NameRules, Side
from msmon.reading.errors import UnusableRun
from msmon.reading.index import Index, TensorKey, build_index
from msmon.reading.run import Run
from msmon.reading.whole_tensors import ACTIVATIONS, EXTREMES, OWN, exact_blocks, whole_blocks


@attrs.frozen(kw_only=True, slots=False)
class SidedRun:
    """A run with the names under which it is compared."""

    run: Run
    side: Side
    rules: NameRules

    def index(self, data_type: str) -> Index:
        """The rows of a data type. UnusableRun where two tensors get the same name."""
        taken: dict[TensorKey, TensorKey] = {}

        def rename(key: TensorKey) -> TensorKey | None:
            new = self.rename(key)
            if new is not None and taken.setdefault(new, key) != key:
                raise UnusableRun(
                    f"--map gives {taken[new].name!r} and {key.name!r} of run {self.side.upper()} "
                    f"the same name {new.name!r}"
                )
            return new

        return build_index(self.run, data_type, rename=rename)

    def rename(self, key: TensorKey) -> TensorKey | None:
        """The name under which a tensor is compared, or None."""
        return self.rules.rename(key, self.side)


@attrs.frozen(kw_only=True)
class Pairs:
    """Everything that two runs have in common, and what only one of them has."""

    indices: Sequence[Index]
    """For each common data type what both have, in the order of run A."""
    one_sided: Sequence[OneSided]
    notes: Sequence[str]


def same_layout(a: Run, b: Run) -> bool:
    """Do the ranks of both runs correspond?"""
    sizes = {run.info.get("world_size") for run in (a, b)} - {None}
    stages = [{rank: one.pp_stage for rank, one in run.ranks.items()} for run in (a, b)]
    return len(sizes) < 2 and stages[0] == stages[1]


def pair_runs(a: SidedRun, b: SidedRun) -> Pairs:
    """What can be compared. UnusableRun where there is nothing."""
    notes: list[str] = []
    common = [data_type for data_type in a.run.data_types if data_type in b.run.data_types]
    for one, other in ((a, b), (b, a)):
        only = [data_type for data_type in one.run.data_types if data_type not in other.run.data_types]
        if only:
            notes.append(f"only run {one.side.upper()} recorded {', '.join(only)}")
    merged = not same_layout(a.run, b.run)
    left = [data_type for data_type in common if merged and data_type in OWN]
    if left:
        common = [data_type for data_type in common if data_type not in OWN]
        notes.append(f"{', '.join(left)} cannot be compared: with other ranks each holds another part of the batch")
    indices: list[Index] = []
    one_sided: list[OneSided] = []
    more_steps: dict[tuple[int, str], list[str]] = {}
    for data_type in common:
        index_a, index_b = a.index(data_type), b.index(data_type)
        one_sided += [*_only(index_a, index_b, "A"), *_only(index_b, index_a, "B")]
        both = _both(index_a, index_b)
        for index, name in ((index_a, "A"), (index_b, "B")):
            if len(index.steps) > len(both.steps):
                more_steps.setdefault((len(index.steps) - len(both.steps), name), []).append(data_type)
        if merged and data_type in ACTIVATIONS:
            both = attrs.evolve(both, stats=tuple(stat for stat in both.stats if stat in EXTREMES))
            notes.append(
                f"{data_type}: ranks can share activations in several ways, so of the merged ones only "
                f"{', '.join(both.stats) or 'nothing'} is compared"
            )
        if both.stats and len(both.steps) and both.rows:
            indices.append(both)
    for (count, name), data_types in more_steps.items():
        notes.append(f"{count} steps of {', '.join(data_types)} are only in run {name} and were not compared")
    if not indices:
        raise UnusableRun(
            f"{a.run.directory} and {b.run.directory} have nothing in common to compare: "
            f"A recorded {', '.join(a.run.data_types)}, B {', '.join(b.run.data_types)}"
            + ("; no names and steps of a common data type agree: give --map rules" if common else "")
        )
    return Pairs(indices=indices, one_sided=one_sided, notes=[*notes, *_ranks_on_one_side(a, b, indices)])


def _both(a: Index, b: Index) -> Index:
    return Index(
        data_type=a.data_type,
        stats=tuple(stat for stat in a.stats if stat in b.stats),
        steps=np.intersect1d(a.steps, b.steps),
        rows={row: number for number, row in enumerate(row for row in a.rows if row in b.rows)},
    )


def _only(one: Index, other: Index, name: str) -> Iterator[OneSided]:
    """Tensors that the other index lacks, and micro-steps of tensors that both have."""
    known = {row.tensor for row in other.rows}
    more: dict[int, int] = {}
    for row in one.rows:
        if row in other.rows:
            continue
        if row.tensor in known:
            more[row.micro_step] = more.get(row.micro_step, 0) + 1
        else:
            known.add(row.tensor)
            yield OneSided(data_type=one.data_type, what=row.tensor.label(), only_in=name)
    for micro_step, count in more.items():
        what = (
            f"micro-step {micro_step} of {count} tensors" if micro_step >= 0 else f"{count} tensors without micro-steps"
        )
        yield OneSided(data_type=one.data_type, what=what, only_in=name)


def paired_blocks(
    a: SidedRun, b: SidedRun, index: Index, multiple: int
) -> Iterator[tuple[int | None, Iterator[tuple[Block, Block]]]]:
    """The blocks of both runs side by side: for each rank, or once for all ranks merged (None)."""
    if same_layout(a.run, b.run):
        for rank in a.run.ranks:
            if all(index.data_type in one.run.ranks[rank].files for one in (a, b)):
                # Like with like: digits are not compared with what was never rounded.
                exact = all(one.run.ranks[rank].partials for one in (a, b))
                blocks = (
                    exact_blocks(one.run, one.run.ranks[rank], index, rename=one.rename, multiple=multiple)
                    if exact
                    else read_blocks(one.run.ranks[rank], index, rename=one.rename, multiple=multiple)
                    for one in (a, b)
                )
                yield rank, zip(*blocks, strict=True)
    else:
        yield None, zip(*(_whole_blocks(one, index, multiple) for one in (a, b)), strict=True)


def _whole_blocks(one: SidedRun, index: Index, multiple: int) -> Iterator[Block]:
    for block in whole_blocks(one.run, index, rename=one.rename, multiple=multiple):
        if ((block.held > 0) & ~block.complete).any():
            one.run.note(f"{index.data_type}: of some tensors a shard is missing; they are not compared there")
        yield block


def _ranks_on_one_side(a: SidedRun, b: SidedRun, indices: Sequence[Index]) -> Iterator[str]:
    if not same_layout(a.run, b.run):
        return
    for index in indices:
        for one, other in ((a, b), (b, a)):
            ranks = [
                rank
                for rank in one.run.ranks
                if index.data_type in one.run.ranks[rank].files and index.data_type not in other.run.ranks[rank].files
            ]
            if ranks:
                yield f"{index.data_type}: ranks {ranks} recorded it only in run {one.side.upper()}"
