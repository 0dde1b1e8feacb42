"""The command line `msmon`: one module for each command, imported when the command is used."""

import os
import sys
from collections.abc import Sequence

from msmon.cli.commands import COMMANDS
from msmon.cli.parser import Parser, parse_without_command
from msmon.config import ConfigError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status, 0 for success.

    2: arguments or input that make no sense; 1: it could not be done, or what was compared differs.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words and words[0] in COMMANDS:
            return COMMANDS[words[0]].run(Parser, words[1:])
        return parse_without_command(words)
    except SystemExit as end:  # argparse has printed
        return end.code if isinstance(end.code, int) else 0
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough. Nothing may be flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (OSError, ImportError) as error:
        print(f"msmon {words[0] if words else ''}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
