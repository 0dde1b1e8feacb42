"""What happens to a step after it was collected: tables, alerts, files; all of it beside the training."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import msmon_io
from msmon.alerts import Alerts
from msmon.closing_line import say
from msmon.collector import CollectedStep
from msmon.config import Config
from msmon.heat_maps import PictureWriter, histograms
from msmon.outputs import JsonFile
from msmon.partials import PartialsWriter
from msmon.rows import Layout, RowReader, StepRows
from msmon.run_info import now
from msmon_hooks import ADAM_HISTOGRAM, Coverage, Guarded, Hook
from msmon_io import Table, Writer
from msmon_io.memory_writer import table_metrics

SECONDS_BETWEEN_COVERAGE = 30.0
"""A killed run leaves a `coverage.json` that is at most so old."""


class Pipeline:
    """Takes collected steps on the training's thread and works them off on a background thread.

    Holds neither the model nor the monitor, so that it can still finish when both are gone.
    """

    def __init__(
        self,
        *,
        rank: int,
        config: Config,
        writers: Sequence[Writer],
        alerts: Alerts | None,
        coverage: Coverage,
        run_dir: Path | None,
        run_info: dict[str, Any],
    ) -> None:
        self.rank = rank
        self._appends = bool(config.append_output)
        self.coverage = coverage
        self.info_part = self._part("run.json")
        self.run_dir = run_dir
        self.run_info = run_info
        self._counts_micro_steps = run_info["grad_acc_steps"] is None
        """The content of `run.json`; written again when the first step has shown the activations."""
        self._reader = RowReader(config.ops)
        self._layout: Layout | None = None
        self._outputs = [(writer, self._part(f"output by {type(writer).__name__}")) for writer in writers]
        self._partials = None
        if run_dir is not None:
            self._partials = PartialsWriter(run_dir, step_count_per_record=config.step_count_per_record)
        self._partials_part = self._part("partials")
        self._alerts = alerts
        self._alerting = self._part("alerts")
        self._drawing = self._part("histograms")
        self._finishing = self._part("closing line")
        self._background = msmon_io.Background()
        self._run_file = JsonFile(run_dir, "run.json")
        self._coverage_file = JsonFile(run_dir, "coverage.json")
        self._coverage_part = self._part("coverage.json")
        self._latest: dict[str, Table] = {}
        self._steps = 0
        self._coverage_written = -SECONDS_BETWEEN_COVERAGE
        self._left_out: set[tuple[str, int, str]] = set()
        self._finished = False
        self._begun = self._stepped = time.perf_counter(), Hook.seconds
        """When the first step began and the last one ended, and the seconds in hooks until then."""

    def _part(self, name: str) -> Guarded:
        return Guarded(name, self.coverage.switched_off)

    def begin(self) -> None:
        """Write what is known before the first step."""
        self._run_file.write(self.run_info)

    def submit(self, collected: CollectedStep) -> None:
        """Work the step off in the background; waits while the step before it is not done."""
        self._background.submit(self._process, collected)
        self._stepped = time.perf_counter(), Hook.seconds

    def run_later(self, job: Callable[..., object], *args: Any) -> None:
        """Do something beside the training, after the steps that were handed over."""
        self._background.submit(job, *args)

    def metrics(self, data_type: str) -> dict[str, dict[str, Any]]:
        """Tag -> {statistic: value} of the last step that is done."""
        table = self._latest.get(data_type)
        return {} if table is None else table_metrics(table, self.rank)

    def drain(self) -> None:
        """Wait for the steps that were handed over."""
        self._background.drain()

    def _process(self, collected: CollectedStep) -> None:
        event = collected.event
        matrix = collected.transfer.matrix()
        if event.skip_handle >= 0 and matrix[event.skip_handle, 0] > 0:
            self.coverage.skipped_step(event.step)
        rows = self._reader.read(collected.refs, collected.handles, matrix)
        made = rows.tables(event.step)
        if rows.layout is not self._layout:
            self._cover(rows.layout, made)
        if self._alerts is not None:
            for row_set, values in rows.row_sets:
                self._alerting.run(self._alerts.observe, event, row_set.refs, values, row_set.stats)
        if rows.layout.histograms:
            self._drawing.run(self._draw, event.step, rows, matrix)
        for writer, part in self._outputs:
            for table in made:
                part.run(writer.write, table)
            part.run(writer.flush)
        if self._partials is not None:
            self._partials_part.run(self._partials.write, event.step, rows.layout.statistics.refs, rows.partials)
        if self._counts_micro_steps:
            self.run_info["grad_acc_steps"] = max(self.run_info["grad_acc_steps"] or 1, event.last_micro_step + 1)
        self._latest = {table.data_type: table for table in made}
        self._steps += 1
        if time.monotonic() - self._coverage_written > SECONDS_BETWEEN_COVERAGE:
            self._coverage_written = time.monotonic()
            self._coverage_part.run(self._write_coverage)

    def _cover(self, layout: Layout, tables: Sequence[Table]) -> None:
        for ref, reason in layout.left_out:
            key = ref.data_type, ref.vpp_stage, ref.name
            if key not in self._left_out:
                self._left_out.add(key)
                self.coverage.explain(ref.data_type, ref.name, reason, stage=ref.vpp_stage)
        for table in tables:
            self.coverage.saw(table.data_type, table.names, table.vpp_stages)
        self._layout = layout

    def _write_coverage(self) -> None:
        self._coverage_file.write(self.coverage.to_dict())

    def _draw(self, step: int, rows: StepRows, matrix: NDArray[np.float64]) -> None:
        drawn = rows.layout.histograms
        found = histograms(step, drawn, rows.histogram_handles, matrix)
        for writer, part in self._outputs:
            if isinstance(writer, PictureWriter):
                for table, counts in found:
                    part.run(writer.write, table)
                    part.run(writer.add_heat_maps, table, counts)
        self.coverage.saw(ADAM_HISTOGRAM, [ref.name for ref in drawn], [ref.vpp_stage for ref in drawn])

    def finish(self) -> None:
        """Write what is pending, close the files and say what was recorded; harmless when called again."""
        if self._finished:
            return
        self._finished = True
        self._background.submit(self._finish)
        self._background.close()

    def discard(self) -> None:
        """No step was submitted, and none will be: remove what was made, but nothing that was there before."""
        self._finished = True
        self._background.close()
        for writer, part in self._outputs:
            part.always(writer.close)
        if self._partials is not None:
            self._partials_part.always(self._partials.close)
        if self.run_dir is not None and not self._appends:
            shutil.rmtree(self.run_dir, ignore_errors=True)

    def _finish(self) -> None:
        for writer, part in self._outputs:
            part.always(writer.close)
        if self._partials is not None:
            self._partials_part.always(self._partials.close)
        if self._alerts is not None:
            self._alerting.always(self._alerts.close)
        self._coverage_part.always(self._write_coverage)
        # The last of the files: who follows the run takes it for the end.
        self._run_file.write({**self.run_info, "end_time": now()})
        self._finishing.always(self._say_what_was_recorded)

    def _say_what_was_recorded(self) -> None:
        seconds, in_hooks = (end - begin for begin, end in zip(self._begun, self._stepped, strict=True))
        # Writers of other packages need not count.
        losses = [getattr(one, "losses", None) for one in (self._partials, *(writer for writer, _ in self._outputs))]
        say(
            self.coverage.to_dict(),
            steps=self._steps,
            anomalies=None if self._alerts is None else self._alerts.count,
            share=in_hooks / seconds if seconds else 0.0,
            lost=sum(one.lost for one in losses if isinstance(one, msmon_io.Losses)),
            files=self.run_dir,
        )
