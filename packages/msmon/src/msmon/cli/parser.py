"""Arguments of the program itself: help, version, and what to say to a command that does not exist."""

import argparse
import sys
from difflib import get_close_matches
from typing import NoReturn

from msmon import __version__
from msmon.cli.commands import COMMANDS

_EPILOG = """\
examples:
  msmon demo                              train a small model with a fault, and see it found
  msmon check monitor_config.json         is this configuration right, and what would it monitor
  msmon anomalies -d monitor_output/anomaly_detected -k 3
  msmon show monitor_output               what a run recorded, and what is odd in it
  msmon report monitor_output --open      the same as a page with heat maps and curves
  msmon diff run_a run_b                  the first step and tensor at which two runs differ

exit status:
    0  done
    1  could not be done, or what was compared differs
    2  wrong arguments or input
  130  interrupted

`msmon COMMAND --help` explains a command. `python -m msmon` is the same program."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, with the way out."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


def parse_without_command(words: list[str]) -> int:
    """Print the help or the version, or say why these words are no command; returns the exit status."""
    lines = "\n".join(f"  {command.name:<14} {command.summary}" for command in COMMANDS.values())
    parser = Parser(
        prog="msmon",
        usage="msmon COMMAND ...",
        description=f"Watches the inside of a training run, and reads what it recorded.\n\ncommands:\n{lines}",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"msmon {__version__}")
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    known, _ = parser.parse_known_args(words)
    if not words:
        parser.print_help(sys.stderr)
        return 2
    if known.command is None:
        parser.error(f"unknown option {words[0]}")
    if known.command in COMMANDS:
        parser.error(f"the command comes first: msmon {known.command} ...")
    near = get_close_matches(known.command, COMMANDS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"the commands are {', '.join(COMMANDS)}"
    parser.error(f"unknown command {known.command!r}, {hint}")
