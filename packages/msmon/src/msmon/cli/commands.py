"""The commands: names, one line each, and where they are found."""

import argparse
import sys
from importlib import import_module

from attrs import frozen


@frozen(kw_only=True)
class Command:
    """A command of the program.

    Its module has `add_arguments(parser)` and `run(args) -> int`; its docstring is the description in the help, and
    EPILOG, if there is one, the examples. A module that has a parser of its own has `main(argv) -> int` instead.
    """

    name: str
    """Also of its module in `msmon.cli`, with `_` for `-`, which is imported when the command is used, not before."""
    summary: str
    own_parser: bool = False
    reads_runs: bool = False
    """Whether it needs `msmon.reading`; a run that cannot be read is then told, with the status 2."""

    def run(self, parser_class: type[argparse.ArgumentParser], words: list[str]) -> int:
        module = import_module(f"msmon.cli.{self.name.replace('-', '_')}")
        if self.own_parser:
            return int(module.main(words))
        parser = parser_class(
            prog=f"msmon {self.name}",
            description=(module.__doc__ or "").strip(),
            epilog=getattr(module, "EPILOG", None),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(parser)
        args = parser.parse_args(words)
        if not self.reads_runs:
            return int(module.run(args))
        try:
            from msmon.reading import UnusableRun
        except ImportError as error:
            return self._fail(error)
        try:
            return int(module.run(args))
        except UnusableRun as error:
            return self._fail(error)

    def _fail(self, error: Exception) -> int:
        print(f"msmon {self.name}: {error}", file=sys.stderr)
        return 2


_ALL = (
    Command(name="demo", summary="train a small model with a fault, and see it found"),
    Command(name="run", summary="run a training command under the monitor, without a line of its script"),
    Command(name="check", summary="validate a configuration, print what it would monitor"),
    Command(name="doctor", summary="what msmon finds on this machine, and what it will not see"),
    Command(name="convert-config", summary="a configuration of one form as one of the other"),
    Command(name="anomalies", summary="the first anomalies of all ranks, earliest first", own_parser=True),
    Command(name="show", summary="a run's summary in the terminal", reads_runs=True),
    Command(name="report", summary="a run as one self-contained page", reads_runs=True),
    Command(name="diff", summary="the first step and tensor at which two runs differ", reads_runs=True),
    Command(name="verify", summary="is this parallel training computing what it should?", reads_runs=True),
    Command(name="merge", summary="local shards of all ranks to whole tensors", reads_runs=True),
    Command(name="csv2tb", summary="CSV files to TensorBoard, many processes"),
    Command(name="convert", summary="CSV files to Parquet"),
)


COMMANDS = {command.name: command for command in _ALL}
"""By name, in the order of the help."""
