"""Assembles the page."""

from __future__ import annotations

import base64
import html
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from msmon.reading.binning import Bits
from msmon.reading.index import TensorKey
from msmon.reading.page.blobs import encode
from msmon.reading.page.fitting import MARGIN, Costs, Fit, fit, value_costs
from msmon.reading.page.series import Panel, TypeSeries
from msmon.reading.statistics import preferred, scale_of, worst_of

#: Bytes. Pages of this size go through mail and open at once.
PAGE_LIMIT = 10_000_000

_STYLES = ("uPlot.min.css", "page.css")
_SCRIPTS = ("data.js", "colors.js", "panels.js", "heatmap.js", "curves.js", "selection.js", "page.js")


@attrs.frozen(kw_only=True)
class Page:
    """Everything that a page shows."""

    kind: str
    """`report` or `diff`."""
    title: str
    subtitle: str
    panels: Sequence[Panel]
    series: Sequence[TypeSeries]
    lines: Sequence[str]
    """What the lines of the series are called: ranks or runs."""
    worst_label: str
    mark_label: str
    first_type: str | None = None
    """The data type that is shown first; default: the first."""

    @property
    def is_diff(self) -> bool:
        """Whether the lines are of two runs in turn, and the heat map shows their differences, which do not follow from
        the lines."""
        return self.kind == "diff"


@attrs.frozen(kw_only=True)
class Written:
    """What became of a page."""

    path: Path
    size: int
    """Bytes."""
    thinned: Sequence[str]
    """What was aggregated or left out, in sentences; empty if nothing was."""


def write_page(path: Path, page: Page, *, limit: int = PAGE_LIMIT) -> Written:
    """Write the page, thinning its curves so that it has at most `limit` bytes; the page says what was thinned."""
    costs = _costs(page)
    for margin, assumed in ((MARGIN, costs), (1.0, costs.worst())):
        chosen = fit(page.series, margin * (limit - costs.frame), assumed, with_worst=page.is_diff)
        text, thinned = _assemble(page, chosen)
        if len(text.encode()) <= limit:
            break
    path.write_text(text, encoding="utf-8")
    return Written(path=path, size=len(text.encode()), thinned=thinned)


def _costs(page: Page) -> Costs:
    """What things cost on this page: all names, and a sample of the values."""
    empty = attrs.evolve(page, series=[])
    everything = fit(page.series, math.inf, Costs(), with_worst=True)
    named = len(_packed(page, everything, lambda array: "b0000", []))
    nameless = len(_packed(empty, everything, lambda array: "", []))
    tensors = sum(len(one.tensors) for one in page.series)
    blobs = 3 * sum(len(one.stats) for one in page.series) * len(_blob(1000, "=" * 24))
    frame = len(_assemble(empty, everything)[0].encode()) + blobs
    return attrs.evolve(value_costs(page.series), frame=frame, name=(named - nameless) / max(tensors, 1))


def _assemble(page: Page, chosen: Fit) -> tuple[str, list[str]]:
    """The page, and what was thinned."""
    blobs: list[str] = []
    thinned: list[str] = []

    def put(array: Bits) -> str:
        blobs.append(_blob(len(blobs), encode(array, half=chosen.half)))
        return f"b{len(blobs) - 1}"

    meta = _packed(page, chosen, put, thinned)
    assets = resources.files("msmon.reading") / "assets"

    def read(name: str) -> str:
        return (assets / name).read_text(encoding="utf-8")

    parts = {
        "title": html.escape(page.title),
        "styles": "\n".join(map(read, _STYLES)),
        "meta": meta,
        "blobs": "\n".join(blobs),
        "library": f"/*\n{read('uPlot.LICENSE')}*/\n{read('uPlot.iife.min.js')}",
        "scripts": "\n".join(map(read, _SCRIPTS)),
    }
    text = read("page.html")
    for name, part in parts.items():
        before, _, after = text.partition(f"{{{{{name}}}}}")
        text = before + part + after
    return text, thinned


def _blob(number: int, text: str) -> str:
    return f'<script type="text/plain" id="b{number}">{text}</script>'


