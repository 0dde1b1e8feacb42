"""Print a run's summary: what was recorded, the largest values, anomalies, and what is missing.

RUN is the output directory of a run ($MONITOR_OUTPUT_DIR, by default ./monitor_output), or one run directory in it.
Of several launches in it the newest is read; RUN/TIME_STAMP is an older one.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Console

from msmon.cli.reading import console, number, status_line, table, text

if TYPE_CHECKING:
    from msmon.reading.summary import Summary

EPILOG = """\
examples:
  msmon show monitor_output
  msmon show monitor_output/Dec03_21-34-40                    an older launch
  msmon show monitor_output/Dec03_21-34-40-rank0-3f1a9c2e     one rank alone

exit status:
  0  done
  2  RUN cannot be read"""

_ROWS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="output directory of a run, or one run directory")


def run(args: argparse.Namespace) -> int:
    from msmon.reading.summary import summarize

    with status_line("reading") as tell:
        summary = summarize(args.run, progress=tell)
    out = console()
    for part in (_head, _without_rows, _types, _peaks, _anomalies, _coverage):
        part(out, summary)
    for note in summary.run.notes:
        out.print(text(f"note: {note}", "yellow"), soft_wrap=True)
    return 0


def _head(out: Console, summary: Summary) -> None:
    info, ranks = summary.run.info, len(summary.run.ranks)
    parts = [" ".join(str(info[key]) for key in ("framework", "framework_version") if info.get(key))]
    if info.get("engine"):
        parts.append(f"engine {info['engine']}")
    world = info.get("world_size")
    more = f" of {world}" if isinstance(world, int) and world > ranks else ""
    parts.append(f"{ranks} rank{'s'[: ranks != 1]}{more}")
    parts += [f"{word} {info[key]}" for word, key in (("msmon", "msmon"), ("began", "start_time")) if info.get(key)]
    out.print(text(summary.run.directory.resolve(), "bold"), soft_wrap=True)
    out.print(text(", ".join(part for part in parts if part)), soft_wrap=True)


def _types(out: Console, summary: Summary) -> None:
    shown = table(
        "Recorded", "data type", "tensors", "steps", "ranks", "NaN or Inf in", "statistics", right=("tensors", "ranks")
    )
    for one in summary.types:
        first, last, count = one.steps
        steps = str(first) if first == last else f"{first} to {last}" + (f" ({count})" if count <= last - first else "")
        strange = text(f"{one.not_finite} tensors", "bold red") if one.not_finite else text("-", "dim")
        cells = [text(one.data_type), text(one.tensors), text(steps), text(one.ranks), strange]
        shown.add_row(*cells, text(", ".join(one.stats)))
    out.print()
    out.print(shown)


def _peaks(out: Console, summary: Summary) -> None:
    shown = table(
        "Largest", "data type", "tensor", "statistic", "value", "step", "rank", right=("value", "step", "rank")
    )
    for one in summary.types:
        # Several data types: a few of each say more than many of one.
        for peak in one.peaks[: max(_ROWS // len(summary.types), 2)]:
            cells = (peak.data_type, peak.tensor.label(), peak.stat, number(peak.value), peak.step, peak.rank)
            shown.add_row(*map(text, cells))
    out.print()
    out.print(shown)


def _anomalies(out: Console, summary: Summary) -> None:
    found = summary.anomalies
    out.print()
    if not found.total:
        out.print(text("No anomaly was recorded.", "green"))
        return
    steps, last = len(found.spread), found.spread[-1].step
    when = f"{steps} step{'s'[: steps != 1]} from {found.spread[0].step} to {last}"
    columns = found.first[0].COLUMNS
    shown = table(f"Anomalies: {found.total:,} in {when}, the first", *columns, right=("step", "rank"))
    for one in found.first[:_ROWS]:
        shown.add_row(*map(text, one.cells()))
    out.print(shown)


def _without_rows(out: Console, summary: Summary) -> None:
    for data_type, reason in summary.coverage.without_rows.items():
        out.print(text(f"No {data_type}: {reason}", "bold red"), soft_wrap=True)


def _coverage(out: Console, summary: Summary) -> None:
    coverage = summary.coverage
    out.print()
    if not coverage.ranks:
        out.print(text("No coverage.json: what is missing is not known.", "yellow"))
        return
    if coverage.missing:
        out.print(text(f"Missing: {len(coverage.missing):,} tensors", "bold yellow"))
        _list(out, list(coverage.missing))
    elif not coverage.without_rows and not coverage.switched_off:
        seen = sum(coverage.seen.values())
        out.print(text(f"Nothing is missing: {seen:,} tensors were expected and seen.", "green"))
    for part in coverage.switched_off:
        out.print(text(f"Switched off: {part}", "bold yellow"))
    for kind, count in coverage.kinds.items():
        out.print(text(f"Counted apart: {count:,} {kind}"))
        _list(out, [entry[1:] for entry in coverage.apart if entry[0] == kind])


def _list(out: Console, entries: list[tuple[str, str, str]]) -> None:
    """Data type, name and reason of tensors; those alike in one line."""
    for (data_type, reason), count in Counter((kind, reason) for kind, _, reason in entries).most_common(_ROWS):
        names = [name for kind, name, why in entries if (kind, why) == (data_type, reason)]
        more = f" and {count - 3:,} more" if count > 3 else ""
        out.print(text(f"  {data_type}: {', '.join(names[:3])}{more}: {reason}"), soft_wrap=True)
