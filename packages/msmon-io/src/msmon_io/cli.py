"""The commands `csv2tb` and `convert`, for msmon's command line and for `python -m msmon_io`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from msmon_io.csv2parquet import convert_to_parquet
from msmon_io.csv2tensorboard import csv2tensorboard_by_step

_STAMP_HELP = "like the names of the run directories, Dec03_21-34-40"


def _add_arguments(parser: argparse.ArgumentParser, convert: Callable[..., Path], default_output: str) -> None:
    parser.set_defaults(convert=convert)
    parser.add_argument("monitor_path", help="the output directory that holds the run directories")
    parser.add_argument("--time_start", "--start", metavar="STAMP", help=f"first time stamp, {_STAMP_HELP}")
    parser.add_argument("--time_end", "--end", metavar="STAMP", help="last time stamp")
    parser.add_argument("-p", "--process_num", type=int, default=1, metavar="N", help="processes (default: 1)")
    parser.add_argument(
        "-t",
        "--data_type_list",
        nargs="+",
        metavar="TYPE",
        help="only these data types, such as grad_reduced (default: all there are)",
    )
    parser.add_argument("-o", "--output_dirpath", metavar="DIR", help=f"output directory (default: {default_output})")


def add_csv2tb_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `csv2tb`."""
    _add_arguments(parser, csv2tensorboard_by_step, "<monitor_path>/<now>-csv2tensorboard_by_step")


def add_convert_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `convert`."""
    _add_arguments(parser, convert_to_parquet, "<monitor_path>/parquet")


def run(args: argparse.Namespace) -> int:
    """Convert; prints where the output is. 0, or 1 after an error message."""
    try:
        output = args.convert(
            args.monitor_path,
            args.time_start,
            args.time_end,
            process_num=args.process_num,
            data_type_list=args.data_type_list,
            output_dirpath=args.output_dirpath,
        )
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(output)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m msmon_io csv2tb|convert ...`."""
    parser = argparse.ArgumentParser(prog="python -m msmon_io", description="Training statistics to other files")
    commands = parser.add_subparsers(dest="command", required=True)
    add_csv2tb_arguments(commands.add_parser("csv2tb", help="CSV to TensorBoard"))
    add_convert_arguments(commands.add_parser("convert", help="CSV to Parquet"))
    return run(parser.parse_args(argv))
