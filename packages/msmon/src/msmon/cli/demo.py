"""Train a small GPT on real text on the CPU, with a fault injected at a known step, and see it found.

Takes under a minute on two cores. Needs PyTorch: pip install 'msmon[torch]'.
"""

from __future__ import annotations

import argparse
import logging
import shlex
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from msmon.cli import anomalies
from msmon.cli.loss_curve import loss_curve
from msmon.config import output_dir

EPILOG = """\
examples:
  msmon demo                     a weight is multiplied by 10,000 at step 40
  msmon demo --no-fault          a healthy run, in which nothing is reported
  msmon demo --output DIR        write there instead of $MONITOR_OUTPUT_DIR or ./monitor_output

exit status:
  0  done
  1  PyTorch is not installed, or the output directory cannot be written"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `msmon demo`."""
    parser.add_argument("--no-fault", action="store_true", help="a healthy run")
    parser.add_argument("--steps", type=int, default=60, metavar="N", help="steps to train (default: 60)")
    parser.add_argument(
        "--output",
        type=Path,
        default=output_dir(),
        metavar="DIR",
        help="default: $MONITOR_OUTPUT_DIR, or ./monitor_output",
    )


def run(args: argparse.Namespace) -> int:
    """Train, and show what was found."""
    from msmon.demo.tiny_gpt import Fault, train, write_config

    console = Console(highlight=False)
    fault = None if args.no_fault else Fault()
    config = write_config(args.output)
    progress = Progress(
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TextColumn("{task.fields[alerts]}"),
        TimeElapsedColumn(),
        console=console,
    )
    with progress:
        bar = progress.add_task("training", total=args.steps, loss="", alerts="")
        found = _Alerts(progress, bar)
        logger = logging.getLogger("msmon")
        logger.addHandler(found)
        try:
            losses = train(
                config,
                steps=args.steps,
                fault=fault,
                on_step=lambda step, loss: progress.update(bar, completed=step + 1, loss=f"{loss:.3f}"),
            )
        finally:
            logger.removeHandler(found)

    console.print(f"\nloss of {args.steps} steps")
    console.print(loss_curve(losses), markup=False)
    if fault is None:
        console.print("\nno fault was injected")
    elif fault.step < args.steps:
        console.print(
            f"\ninjected: step {fault.step}, layer {fault.layer}: its weight was multiplied by {fault.factor:g}"
        )
    console.print("found:\n")
    found_in = args.output / "anomaly_detected"
    status = anomalies.main(["-d", str(found_in), "-k", "5"])
    directory = shlex.quote(str(args.output))
    console.print(f"\nthe statistics of every tensor are in {args.output}/*-rank0-*/*.csv", soft_wrap=True)
    console.print(f"next: msmon anomalies -d {shlex.quote(str(found_in))} -k 1", soft_wrap=True)
    console.print(f"      msmon report {directory} -o report.html", soft_wrap=True)
    return status


class _Alerts(logging.Handler):
    """Shows the first alert in full and counts the others beside the progress bar."""

    def __init__(self, progress: Progress, bar: object) -> None:
        super().__init__(logging.WARNING)
        self._progress = progress
        self._bar = bar
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Take a log record of the monitor."""
        message = record.getMessage()
        if not message.startswith("Rule "):
            self._progress.console.print(message, markup=False, soft_wrap=True)
            return
        self._count += 1
        if self._count == 1:
            self._progress.console.print(message, markup=False, soft_wrap=True, style="red")
        self._progress.update(self._bar, alerts=f"alerts {self._count}")  # type: ignore[arg-type]
