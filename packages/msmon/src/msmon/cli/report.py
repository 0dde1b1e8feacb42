"""Write a run as one self-contained HTML page: heat maps, curves, anomalies, what is missing.

RUN is the output directory of a run ($MONITOR_OUTPUT_DIR, by default ./monitor_output) with all its ranks, or one run
directory in it. The page needs no network and stays under 10 MB: a large run is thinned, and the page says how.
"""

import argparse
import re
import webbrowser
from pathlib import Path

from msmon.cli.reading import console, status_line, text

EPILOG = """\
examples:
  msmon report monitor_output
  msmon report monitor_output -o run12.html --open
  msmon report monitor_output -o layer3.html --tensors '^layers\\.3\\.'     fewer tensors, finer curves

exit status:
  0  the page is written
  1  it cannot be written
  2  RUN cannot be read, or --tensors is no regular expression"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="output directory of a run, or one run directory")
    parser.add_argument("-o", "--output", metavar="FILE", default="report.html", help="the page (default: %(default)s)")
    parser.add_argument("--tensors", metavar="REGEX", help="only tensors whose name contains this regular expression")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")


def run(args: argparse.Namespace) -> int:
    from msmon.reading import UnusableRun, write_report

    try:
        with status_line("reading") as tell:
            written = write_report(args.run, args.output, tensors=args.tensors, progress=tell)
    except re.error as error:
        raise UnusableRun(f"--tensors {args.tensors!r} is no regular expression: {error}") from error
    out = console()
    out.print(text(f"{args.output}: {written.size / 1e6:.1f} MB"), soft_wrap=True)
    for sentence in written.thinned:
        out.print(text(f"  {sentence}", "dim"), soft_wrap=True)
    if args.open and not webbrowser.open(Path(args.output).resolve().as_uri()):
        out.print(text("no browser was found here: copy the page to a machine that has one", "yellow"))
    return 0