def _packed(page: Page, chosen: Fit, put: Callable[[Bits], str], thinned: list[str]) -> str:
    """Everything but the values. Deflated and in base64, no name of a model can be taken for markup."""
    names: dict[TensorKey, int] = {}
    types = [_type(page, one, chosen, names, put, thinned) for one in page.series]
    meta = {
        "kind": page.kind,
        "title": page.title,
        "subtitle": page.subtitle,
        "panels": [attrs.asdict(panel) for panel in page.panels],
        "types": types,
        "names": [[key.pp_stage, key.vpp_stage, key.name] for key in names],
        "stages": len({(key.pp_stage, key.vpp_stage) for key in names}) > 1,
        "worst_label": page.worst_label,
        "mark_label": page.mark_label,
        "first": page.first_type or (page.series[0].data_type if page.series else None),
        "fit": thinned,
        "footer": f"Made {datetime.now():%Y-%m-%d %H:%M} by msmon. Curves are drawn by uPlot 1.6.32 (MIT licence).",
    }
    return base64.b64encode(zlib.compress(json.dumps(meta).encode("utf-8"), 9)).decode("ascii")


def _type(
    page: Page,
    series: TypeSeries,
    chosen: Fit,
    names: dict[TensorKey, int],
    put: Callable[[Bits], str],
    thinned: list[str],
) -> Mapping[str, Any]:
    series = series.coarser(-(-len(series.bins) // chosen.bins))
    layer_names, layer_of = series.group_numbers()
    every = len(series.tensors)
    kept = np.sort(series.interest[: chosen.tensors])
    detail = np.sort(series.interest[: chosen.detail])
    in_detail = np.searchsorted(kept, detail)
    whole = len(detail) == every
    position = np.full(every, -1)
    position[kept] = np.arange(len(kept))
    columns = series.bins.starts

    layers = series.group_lines() if chosen.layers and not whole else None
    with_worst = not whole or page.is_diff
    marks = sorted({(int(position[at]), int(np.searchsorted(columns, step, "right")) - 1) for at, step in series.marks})
    _explain(series, chosen, len(kept), len(detail), thinned)
    used_layers, used_of = np.unique(layer_of[kept], return_inverse=True)
    return {
        "name": series.data_type,
        "preferred": preferred(series.stats),
        "stats": {stat: {"scale": scale_of(stat), "worst": worst_of(stat)} for stat in series.stats},
        "tensors": [names.setdefault(series.tensors[at], len(names)) for at in kept],
        "layers": [layer_names[layer] for layer in used_layers],
        "layerOf": used_of.tolist(),
        "first": series.bins.first_steps.tolist(),
        "last": series.bins.last_steps.tolist(),
        "lines": list(page.lines),
        "colors": [line % 2 if page.is_diff else line for line in range(len(page.lines))],
        "dashes": [line % 2 if page.is_diff else 0 for line in range(len(page.lines))],
        "half": chosen.half,
        "detail": None if whole else in_detail.tolist(),
        "layerLines": layers is not None,
        "micro": series.micro_steps > 1,
        "marks": [number for mark in marks if mark[0] >= 0 for number in mark],
        "blobs": {
            stat: {
                "lines": put(series.lines[:, number, detail]),
                "worst": put(series.worst[number, kept]) if with_worst else None,
                "layers": put(layers[:, number, used_layers]) if layers is not None else None,
            }
            for number, stat in enumerate(series.stats)
        },
    }


def _explain(series: TypeSeries, chosen: Fit, kept: int, detail: int, thinned: list[str]) -> None:
    every, steps = len(series.tensors), len(series.steps)
    parts = []
    if len(series.bins) < steps:
        parts.append(
            f"its {steps:,} steps are {len(series.bins)} points of up to {series.bins.width} steps, "
            "each the worst value"
        )
    if kept < every:
        parts.append(
            f"{every - kept:,} of {every:,} tensors have no row; those with anomalies and the largest jumps have one"
        )
    if detail < kept or detail < every:
        parts.append(
            f"every line (rank) is kept for {detail:,} of {every:,} tensors, those with anomalies and the largest "
            "jumps first; of the others the worst"
        )
    if series.micro_steps > 1:
        parts.append(f"of {series.micro_steps} micro-steps the worst is shown")
    if chosen.half:
        parts.append("values have three digits")
    if parts:
        thinned.append(f"{series.data_type}: {'; '.join(parts)}.")
