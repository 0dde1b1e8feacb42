"""Join the local shards of all ranks into statistics of whole tensors.

A rank of a sharded training (FSDP, ZeRO, tensor parallelism, a distributed optimizer) writes statistics of the shards
that it holds. The result is an output directory of the same form, which show, report and diff can read.
"""

import argparse
import sys
from pathlib import Path

from msmon.cli.reading import text

EPILOG = """\
examples:
  msmon merge monitor_output                    the result goes to monitor_output/merged
  msmon merge monitor_output -o whole
  msmon merge monitor_output/Dec03_21-34-40     an older launch, by its time stamp
  msmon show monitor_output/merged

exit status:
  0  merged
  1  merged, but shards of some tensors are missing (they are listed), or a file could not be read or written
  2  there is nothing to merge, or it is not clear which launch"""

_LISTED = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN_DIR",
        type=Path,
        help="the output directory, of which the newest launch is taken, or RUN_DIR/TIME_STAMP for an older one",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="where the result goes (RUN_DIR/merged)")


def run(args: argparse.Namespace) -> int:
    from msmon.merging import merge_ranks

    report = merge_ranks(args.run, args.output)
    for note in report.notes:
        print(text(f"note: {note}"), file=sys.stderr)
    for rank, path in report.sources.items():
        print(f"rank {rank}: {path.name}")
    print(f"{report.rows} rows of whole tensors, {report.sharded} of them joined from shards", end="")
    print(f" ({report.from_digits} from the digits in the files)" if report.from_digits else " (exactly)")
    for path in report.run_dirs:
        print(f"files in {path}")
    for (stage, data_type, name), reason in list(report.incomplete.items())[:_LISTED]:
        print(f"incomplete: {data_type} {name} of pipeline stage {stage}: {reason}", file=sys.stderr)
    if len(report.incomplete) > _LISTED:
        print(f"incomplete: {len(report.incomplete) - _LISTED} more, see coverage.json", file=sys.stderr)
    return 1 if report.incomplete else 0
