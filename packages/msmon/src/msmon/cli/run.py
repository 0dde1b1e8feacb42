"""Run a training command under the monitor; its script needs no line for it.

The model is the one that the program's optimizer updates, on every rank, also inside of DistributedDataParallel, FSDP,
DeepSpeed, Megatron-core and accelerate; in the trainers of Hugging Face and Lightning a callback is added. The command
takes the place of this program: exit status, signals and input are its own.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from msmon.cli.parser import Parser
from msmon.config import WATCH, ConfigError, load_config, parse_config, watch_fields
from msmon.launching.command import run_in_place

EPILOG = f"""\
words for --watch:
  {", ".join(WATCH)}: gradients of weights, activations and their gradients, weights, optimizer moments,
  agreement of gradient and momentum, pictures of Adam's update, collectives

examples:
  msmon run -- python train.py
  msmon run --watch wg,xy --ops norm,max,nans --every 10 -- torchrun --nproc-per-node 8 train.py
  msmon run --config monitor_config.json -- accelerate launch train.py
  torchrun --nproc-per-node 8 -m msmon.run --watch wg train.py      the same, in each process

exit status:
  2  wrong arguments or configuration
  else that of the command"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="a configuration file; also for dynamic mode")
    parser.add_argument("--watch", metavar="WORDS", help="instead of a file: what to watch (default: wg)")
    parser.add_argument("--ops", metavar="NAMES", help="the statistics, with commas (default: norm)")
    parser.add_argument("--every", type=int, metavar="N", help="every N-th step (default: each)")
    parser.add_argument("--format", metavar="NAMES", help="csv, tensorboard, parquet, with commas (default: csv)")
    parser.add_argument(
        "-o", "--output", metavar="DIR", help="where files go (default: $MONITOR_OUTPUT_DIR, monitor_output)"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the command, after --")


def run(args: argparse.Namespace) -> int:
    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    return start(args, words, "msmon run")


def main(argv: list[str]) -> int:
    """`python -m msmon.run`: what follows is a Python program, as `python` itself takes it."""
    parser = Parser(
        prog="python -m msmon.run",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    args = parser.parse_args(argv)
    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    return start(args, [sys.executable, *words] if words else [], parser.prog)


def start(args: argparse.Namespace, words: list[str], prog: str) -> int:
    """Check everything that can be checked, then become the command."""
    if not words:
        print(f"{prog}: no command; for instance {prog} --watch wg -- python train.py", file=sys.stderr)
        return 2
    try:
        config = _configuration(args)
        if args.output:
            os.environ["MONITOR_OUTPUT_DIR"] = str(Path(args.output).absolute())
        run_in_place(words, config)
    except ConfigError as error:
        print(error, file=sys.stderr)
    except OSError as error:
        print(f"{prog}: {error}", file=sys.stderr)
    return 2


def _configuration(args: argparse.Namespace) -> str | dict[str, Any]:
    given = {"--watch": args.watch, "--ops": args.ops, "--every": args.every, "--format": args.format}
    if args.config:
        extra = [name for name, value in given.items() if value is not None]
        if extra:
            raise ConfigError(f"{', '.join(extra)}: not together with --config; write it into {args.config}")
        load_config(args.config)
        return str(args.config)
    fields = watch_fields(args.watch or "wg")
    if args.ops:
        fields["ops"] = args.ops.split(",")
    if args.every is not None:
        fields["step_interval"] = args.every
    if args.format:
        fields["format"] = args.format.split(",")
    # A file's unknown statistic is passed over, as the older tool does; nobody has to put up with that here.
    dropped = [text for text in parse_config(fields, "msmon run").warnings if text.startswith(("ops:", "format:"))]
    if dropped:
        raise ConfigError(f"msmon run: {dropped[0]}")
    return fields
