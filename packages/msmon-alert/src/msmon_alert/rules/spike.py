"""AnomalySpike: a value far outside of everything in its recent past."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import attrs
import numpy as np
import numpy.typing as npt

from msmon_alert.arguments import number, require
from msmon_alert.batch import Batch, Bools, Floats
from msmon_alert.memory import Array
from msmon_alert.rule import ColumnRule

_TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation, for a normal distribution."""
_SMALLEST_SIGMA = 0.02
_SMALLEST_SIGMA_OF_WEIGHTS = 0.005
"""A step moves a weight by a fraction of a percent, so a jump of a few percent is news."""
_SMALLEST_SIGMA_OF_MOMENTS = 0.1
"""One large gradient among many, nothing new by itself, moves a moment at once and for long."""
_SMALLEST_SIGMA_OF_SECOND_MOMENTS = 2 * _SMALLEST_SIGMA_OF_MOMENTS
"""They are of squares: what doubles a gradient makes them four times as large."""
_SMALLEST_SIGMA_IN_STEPS = 0.03
"""`zeros` moves by one unit of a layer, `min` and `max` of activations from one element to another."""
_SMALLEST_SIGMA_OF_WEIGHTS_OUTLIERS = 0.01
"""A step moves the largest weight by hardly more than the learning rate."""
_SIZES = frozenset({"norm", "rms"})
_OUTLIERS = frozenset({"min", "max"})


@attrs.frozen
class AnomalySpike(ColumnRule):
    """Fires when a value lies outside the range of the last `window` values by more than `threshold` robust sigmas.

    Everything is taken of the logarithm, so the same rule serves weights, gradients and moments of any size, and a
    rise by ten counts as much as a fall to a tenth. The distance is counted from the nearest value of the window rather
    than from its median, so a known swing is quiet, and a lasting change alarms once. The rule keeps quiet until the
    window is full.

    One sigma is 1.4826 times the median absolute deviation of the window; where the window has a trend (from the median
    of its first half to that of its second), that of the deviations from the trend, plus twice the trend's slope, if
    this is less. To it comes a lower bound, so that a series that hardly moves does not alarm at nothing: 0.02 (two
    percent); 0.005 for weights, which move that little; 0.1 for first moments, which one large gradient moves, and 0.2
    for second moments, which are of squares, and further optimizer state (`state`), which may be; 0.03 for `zeros`,
    `min` and `max`, which move in steps, and 0.01 for `min` and `max` of weights.

    It judges `norm`, `rms` and, as the share of elements that are *not* zero, `zeros`; of activations (`actv`) and of
    weights after the step (`param_updated`) also the outliers, `min` and `max`. These count when they rise: one that
    falls may be on its way through zero. So may the norm of a single number, whose falls do not count where the table
    tells it by a `min` that equals the `max`.

    Integer tensors are not judged, since masks and positions change as the batches do. `zeros` of a second moment is
    passed over too, since nearly all of its elements are always small, and that of `state` as well. A value of exactly
    0 has no logarithm: `AnomalyVanish` and `AnomalyDead` are for it.

    *What it means for training*: something changed from one step to the next: a loss spike, a corrupted batch, a weight
    or moment that was overwritten, a learning rate that jumped, half-precision gradients that underflow.

    *Cost*: 4 bytes a tag, statistic and window entry (128 bytes with the default window); two passes over the windows.

    *Blind spots*: the first `window` values of a tensor; a slow drift; spikes as large as one that is still in the
    window; tensors whose norm swings over orders of magnitude anyway (gradients and moments of a router); one element
    among millions, which the norm hides; token ids that are wrong but look like others.

    Raises ValueError for a threshold that is not > 0 or a window that is not an integer >= 8.

    >>> import numpy as np
    >>> from msmon_alert import Monitor
    >>> monitor = Monitor([AnomalySpike()])
    >>> norms = [1 + 0.1 * np.sin(step) for step in range(40)] + [30.0]
    >>> [step for step, norm in enumerate(norms) if monitor.observe(step, ["w"], ["norm"], np.array([[norm]]))]
    [40]
    """

    threshold: float = 8.0
    """Distance from the window's range, in robust sigmas."""
    window: int = 32
    """How many values make up the recent past."""

    history_fields: ClassVar[Mapping[str, npt.DTypeLike]] = {"seen": np.int64, "logs": np.float32}

    def __attrs_post_init__(self) -> None:
        require(number("threshold", self.threshold, above=0), number("window", self.window, at_least=8, integer=True))

    def history_shape(self, field: str) -> tuple[int, ...]:
        return (self.window,) if field == "logs" else ()

    def applies(self, stat: str) -> bool:
        return stat in _SIZES or stat in _OUTLIERS or stat == "zeros"

    def check_column(
        self, stat: str, values: Floats, history: Mapping[str, Array], batch: Batch
    ) -> tuple[Bools, Floats | None]:
        size = 1 - values if stat == "zeros" else np.abs(values)
        used = np.isfinite(size) & (size > 0) & ~batch.discrete
        if stat == "zeros":
            used &= ~(batch.layout.mask("exp_avg_sq") | batch.layout.mask("state"))
        elif stat in _OUTLIERS:
            used &= batch.layout.mask("actv") | batch.layout.mask("param_updated")
        if not used.any():
            return np.zeros(len(values), dtype=np.bool_), None
        seen, logs = history["seen"], history["logs"]
        log = np.log(np.where(used, size, 1.0))
        may_fall = np.zeros(len(log), dtype=np.bool_) if stat in _OUTLIERS else ~_single_numbers(batch)
        fired, centre = self._outside(log, used, may_fall, seen, logs, _smallest_sigma(stat, batch))
        positions = np.flatnonzero(used)
        logs[positions, seen[positions] % self.window] = log[positions]
        seen += used
        middle = np.exp(centre)
        return fired, 1 - middle if stat == "zeros" else middle

    def _outside(
        self, log: Floats, used: Bools, may_fall: Bools, seen: Array, logs: Array, smallest: Floats
    ) -> tuple[Bools, Floats]:
        """Where the value is too far outside its window, [n], and the median of the windows that were looked at.

        A fall counts where `may_fall` is set.
        """
        fired = np.zeros(len(log), dtype=np.bool_)
        centre = np.full(len(log), np.nan)
        last = logs[np.arange(len(log)), (seen - 1) % self.window]
        # The last value is in the window and sigma has a lower bound, so most rows are done after one comparison.
        far = np.where(may_fall, np.abs(log - last), log - last) > self.threshold * smallest
        rows = np.flatnonzero(used & far & (seen >= self.window))
        if not len(rows):
            return fired, centre
        in_order = (seen[rows, None] + np.arange(self.window)) % self.window
        window = logs[rows[:, None], in_order].astype(np.float64)
        value = log[rows]
        fall = np.where(may_fall[rows], np.min(window, axis=1) - value, -np.inf)
        beyond = np.maximum(value - np.max(window, axis=1), fall)
        near = beyond > self.threshold * smallest[rows]
        rows, window, beyond = rows[near], window[near], beyond[near]
        if not len(rows):
            return fired, centre
        fired[rows] = beyond > self.threshold * (_sigma(window) + smallest[rows])
        centre[rows] = np.median(window, axis=1)
        return fired, centre


