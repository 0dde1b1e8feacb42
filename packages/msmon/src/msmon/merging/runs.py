"""Join the rows of all ranks, stage by stage and step by step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

import msmon_io
from msmon.merging.errors import MergeError
from msmon.merging.rank_run import STATE, Key, RankRun, Row, open_rank, parameter_of
from msmon.merging.written_digits import mergeable
from msmon.tables import number_ops
from msmon_io import TEXT_OPS
from msmon_stats import OPS, finalize, merge

logger = logging.getLogger("msmon")

WHOLE_TYPES = ("grad_reduced", "exp_avg", "exp_avg_sq", STATE, "param_origin", "param_updated")
"""What all ranks have in common. The rest (activations, gradients before the reduction) is each rank's own, and is
joined only where its parts are of one tensor (tensor parallelism)."""


@define(kw_only=True)
class MergeReport:
    """What was merged, and what could not be."""

    sources: dict[int, Path]
    """The run directory that was read of each rank."""
    run_dirs: list[Path] = field(factory=list)
    """Where the whole tensors are: one run directory for each pipeline stage."""
    rows: int = 0
    sharded: int = 0
    """Rows that were joined from several parts."""
    from_digits: int = 0
    """Rows of which a part was read from CSV digits, since no partials were stored."""
    incomplete: dict[tuple[int, str, str], str] = field(factory=dict)
    """(pipeline stage, data type, name) -> why there is no row, or not in every step."""


def merge_ranks(output_dir: str | Path, destination: str | Path | None = None) -> MergeReport:
    """Join what the ranks of a run wrote; of each rank the newest run in `output_dir` is taken.

    Args:
        output_dir: the monitors' output directory, with the run directories of all ranks in it.
        destination: where the result goes, in the form of an output directory; default: `merged` in `output_dir`.

    Returns:
        What was read and written.

    Raises:
        MergeError: no run directories, no `run.json`, or a damaged file.
        OSError: a file cannot be read or written.
    """
    output_dir = Path(output_dir)
    sources = msmon_io.newest_run_dirs(output_dir) if output_dir.is_dir() else {}
    if not sources:
        raise MergeError(
            f"{output_dir}: no run directories in it; give the output directory, which holds one of each rank"
        )
    destination = output_dir / "merged" if destination is None else Path(destination)
    report = MergeReport(sources=sources)
    runs = [open_rank(rank, path) for rank, path in sorted(sources.items())]
    for stage in sorted({run.stage for run in runs}):
        try:
            _StageMerge(stage, [run for run in runs if run.stage == stage], report).write(destination)
        except ValueError as error:
            # A damaged file; the message names it.
            raise MergeError(str(error)) from error
    return report


class _Whole:
    """A tensor of which parts come in, rank by rank."""

    def __init__(self, dtype: str, shape: str) -> None:
        self.dtype = dtype
        self.shape = shape
        self.parts: dict[str, Row] = {}

    def add(self, row: Row) -> None:
        """The same part on a further rank is a replica."""
        self.parts.setdefault(row.piece.part, row)

    def joined(self) -> NDArray[np.float64]:
        rows = [row.partial for row in self.parts.values()]
        whole = rows[0]
        for row in rows[1:]:
            whole = merge(whole, row)
        return whole


class _StageMerge:
    """The ranks of one pipeline stage."""

    def __init__(self, stage: int, runs: Sequence[RankRun], report: MergeReport) -> None:
        self.stage = stage
        self.runs = runs
        self.report = report
        self.entries: dict[tuple[int, str], dict[str, Any]] = {}
        for run in runs:
            for place, entry in run.tensors.items():
                self.entries.setdefault(place, entry)
        self.order = {place: index for index, place in enumerate(self.entries)}
        self.sharded = {key for run in runs for key in run.pieces}
        self.seen: dict[str, set[str]] = {}

    def write(self, destination: Path) -> None:
        config = self.runs[0].info["config"]
        records = sorted({record for run in self.runs for record in run.records})
        run_dir = msmon_io.create_run_dir(destination, self.runs[0].rank)
        self.report.run_dirs.append(run_dir)
        with msmon_io.CsvWriter(
            run_dir, ndigits=config["ndigits"], step_count_per_record=config["step_count_per_record"]
        ) as writer:
            for record in records:
                tables = [run.tables(record) for run in self.runs]
                for step in sorted({step for own in tables for step in own}):
                    for table in self._step(step, [own.get(step, {}) for own in tables]):
                        writer.write(table)
        msmon_io.write_json(run_dir / "run.json", self._run_info(), root=run_dir)
        msmon_io.write_json(run_dir / "coverage.json", self._coverage(), root=run_dir)

    def _step(self, step: int, tables: Sequence[dict[str, msmon_io.Table]]) -> list[msmon_io.Table]:
        wholes: dict[Key, _Whole] = {}
        ops: dict[str, list[str]] = {}
        for run, own in zip(self.runs, tables, strict=True):
            for data_type, table in own.items():
                ops.setdefault(data_type, list(table.ops))
            for row in run.rows(step, own):
                if row.key[0] in WHOLE_TYPES or row.key[:3] in self.sharded:
                    wholes.setdefault(row.key, _Whole(row.dtype, row.shape)).add(row)
        by_type: dict[str, list[Key]] = {}
        for key, whole in wholes.items():
            if self._is_complete(key, whole):
                by_type.setdefault(key[0], []).append(key)
        return [
            self._table(step, data_type, keys, wholes, ops.get(data_type) or list(self.runs[0].info["config"]["ops"]))
            for data_type, keys in by_type.items()
        ]

    def _is_complete(self, key: Key, whole: _Whole) -> bool:
        expected = self.entries[parameter_of(self.entries, key)]["numel"]
        present = sum(row.piece.numel for row in whole.parts.values())
        if present == expected:
            return True
        ranks = sorted({run.rank for run in self.runs})
        self.report.incomplete[self.stage, key[0], key[2]] = (
            f"{present} of {expected} elements are on the ranks that wrote ({', '.join(map(str, ranks))})"
        )
        return False

    def _table(
        self, step: int, data_type: str, keys: list[Key], wholes: dict[Key, _Whole], ops: list[str]
    ) -> msmon_io.Table:
        keys.sort(key=lambda key: (key[3], self.order[parameter_of(self.entries, key)]))
        chosen = [wholes[key] for key in keys]
        self.report.rows += len(keys)
        self.report.sharded += sum(len(whole.parts) > 1 for whole in chosen)
        digits = [any(not row.exact and row.piece.part for row in whole.parts.values()) for whole in chosen]
        self.report.from_digits += sum(digits)
        self.seen.setdefault(data_type, set()).update(key[2] for key in keys)
        numbers = number_ops(ops)
        values = finalize(np.array([whole.joined() for whole in chosen]), numbers)
        for op in set(numbers) - set(mergeable(numbers)):
            values[[*np.flatnonzero(digits)], numbers.index(op)] = np.nan
        texts = {
            "shape": [whole.shape for whole in chosen],
            "dtype": [whole.dtype for whole in chosen],
        }
        return msmon_io.Table(
            data_type=data_type,
            step=step,
            names=[key[2] for key in keys],
            vpp_stages=[key[1] for key in keys],
            micro_steps=[key[3] for key in keys] if keys[0][3] >= 0 else None,
            ops=[op for op in ops if op in OPS or op in TEXT_OPS],
            values=values,
            text={op: texts[op] for op in TEXT_OPS if op in ops},
        )

    def _run_info(self) -> dict[str, Any]:
        tensors = [
            {**entry, "local_shape": entry["shape"], "local_numel": entry["numel"], "shards": []}
            for entry in self.entries.values()
        ]
        return {**self.runs[0].info, "merged_from": [run.rank for run in self.runs], "tensors": tensors}

    def _coverage(self) -> dict[str, Any]:
        missing = [
            {"data_type": data_type, "name": name, "reason": reason}
            for (stage, data_type, name), reason in self.report.incomplete.items()
            if stage == self.stage
        ]
        lost = {(entry["data_type"], entry["name"]) for entry in missing}
        types = sorted({*self.seen, *(data_type for data_type, _ in lost)})
        seen = {data_type: self.seen.get(data_type, set()) for data_type in types}
        return {
            "schema": 1,
            "expected": {t: len(seen[t] | {name for data_type, name in lost if data_type == t}) for t in types},
            "seen": {t: len(seen[t]) for t in types},
            "missing": missing,
            "notes": [f"merged from ranks {', '.join(str(run.rank) for run in self.runs)}"],
            "skipped_steps": [],
        }
