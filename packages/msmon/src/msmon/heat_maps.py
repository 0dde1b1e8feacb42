"""Histograms of Adam's update and ratio: their bins, and the way into TensorBoard's pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from msmon_hooks import TensorRef
from msmon_io import Table

BINS = 64
EDGES = tuple(np.linspace(-1.5, 1.5, BINS + 1).tolist())
"""Adam's ratio lies in [-1, 1] while gradients keep their sign, and beyond where they begin to."""

KINDS = ("adam_update", "adam_ratio")
"""The two rows of counts of a parameter, in order."""

_COUNTS = len(EDGES) + 4


def histograms(
    step: int, refs: Sequence[TensorRef], handles: NDArray[np.intp], matrix: NDArray[np.float64]
) -> list[tuple[Table, NDArray[np.float64]]]:
    """The histograms of a step.

    Args:
        step: number of the step.
        refs: the parameters.
        handles: of each, the first of its rows.
        matrix: what the transfer brought, float64 `[n, 8]` or `[n, 10]`.

    Returns:
        Of each of `KINDS` a table of what is in no bin or infinitely far (`nans`, `infs`), and how many elements lie
        in each bin, `[parameters, BINS]`, the smallest first; the outermost bins hold what lies beyond too.
    """
    counts = len(KINDS) * _COUNTS
    rows = handles[:, None] + np.arange(-(-counts // matrix.shape[1]))
    numbers = matrix[rows].reshape(len(refs), -1)[:, :counts].reshape(-1, len(KINDS), _COUNTS)
    below, bins, above = numbers[..., 0], numbers[..., 1 : BINS + 1].copy(), numbers[..., BINS + 1]
    nans, lowest, highest = np.moveaxis(numbers[..., BINS + 2 :], -1, 0)
    bins[..., 0] += below + lowest
    bins[..., -1] += above + highest
    tables = [
        Table(
            data_type=kind,
            step=step,
            names=[ref.name for ref in refs],
            vpp_stages=[ref.vpp_stage for ref in refs],
            ops=["nans", "infs"],
            values=np.stack([nans[:, index], (lowest + highest)[:, index]], axis=-1),
        )
        for index, kind in enumerate(KINDS)
    ]
    return list(zip(tables, np.moveaxis(bins, 1, 0), strict=True))


@runtime_checkable
class PictureWriter(Protocol):
    """A writer that shows histograms; see `msmon_io.TensorBoardWriter`."""

    def write(self, table: Table) -> None:
        """Take a table."""

    def add_heat_maps(self, table: Table, counts: NDArray[np.float64]) -> None:
        """Take the newest columns of the pictures that are called like the rows of a table."""
