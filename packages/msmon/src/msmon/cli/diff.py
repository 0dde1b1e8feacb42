"""Find the first step and the first tensor at which two runs differ.

RUN_A and RUN_B are output directories. What both recorded is aligned by step, data type, name, micro-step and rank;
where the ranks do not correspond they are merged first. Two values differ when
abs(a - b) > atol + rtol * max(abs(a), abs(b)); a share of elements (zeros) counts with the size 1, and a mean with at
least the size of the tensor's elements. A value that is NaN on one side only always differs.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from msmon.cli.reading import console, number, status_line, table, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from msmon.reading.diff import Difference, DiffResult

EPILOG = """\
examples:
  msmon diff run_gpu run_npu
  msmon diff run_a run_b --rtol 1e-5 -o diff.html
  msmon diff run_a run_b --baseline run_a_again      what two runs of A differ by is noise
  msmon diff run_torch run_mindspore --map rules.json

rules.json, regular expressions that are applied in their order to every name:
  [{"pattern": "^module\\\\.", "replace": ""},
   {"pattern": "\\\\.gamma$", "replace": ".weight", "run": "b"},
   {"pattern": "^head\\\\.", "ignore": true},
   {"pattern": "^layers\\\\.(\\\\d+)", "add": 4, "pp_stage": 1, "run": "a"}]

exit status:
  0  equal
  1  different, or on one side only
  2  a run, the rules or the arguments are not usable, or the runs have nothing in common"""

_ROWS = 15


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_a", metavar="RUN_A", help="output directory of the run to compare with")
    parser.add_argument("run_b", metavar="RUN_B", help="output directory of the other run")
    parser.add_argument("--rtol", type=_tolerance, default=1e-3, metavar="X", help="relative tolerance (%(default)s)")
    parser.add_argument("--atol", type=_tolerance, default=1e-8, metavar="X", help="absolute tolerance (%(default)s)")
    parser.add_argument("--map", type=Path, metavar="RULES", help="JSON file with rules for renamed modules")
    parser.add_argument(
        "--baseline",
        action="append",
        default=[],
        metavar="RUN_A2",
        help="a repetition of run A: three times its largest difference from A is tolerated, for each tensor and "
        "statistic; may be given several times",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write a page with heat maps and curves of both runs")


def _tolerance(value: str) -> float:
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError
    return number


_tolerance.__name__ = "number >= 0"


def run(args: argparse.Namespace) -> int:
    from msmon.reading import UnusableRun
    from msmon.reading.diff import diff_runs, read_rules, write_diff_page

    size = None
    try:
        rules = read_rules(args.map) if args.map else None
        with status_line("comparing") as tell:
            tolerances = {"rtol": args.rtol, "atol": args.atol, "baselines": args.baseline}
            options = {**tolerances, "rules": rules, "progress": tell}
            if args.output:
                result, written = write_diff_page(args.run_a, args.run_b, args.output, **options)
                size = written.size
            else:
                result = diff_runs(args.run_a, args.run_b, **options)
    except OSError as error:
        raise UnusableRun(str(error)) from error
    out = console()
    _print_result(out, result)
    if size is not None:
        out.print(text(f"{args.output}: {size / 1e6:.1f} MB"), soft_wrap=True)
    return 0 if result.equal else 1


def _print_result(out: Console, result: DiffResult) -> None:
    first_step, last_step, steps = result.steps
    compared = (
        f"{result.compared_values:,} values of {result.compared_tensors:,} tensors at {steps:,} steps "
        f"({first_step} to {last_step})"
    )
    if result.first:
        one = result.first[0]
        out.print(text(f"First difference: step {one.step}, {one.tensor.label()}", "bold red"), soft_wrap=True)
        beyond = f"{one.excess:.3g} times the tolerance" if math.isfinite(one.excess) else "no number on one side"
        values = f"A {number(one.a)}   B {number(one.b)}   relative {one.relative:.2g}, {beyond}"
        out.print(text(f"  {one.where()}"), soft_wrap=True)
        out.print(text(f"  {one.stat}   {values}"), soft_wrap=True)
    elif result.one_sided:
        out.print(
            text("No value differs beyond the tolerance, but the runs do not have the same tensors.", "bold yellow")
        )
    else:
        out.print(text("Equal: no value differs beyond the tolerance.", "bold green"))
    _print_onset(out, result)
    out.print(text(f"  compared {compared}; {result.different_values:,} differ", "dim"), soft_wrap=True)
    if result.first:
        step = result.first[0].step
        _print_table(out, f"Differ at step {step}, in the order of execution", result.first)
        _print_table(out, "Worst tensors", result.worst)
    if result.one_sided:
        shown = table(f"On one side only: {len(result.one_sided):,}", "only in", "data type", "what")
        for entry in result.one_sided[:_ROWS]:
            shown.add_row(text(entry.only_in), text(entry.data_type), text(entry.what))
        _print(out, shown, len(result.one_sided))
    for note in result.notes:
        out.print(text(f"note: {note}", "yellow"), soft_wrap=True)


def _print_onset(out: Console, result: DiffResult) -> None:
    """Where the first digits differ: on one machine often the cause of what later goes beyond the tolerance."""
    one = result.onset
    if one is None:
        out.print(text("  The runs are identical, to the last digit that was written."))
    elif not result.first or one.place() != result.first[0].place():
        where = f"step {one.step}, {one.tensor.label()} ({one.where()})"
        out.print(
            text(f"  Within the tolerance they differ from {where} on: {one.stat} by {one.relative:.2g} of its value."),
            soft_wrap=True,
        )


def _print_table(out: Console, title: str, differences: Sequence[Difference]) -> None:
    shown = table(title, *differences[0].COLUMNS, "x tolerance", right=("step", "A", "B", "x tolerance"))
    for one in differences[:_ROWS]:
        shown.add_row(*map(text, one.cells()))
    _print(out, shown, len(differences))


def _print(out: Console, shown: object, count: int) -> None:
    out.print()
    out.print(shown)
    if count > _ROWS:
        out.print(text(f"  and {count - _ROWS:,} more", "dim"))
