"""Check what should hold of a parallel training, from what its ranks recorded.

Replicas are equal; gradients after a reduction are the mean of those before; micro-batches add up; what nobody touches
stays, and what has a gradient moves; ranks see different data; clipping is one factor. Each of these holds, is broken
(from which step on, in which tensor, on which rank), or could not be checked, and why.

RUN is the output directory of a run with all its ranks. With PARALLEL, RUN is the same model and data on one device,
and what the ranks of PARALLEL have together is compared with it.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from rich.console import Console

from msmon.cli.reading import console, status_line, table, text

if TYPE_CHECKING:
    from msmon.verifying import Outcome, Report, Violation

EPILOG = """\
examples:
  msmon verify monitor_output
  msmon verify monitor_output -o verify.html           with curves of what is broken
  msmon verify monitor_output --follow                 beside the training, until it ends
  msmon verify one_device eight_ranks --baseline one_device_again

exit status:
  0  all that was checked holds
  1  something is broken
  2  RUN cannot be read, or the page cannot be written"""

_ROWS = 10
_STYLES = {"holds": "bold green", "broken": "bold red", "not checked": "dim"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="output directory of a run")
    parser.add_argument("parallel", metavar="PARALLEL", nargs="?", help="the same on several ranks; RUN is then on one")
    parser.add_argument(
        "--baseline",
        action="append",
        default=[],
        metavar="RUN_AGAIN",
        help="a repetition of RUN with a perturbation: what it differs by is rounding; only with PARALLEL",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("-o", "--output", metavar="FILE", help="write a page of what was found")
    parser.add_argument(
        "--follow", action="store_true", help="go on with new steps until the run is closed, or until Ctrl-C"
    )


def run(args: argparse.Namespace) -> int:
    from msmon.reading import UnusableRun
    from msmon.verifying import verify
    from msmon.verifying.page import write_verification

    if args.follow and args.parallel:
        raise UnusableRun("--follow looks at one run: leave PARALLEL out")
    if args.baseline and not args.parallel:
        raise UnusableRun(
            "--baseline belongs to a comparison with one device: msmon verify RUN PARALLEL --baseline ..."
        )
    if args.follow:
        report = _follow(args)
    else:
        with status_line("verifying") as tell:
            report = verify(args.run, args.parallel, baselines=args.baseline, progress=tell)
    if report is None:
        raise UnusableRun(f"{args.run}: no step was recorded while it was followed")
    out = console()
    if args.json:
        print(json.dumps(report.to_dict(), indent=1))
    else:
        _print(out, report)
    if args.output:
        try:
            written = write_verification(report, args.output)
        except OSError as error:
            raise UnusableRun(str(error)) from error
        if not args.json:
            out.print(text(f"{args.output}: {written.size / 1e6:.1f} MB"), soft_wrap=True)
    return 0 if report.holds else 1


def _follow(args: argparse.Namespace) -> Report | None:
    """Print what is newly broken as it is found; returns the last report."""
    from msmon.verifying import follow

    out, report = console(), None
    try:
        for report, new in follow(args.run):
            if not args.json:
                for one in new:
                    _print_violation(out, one, "broken: ")
                last = "no step" if report.steps is None else f"step {report.steps[1]:,}"
                out.print(text(f"checked to {last}: {'holds' if report.holds else 'broken'}", "dim"))
    except KeyboardInterrupt:
        out.print(text("stopped; the run goes on", "dim"))
    return report


def _print(out: Console, report: Report) -> None:
    first = report.first
    if first is not None:
        out.print(text(f"Broken: {first.place()}", "bold red"), soft_wrap=True)
        if first.guess:
            out.print(text(f"  {first.guess}"), soft_wrap=True)
    elif any(one.state == "holds" for one in report.outcomes):
        out.print(text("Everything that was checked holds.", "bold green"))
    else:
        out.print(text("Nothing could be checked.", "bold yellow"))
    shown = table("", "invariant", "result", "comparisons", right=("comparisons",))
    for one in report.outcomes:
        shown.add_row(text(one.title), text(one.state, _STYLES[one.state]), text(f"{one.comparisons:,}"))
    out.print(shown)
    for one in report.outcomes:
        _print_outcome(out, one)
    for note in report.notes:
        out.print(text(f"note: {note}", "yellow"), soft_wrap=True)


def _print_outcome(out: Console, one: Outcome) -> None:
    if one.violations:
        out.print()
        out.print(text(f"{one.title}: broken", "bold"), soft_wrap=True)
        for violation in one.violations[:_ROWS]:
            _print_violation(out, violation, "  ")
        if len(one.violations) > _ROWS:
            out.print(text(f"  and {len(one.violations) - _ROWS:,} more tensors", "dim"))
    if one.how and one.state != "not checked":
        out.print(text(f"{one.invariant}: by {one.how}", "dim"), soft_wrap=True)
    if one.reason:
        out.print(
            text(f"{one.invariant}: {'not checked: ' if one.state == 'not checked' else ''}{one.reason}"),
            soft_wrap=True,
        )
    for note in one.notes:
        out.print(text(f"{one.invariant}: {note}", "yellow"), soft_wrap=True)


def _print_violation(out: Console, one: Violation, indent: str) -> None:
    out.print(text(f"{indent}{one.place()}", "red"), soft_wrap=True)
    values = "   ".join(f"{whose} {value}" for whose, value in one.values.items())
    out.print(text(f"    {f'{one.stat}   ' if one.stat else ''}{values}"), soft_wrap=True)
    if one.guess:
        out.print(text(f"    {one.guess}"), soft_wrap=True)
