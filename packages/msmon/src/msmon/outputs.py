"""Where results go: the run directory, the writers that the configuration asks for, and the files beside them."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

import msmon_io
from msmon.config import Config
from msmon_hooks import Guarded
from msmon_io import Writer
from msmon_io.files import make_dir

logger = logging.getLogger("msmon")


@frozen(kw_only=True)
class TrainingProcess:
    """This process among all that train."""

    framework: str
    rank: int
    world_size: int
    output_dir: Path
    pipeline: Sequence[int]
    """Ranks of the pipeline-parallel group of this process, in its order; the next two likewise."""
    data: Sequence[int]
    tensor: Sequence[int]
    micro_steps: int | None = 1
    """Of a step."""
    chunks: int = 1
    """Of the model, in a virtual pipeline."""

    @property
    def pp_stage(self) -> int:
        """Position in the pipeline."""
        return self.pipeline.index(self.rank) if self.rank in self.pipeline else 0

    def parallel(self) -> dict[str, list[int]]:
        """Name of a dimension of parallelism to the ranks of this process's group."""
        return {"pipeline": list(self.pipeline), "data": list(self.data), "tensor": list(self.tensor)}


def check_output_dir(config: Config, output_dir: Path) -> None:
    """Make the output directory, if the configuration writes files: what cannot work is said before the training.

    Raises:
        OSError: it cannot be created or written to; the message says which and what to do.
    """
    if set(config.format) == {"api"}:
        return
    try:
        make_dir(output_dir)
        if not os.access(output_dir, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _with_way_out(error, output_dir) from error


def _with_way_out(error: OSError, output_dir: Path) -> OSError:
    return type(error)(
        error.errno,
        f"the output directory cannot be created: {error.strerror}; set MONITOR_OUTPUT_DIR to a directory that can be "
        "written",
        str(output_dir),
    )


def make_run_dir(config: Config, output_dir: Path, rank: int) -> Path | None:
    """The directory of this run and rank, or None where the configuration writes no files.

    Raises:
        OSError: it cannot be created; the message says which and what to do.
    """
    if set(config.format) == {"api"}:
        return None
    try:
        if config.second_form:
            return make_dir(output_dir / f"rank_{rank}")
        if config.append_output:
            start, end = config.append_output
            return msmon_io.find_run_dir(output_dir, rank, start, end)
        return msmon_io.create_run_dir(output_dir, rank)
    except OSError as error:
        raise _with_way_out(error, output_dir) from error


def make_writers(
    config: Config, run_dir: Path | None, process: TrainingProcess, on_failure: Callable[[str, str], None]
) -> list[Writer]:
    """One writer for each format that writes files.

    A format that cannot be written, because it needs a package that is not installed for instance, is an error line,
    and `on_failure` is told of it.
    """
    if run_dir is None:
        return []
    context = msmon_io.WriterContext(
        run_dir=run_dir, rank=process.rank, ndigits=config.ndigits, step_count_per_record=config.step_count_per_record
    )
    names = [name for name in config.format if name != "api"]
    second_form = config.second_form

    def open_one(name: str) -> Writer:
        if second_form is None or name != "csv":
            return msmon_io.open_writer(name, context)
        return msmon_io.SecondFormWriter(
            run_dir,
            ops=second_form.ops(),
            ndigits=config.ndigits,
            step_count_per_record=config.step_count_per_record,
            micro_steps=process.micro_steps or 1,
            chunks=process.chunks,
        )

    opened = [Guarded(f"output by {name}", on_failure).run(open_one, name) for name in names]
    return [writer for writer in opened if writer is not None]


class JsonFile:
    """A JSON file of the run directory that is written several times; a failure is logged once."""

    def __init__(self, run_dir: Path | None, name: str) -> None:
        self._path = None if run_dir is None else run_dir / name
        self._failed = False

    def write(self, document: dict[str, Any]) -> None:
        """Replace the file."""
        if self._path is None:
            return
        try:
            msmon_io.write_json(self._path, document, root=self._path.parent)
        except Exception as error:
            if not self._failed:
                self._failed = True
                logger.error("%s was not written, training goes on: %s", self._path, error)
