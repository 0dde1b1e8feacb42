"""Makes the data of a page small enough, and says what was left out."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from msmon.reading.page.series import TypeSeries

#: Curves of fewer points say too little: rather fewer tensors.
_FEWEST_BINS = 60
_ENOUGH_BINS = 200
#: Shares of the room when not everything fits: the heat map over all ranks first, then layers of each rank.
_HEAT_MAP_SHARE = 0.5
_LAYER_SHARE = 0.25
#: Names may take so much of the room; beyond that tensors lose their row.
_NAME_SHARE = 0.4


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


@attrs.frozen(kw_only=True)
class Costs:
    """Bytes of a page, base64 included. The defaults are of noisy values; others cost less."""

    whole: float = 4.6
    """A value of 32 bits."""
    half: float = 2.0
    """A value of 16 bits."""
    name: float = 20.0
    """A tensor, whatever is shown of it: its name and its place."""


def fit(series: Sequence[TypeSeries], room: float, costs: Costs) -> Fit:
    """The most that fits into `room` bytes, by estimate."""
    longest = max((len(one.bins) for one in series), default=1)
    most = max((len(one.tensors) for one in series), default=0)
    names = costs.name * sum(len(one.tensors) for one in series)
    if names > _NAME_SHARE * room:
        most = max(int(most * _NAME_SHARE * room / names), 1)
    # Of each data type as many tensors as may have a row, with their statistics, and with those once for each line.
    tensors = [min(len(one.tensors), most) for one in series]
    rows = sum(count * len(one.stats) for count, one in zip(tensors, series, strict=True))
    curves = sum(count * len(one.stats) * len(one.lines) for count, one in zip(tensors, series, strict=True))
    room -= min(names, _NAME_SHARE * room)
    if curves * longest * costs.whole <= room:
        return Fit(half=False, bins=longest, tensors=most, detail=most, layers=False)
    bins = int(room / (curves * costs.half))
    if bins >= min(_ENOUGH_BINS, longest):
        return Fit(half=True, bins=min(bins, longest), tensors=most, detail=most, layers=False)
    return _fit_parts(series, room / costs.half, most, longest, rows)


def _fit_parts(series: Sequence[TypeSeries], values: float, most: int, longest: int, rows: int) -> Fit:
    """Every line only for some tensors; `rows` curves for the worst of all lines."""
    fewest = min(_FEWEST_BINS, longest)
    bins = max(min(int(_HEAT_MAP_SHARE * values / rows), _ENOUGH_BINS, longest), fewest)
    layer_rows = sum(len(one.lines) * len(one.stats) * len(set(one.layers)) for one in series)
    layers = layer_rows * _FEWEST_BINS <= _LAYER_SHARE * values
    if layers:
        bins = max(min(bins, int(_LAYER_SHARE * values / layer_rows)), fewest)
    share = min(_HEAT_MAP_SHARE * values / bins / rows, 1)
    tensors = max(int(most * share), 1)
    left = values / bins - rows * share - layers * layer_rows
    detail = max(min(int(left / sum(len(one.lines) * len(one.stats) for one in series)), tensors), 1)
    return Fit(half=True, bins=bins, tensors=tensors, detail=detail, layers=layers)
