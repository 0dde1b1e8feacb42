"""Makes the data of a page small enough, and says what was left out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import numpy as np

from msmon.reading.page.blobs import encode
from msmon.reading.page.series import TypeSeries

#: Curves of fewer points say too little: rather fewer tensors.
_FEWEST_BINS = 60
_ENOUGH_BINS = 200
#: Shares of the room when not everything fits: the heat map over all ranks first, then layers of each rank.
_HEAT_MAP_SHARE = 0.5
_LAYER_SHARE = 0.25
#: So much more than these shares may be taken.
_SLACK = 1.1
#: Names may take so much of the room; beyond that tensors lose their row.
_NAME_SHARE = 0.4
#: So many values are packed to see what they cost; it may be a little more for those that are chosen.
_SAMPLE = 1 << 20
MARGIN = 0.95
#: Bytes for each byte that was packed: four characters stand for three, and deflate adds five bytes to 16,000.
_BASE64 = 4 / 3 * 1.001


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
    """Bytes of a page, base64 included."""

    frame: float = 0.0
    """What no thinning changes."""
    whole: float = 0.0
    """A value of 32 bits."""
    half: float = 0.0
    """A value of 16 bits."""
    name: float = 0.0
    """A tensor, whatever is shown of it: its name and its place."""

    def worst(self) -> Costs:
        """With values that deflate does not make smaller: no values need more."""
        return attrs.evolve(self, whole=4 * _BASE64, half=2 * _BASE64)


def value_costs(series: Sequence[TypeSeries]) -> Costs:
    """What values cost, by packing those of some tensors as the page would."""
    share = min(_SAMPLE / max(sum(one.lines.size for one in series), 1), 1)
    packed, counts = [0, 0], [1, 1]
    for one in series:
        # Not every n-th: the layers of a model repeat.
        some = np.sort(np.random.default_rng(0).permutation(len(one.tensors))[: math.ceil(share * len(one.tensors))])
        thinner = attrs.evolve(one, lines=one.lines[:, :, some], worst=one.worst[:, some])
        for half, kept in enumerate((thinner, thinner.coarser(-(-len(one.bins) // _ENOUGH_BINS)))):
            for number in range(len(one.stats)):
                packed[half] += len(encode(kept.lines[:, number], half=bool(half)))
                counts[half] += kept.lines[:, number].size
    return Costs(whole=packed[0] / counts[0], half=packed[1] / counts[1])


def fit(series: Sequence[TypeSeries], room: float, costs: Costs, *, with_worst: bool) -> Fit:
    """The most that fits into `room` bytes beside the frame.

    Args:
        with_worst: the page has the worst of all lines even where every line is there for all tensors.
    """
    longest = max((len(one.bins) for one in series), default=1)
    most = max((len(one.tensors) for one in series), default=0)
    names = costs.name * sum(len(one.tensors) for one in series)
    if names > _NAME_SHARE * room:
        most = max(int(most * _NAME_SHARE * room / names), 1)
    # Of each data type as many tensors as may have a row, with their statistics, and with those once for each line.
    tensors = [min(len(one.tensors), most) for one in series]
    rows = sum(count * len(one.stats) for count, one in zip(tensors, series, strict=True))
    curves = sum(count * len(one.stats) * len(one.lines) for count, one in zip(tensors, series, strict=True))
    curves += rows if with_worst or most < max((len(one.tensors) for one in series), default=0) else 0
    room -= min(names, _NAME_SHARE * room)
    if not curves or curves * longest * costs.whole <= room:
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
    # As many as whole groups of bins give; a few more than asked for rather than a lot less.
    bins = -(-longest // -(-longest // int(_SLACK * bins)))
    share = min(_SLACK * _HEAT_MAP_SHARE * values / bins / rows, 1)
    tensors = max(int(most * share), 1)
    left = values / bins - rows * share - layers * layer_rows
    detail = max(min(int(left / sum(len(one.lines) * len(one.stats) for one in series)), tensors), 1)
    return Fit(half=True, bins=bins, tensors=tensors, detail=detail, layers=layers)
