"""The sufficient statistics of a step, written where a rank holds only a part of a tensor: so that merging is exact."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

import msmon_io
from msmon_hooks import TensorRef

FOLDER = "partials"
SCHEMA = 1


@frozen(kw_only=True, eq=False)
class Partials:
    """The rows of one rank and step."""

    data_types: list[str]
    vpp_stages: list[int]
    names: list[str]
    micro_steps: list[int]
    """-1 where a tensor exists once a step."""
    dtypes: list[str]
    matrix: NDArray[np.float64]
    """float64 `[rows, 8]`, columns `msmon_stats.FIELDS`."""


def partials_path(run_dir: Path, step: int) -> Path:
    """The file of a step."""
    return run_dir / FOLDER / f"step_{step}.npz"


class PartialsWriter:
    """Writes `partials/step_<n>.npz` into a run directory; a step without sharded tensors has no file."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self.losses = msmon_io.Losses(part="partials")

    def write(self, step: int, refs: Sequence[TensorRef], matrix: NDArray[np.float64]) -> None:
        """Write the rows whose tensor is sharded; what cannot be written is logged once and counted."""
        chosen = [index for index, ref in enumerate(refs) if ref.shard is not None]
        if not chosen:
            return
        rows = [refs[index] for index in chosen]
        file = io.BytesIO()
        np.savez_compressed(
            file,
            schema=np.array(SCHEMA),
            data_type=np.array([ref.data_type for ref in rows]),
            vpp_stage=np.array([ref.vpp_stage for ref in rows]),
            name=np.array([ref.name for ref in rows]),
            micro_step=np.array([-1 if ref.micro_step is None else ref.micro_step for ref in rows]),
            dtype=np.array([ref.dtype for ref in rows]),
            partials=matrix[chosen],
        )
        path = partials_path(self._run_dir, step)
        try:
            msmon_io.write_bytes(path, file.getvalue(), root=self._run_dir)
        except OSError as error:
            self.losses.add(len(rows), error, str(path))

    def close(self) -> None:
        """Report what could not be written."""
        self.losses.report()


def read_partials(run_dir: Path, step: int) -> Partials | None:
    """The rows of a step, or None where the rank wrote none.

    Raises:
        ValueError: the file is no such file, or one of a later version; the message names it.
        OSError: it cannot be read.
    """
    path = partials_path(run_dir, step)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        found = int(arrays["schema"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if found != SCHEMA:
        raise ValueError(f"{path}: its schema is {found}, this version of msmon reads {SCHEMA}")
    return Partials(
        data_types=arrays["data_type"].tolist(),
        vpp_stages=arrays["vpp_stage"].tolist(),
        names=arrays["name"].tolist(),
        micro_steps=arrays["micro_step"].tolist(),
        dtypes=arrays["dtype"].tolist(),
        matrix=arrays["partials"],
    )


def steps_with_partials(run_dir: Path) -> list[int]:
    """The steps that a rank wrote, in order."""
    names = [path.stem.removeprefix("step_") for path in (run_dir / FOLDER).glob("step_*.npz")]
    return sorted(int(name) for name in names if name.isdecimal())
