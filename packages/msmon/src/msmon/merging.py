"""Local shards of all ranks to statistics of whole tensors. Needs no framework.

A rank whose engine shards its tensors (FSDP, ZeRO, tensor parallelism, distributed optimizers) writes statistics of the
shards that it holds. Shards merge exactly: minimum, maximum and sums of all shards are those of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, evolve, field

import msmon_io
from msmon.reading import Run, UnusableRun, open_run
from msmon.reading.equal_texts import equal_texts
from msmon.reading.index import NO_MICRO_STEP, Index, Ints, RowNumbers, TensorKey, build_index
from msmon.reading.row_files import KEYS
from msmon.reading.statistics import Floats
from msmon.reading.tensor_entries import STATE, TensorEntry, parameter_name
from msmon.reading.whole_tensors import OWN, WholeBlock, whole_blocks
from msmon.tables import number_ops
from msmon_hooks import DATA_TYPES
from msmon_io import FINGERPRINT, TEXT_OPS, ranges
from msmon_stats import OPS

__all__ = ["MergeReport", "merge_ranks"]

WHOLE_TYPES = {STATE, *(name for name, one in DATA_TYPES.items() if one.of_parameters)} - OWN
"""What all ranks have in common. The rest (activations, gradients before the reduction) is each rank's own, and is
joined only where its shards are of one tensor (tensor parallelism)."""


@define(kw_only=True)
class MergeReport:
    """What was merged, and what could not be."""

    sources: Mapping[int, Path]
    """The run directory that was read of each rank."""
    notes: Sequence[str]
    """What is to be known about how they were read."""
    run_dirs: list[Path] = field(factory=list)
    """Where the whole tensors are: one run directory for each pipeline stage."""
    rows: int = 0
    sharded: int = 0
    """Rows that were joined from shards."""
    from_digits: int = 0
    """Rows of which a shard was read from digits, since no partials were stored."""
    incomplete: dict[tuple[int, str, str], str] = field(factory=dict)
    """(pipeline stage, data type, name) -> why there is no row, or not in every step."""


def merge_ranks(output_dir: str | Path, destination: str | Path | None = None) -> MergeReport:
    """Join what the ranks of a launch wrote.

    Args:
        output_dir: the monitors' output directory, of which the newest launch is taken; or
            `<output directory>/<time stamp>` for an older one.
        destination: where the result goes, in the form of an output directory; default: `merged` in the output
            directory.

    Returns:
        What was read and written.

    Raises:
        UnusableRun: no run directories, no `run.json`, a damaged file, or it is not clear which launch is meant.
        OSError: a file cannot be read or written.
    """
    run = open_run(output_dir)
    _check(run, named=Path(output_dir) != run.directory)
    destination = run.directory / "merged" if destination is None else Path(destination)
    report = MergeReport(sources={rank: one.directory for rank, one in run.ranks.items()}, notes=run.notes)
    for stage in sorted({rank.pp_stage for rank in run.ranks.values()}):
        ranks = {number: rank for number, rank in run.ranks.items() if rank.pp_stage == stage}
        _StageMerge(stage, evolve(run, ranks=ranks), report).write(destination)
    return report


def _check(run: Run, *, named: bool) -> None:
    newest = run.launch
    if newest is None:
        raise UnusableRun(
            f"{run.directory}: no run directories in it; give the output directory, which holds one of each rank"
        )
    for other in reversed(run.launches):
        if newest.is_whole or named or other.world_size != newest.world_size:
            continue
        if other.run_dirs.keys() - newest.run_dirs:
            raise UnusableRun(
                f"{run.directory}: the newest launch, {newest}, has not all ranks, and an older one has others, "
                f"{other}: say which is meant, {run.directory / newest.stamp} or {run.directory / other.stamp}"
            )
    for number, rank in run.ranks.items():
        file = rank.directory / "run.json"
        if rank.tensors is None:
            problem = next((note for note in run.notes if note.startswith(str(file))), f"{file} is missing")
            raise UnusableRun(f"{problem}: without it nobody knows which shards rank {number} holds")
        config = rank.info.get("config")
        kinds = {"ops": list, "ndigits": int, "step_count_per_record": int}
        if not isinstance(config, dict) or any(type(config.get(key)) is not kind for key, kind in kinds.items()):
            raise UnusableRun(f"{file} is not what msmon writes: its config is {config!r:.200}")


class _StageMerge:
    """The ranks of one pipeline stage."""

    def __init__(self, stage: int, run: Run, report: MergeReport) -> None:
        self.stage = stage
        self.run = run
        self.report = report
        self.first = next(iter(run.ranks.values()))
        self.entries: dict[tuple[int, str], TensorEntry] = {}
        for rank in run.ranks.values():
            for place, entry in (rank.tensors or {}).items():
                self.entries.setdefault(place, entry)
        self.seen: dict[str, set[str]] = {}

    def write(self, destination: Path) -> None:
        config = self.first.info["config"]
        run_dir = msmon_io.create_run_dir(destination, self.first.rank)
        self.report.run_dirs.append(run_dir)
        try:
            writer = msmon_io.CsvWriter(
                run_dir, ndigits=config["ndigits"], step_count_per_record=config["step_count_per_record"]
            )
        except ValueError as error:
            raise UnusableRun(f"{self.first.directory / 'run.json'}: {error}") from error
        with writer:
            for data_type in self.run.data_types:
                for table in self._tables(data_type, config["ops"]):
                    writer.write(table)
        msmon_io.write_json(run_dir / "run.json", self._run_info(), root=run_dir)
        msmon_io.write_json(run_dir / "coverage.json", self._coverage(), root=run_dir)

    def _tables(self, data_type: str, ops: Sequence[str]) -> Iterator[msmon_io.Table]:
        sharded = {
            place
            for rank in self.run.ranks.values()
            for place, entry in (rank.tensors or {}).items()
            if entry.shard(data_type)
        }
        wanted = self.entries if data_type in WHOLE_TYPES else sharded
        if not wanted:
            return
        index = build_index(
            self.run, data_type, rename=lambda key: key if self._place(key, data_type) in wanted else None
        )
        ops = [op for op in ops if op in TEXT_OPS or (op in OPS and op in index.stats)]
        numbers = [index.stats.index(op) for op in number_ops(ops)]
        if not index.rows or not numbers:
            return
        known = {op: self._texts(index, op) for op in TEXT_OPS if op in ops and op != FINGERPRINT}
        split = [number for row, number in index.rows.items() if self._place(row.tensor, data_type) in sharded]
        for block in whole_blocks(self.run, index):
            self._count(block, index)
            if FINGERPRINT in ops:
                steps = index.steps[block.first : block.first + len(block.complete)]
                same = equal_texts(self.run, index, FINGERPRINT, steps)
                # Ranks know the fingerprints of their shards.
                same[:, split] = ""
            for at, complete in enumerate(block.complete):
                rows = np.flatnonzero(complete)
                if len(rows):
                    if FINGERPRINT in ops:
                        known[FINGERPRINT] = dict(enumerate(same[at].tolist()))
                    values = block.values[numbers, at][:, rows].T
                    yield self._table(int(index.steps[block.first + at]), index, ops, rows, values, known)

    def _count(self, block: WholeBlock, index: Index) -> None:
        complete, report = block.complete, self.report
        report.rows += int(complete.sum())
        report.sharded += int((complete & (block.held > 0)).sum())
        report.from_digits += int((complete & block.from_digits).sum())
        keys = [row.tensor for row in index.rows]
        seen = self.seen.setdefault(index.data_type, set())
        seen.update(keys[row].name for row in np.flatnonzero(complete.any(axis=0)))
        wrote = f"elements are on the ranks that wrote ({ranges(self.run.ranks)})"
        for step, row in np.argwhere((block.held > 0) & ~complete).tolist():
            numel = self.entries[self._place(keys[row], index.data_type)].numel
            of = numel if numel >= 0 else "nobody knows how many"
            reason = f"{block.held[step, row]:.0f} of {of} {wrote}"
            report.incomplete[self.stage, index.data_type, keys[row].name] = reason

    def _place(self, key: TensorKey, data_type: str) -> tuple[int, str]:
        """Where `entries` has the parameter that a row is about."""
        stage = key.vpp_stage
        return stage, parameter_name(key.name, data_type, lambda name: (stage, name) in self.entries)

    def _texts(self, index: Index, op: str) -> dict[int, str]:
        """Row -> what its files say. Without them, `run.json` knows of the parameter."""
        found: dict[int, str] = {}
        for rank in self.run.ranks.values():
            numbering = RowNumbers(index.rows, rank)
            for file in rank.files.get(index.data_type, ()):
                if len(found) == len(index.rows):
                    return found
                table = file.load((*KEYS, op))
                if table.num_rows and op in table.column_names:
                    for row, text in zip(numbering.of(table).tolist(), table[op].to_pylist(), strict=True):
                        found.setdefault(row, text)
                    found.pop(-1, None)
        return found

    def _table(
        self,
        step: int,
        index: Index,
        ops: Sequence[str],
        numbers: Ints,
        values: Floats,
        known: Mapping[str, Mapping[int, str]],
    ) -> msmon_io.Table:
        every = list(index.rows)
        rows = [every[number] for number in numbers]
        entries = [self.entries[self._place(row.tensor, index.data_type)] for row in rows]
        texts = {op: [str(entry.fields.get(op)) for entry in entries] for op in TEXT_OPS}
        for op, of_row in known.items():
            for at, (number, entry) in enumerate(zip(numbers, entries, strict=True)):
                # The files know the shape of this rank's part; and what an optimizer keeps may have any shape.
                if op != "shape" or (index.data_type == STATE and not entry.shard(STATE)):
                    texts[op][at] = of_row.get(number, texts[op][at])
        return msmon_io.Table(
            data_type=index.data_type,
            step=step,
            names=[row.tensor.name for row in rows],
            vpp_stages=[row.tensor.vpp_stage for row in rows],
            micro_steps=[row.micro_step for row in rows] if rows[0].micro_step != NO_MICRO_STEP else None,
            ops=list(ops),
            values=values,
            text={op: texts[op] for op in TEXT_OPS if op in ops},
        )

    def _run_info(self) -> dict[str, Any]:
        tensors = [
            {**entry.fields, "local_shape": entry.fields.get("shape"), "local_numel": entry.numel, "shards": []}
            for entry in self.entries.values()
        ]
        return {**self.first.info, "merged_from": list(self.run.ranks), "tensors": tensors}

    def _coverage(self) -> dict[str, Any]:
        missing = [
            {"data_type": data_type, "name": name, "reason": reason}
            for (stage, data_type, name), reason in self.report.incomplete.items()
            if stage == self.stage
        ]
        lost = {(entry["data_type"], entry["name"]) for entry in missing}
        types = sorted({*(data_type for data_type, seen in self.seen.items() if seen), *(kind for kind, _ in lost)})
        seen = {data_type: self.seen.get(data_type, set()) for data_type in types}
        return {
            "schema": 1,
            "expected": {t: len(seen[t] | {name for data_type, name in lost if data_type == t}) for t in types},
            "seen": {t: len(seen[t]) for t in types},
            "without_rows": {},
            "missing": missing,
            "apart": [],
            "switched_off": [],
            "notes": [f"merged from ranks {ranges(self.run.ranks)}"],
            "skipped_steps": [],
        }
