"""The commands: names, one line each, and where they are found."""

import argparse
from importlib import import_module

from attrs import frozen


@frozen(kw_only=True)
class Command:
    """A command of the program.

    Its module has `add_arguments(parser)` and `run(args) -> int`; its docstring is the description in the help, and
    EPILOG, if there is one, the examples. A module that has a parser of its own has `main(argv) -> int` instead.
    """

    name: str
    summary: str
    module: str
    """Imported when the command is used, not before."""
    own_parser: bool = False

    def run(self, parser_class: type[argparse.ArgumentParser], words: list[str]) -> int:
        module = import_module(self.module)
        if self.own_parser:
            return int(module.main(words))
        parser = parser_class(
            prog=f"msmon {self.name}",
            description=(module.__doc__ or "").strip(),
            epilog=getattr(module, "EPILOG", None),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(parser)
        return int(module.run(parser.parse_args(words)))


_ALL = (
    Command(name="demo", summary="train a small model with a fault, and see it found", module="msmon.cli.demo"),
    Command(name="check", summary="validate a configuration, print what it would monitor", module="msmon.cli.check"),
    Command(
        name="anomalies",
        summary="the first anomalies of all ranks, earliest first",
        module="msmon.cli.anomalies",
        own_parser=True,
    ),
    Command(name="show", summary="a run's summary in the terminal", module="msmon.cli.show"),
    Command(name="report", summary="a run as one self-contained page", module="msmon.cli.report"),
    Command(name="diff", summary="the first step and tensor at which two runs differ", module="msmon.cli.diff"),
    Command(name="merge", summary="local parts of all ranks to whole tensors", module="msmon.cli.merge"),
    Command(name="csv2tb", summary="CSV files to TensorBoard, many processes", module="msmon.cli.csv2tb"),
    Command(name="convert", summary="CSV files to Parquet", module="msmon.cli.convert"),
)


COMMANDS = {command.name: command for command in _ALL}
"""By name, in the order of the help."""
