"""Makes the data of a page small enough, and says what was left out."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from .series import TypeSeries

#: Bytes of a page that one value costs, base64 included, measured on noisy values; others cost less.
_WHOLE_COST = 4.6
_HALF_COST = 2.0
#: Curves of fewer points say too little: rather fewer tensors.
_FEWEST_BINS = 60
_ENOUGH_BINS = 200
#: Shares of the room when not everything fits: the heat map over all ranks first, then layers of each rank.
_HEAT_MAP_SHARE = 0.5
_LAYER_SHARE = 0.25


@attrs.frozen(kw_only=True)
class Fit:
    """What of the series goes into the page."""

    half: bool
    """16 bits a value."""
    bins: int
    """At most so many bins over the steps."""
    tensors: int
    """For so many tensors of each data type the heat map has a row."""
    detail: int
    """For so many tensors of each data type every line (rank) is there."""
    layers: bool
    """Where not all tensors are in detail: is the worst of each layer there for every line?"""


def fit(series: Sequence[TypeSeries], room: float) -> Fit:
    """The most that fits into `room` bytes, by estimate."""
    most = max((len(one.tensors) for one in series), default=0)
    longest = max((len(one.bins) for one in series), default=1)
    everything = sum(one.lines.shape[0] * len(one.stats) * len(one.tensors) * len(one.bins) for one in series)
    if everything * _WHOLE_COST <= room:
        return Fit(half=False, bins=longest, tensors=most, detail=most, layers=False)
    curves = sum(one.lines.shape[0] * len(one.stats) * len(one.tensors) for one in series)
    bins = int(room / (curves * _HALF_COST))
    if bins >= min(_ENOUGH_BINS, longest):
        return Fit(half=True, bins=min(bins, longest), tensors=most, detail=most, layers=False)
    return _fit_parts(series, room / _HALF_COST, most, longest)


def _fit_parts(series: Sequence[TypeSeries], values: float, most: int, longest: int) -> Fit:
    rows = sum(len(one.stats) * len(one.tensors) for one in series)
    layer_rows = sum(one.lines.shape[0] * len(one.stats) * len(set(one.layers)) for one in series)
    bins = max(min(int(_HEAT_MAP_SHARE * values / rows), _ENOUGH_BINS, longest), min(_FEWEST_BINS, longest))
    layers = layer_rows * _FEWEST_BINS <= _LAYER_SHARE * values
    if layers:
        bins = max(min(bins, int(_LAYER_SHARE * values / layer_rows)), min(_FEWEST_BINS, longest))
    tensors = min(most, int(_HEAT_MAP_SHARE * values / bins / (rows / most)))
    left = values / bins - rows * min(tensors / most, 1) - layers * layer_rows
    lines = sum(one.lines.shape[0] * len(one.stats) for one in series)
    detail = max(min(int(left / lines), tensors), 1)
    return Fit(half=True, bins=bins, tensors=tensors, detail=detail, layers=layers)