def _deviation(values: Floats) -> Floats:
    """[n] of [n, window]: robust standard deviation."""
    return np.asarray(_TO_SIGMA * np.median(np.abs(values - np.median(values, axis=1, keepdims=True)), axis=1))


def _sigma(window: Floats) -> Floats:
    """[n] of [n, window], oldest value first: the smaller of the deviations from the median and from the trend."""
    half = window.shape[1] // 2
    slope = (np.median(window[:, -half:], axis=1) - np.median(window[:, :half], axis=1)) / (window.shape[1] - half)
    around_trend = _deviation(window - slope[:, None] * np.arange(window.shape[1])) + 2 * np.abs(slope)
    sigma: Floats = np.minimum(_deviation(window), around_trend)
    return sigma


def _single_numbers(batch: Batch) -> Bools:
    """[n], all elements of the tensor are equal, so most likely it has one only."""
    if not {"min", "max"} <= set(batch.stats):
        return np.zeros(len(batch.values), dtype=np.bool_)
    single: Bools = batch.column("min") == batch.column("max")
    return single


def _smallest_sigma(stat: str, batch: Batch) -> Floats:
    """[n], the lower bound of sigma."""
    mask = batch.layout.mask
    if stat in _OUTLIERS:
        return np.where(mask("param_updated"), _SMALLEST_SIGMA_OF_WEIGHTS_OUTLIERS, _SMALLEST_SIGMA_IN_STEPS)
    if stat not in _SIZES:
        return np.full(len(batch.values), _SMALLEST_SIGMA_IN_STEPS)
    return np.select(
        [mask("param_origin") | mask("param_updated"), mask("exp_avg"), mask("exp_avg_sq") | mask("state")],
        [_SMALLEST_SIGMA_OF_WEIGHTS, _SMALLEST_SIGMA_OF_MOMENTS, _SMALLEST_SIGMA_OF_SECOND_MOMENTS],
        _SMALLEST_SIGMA,
    )
