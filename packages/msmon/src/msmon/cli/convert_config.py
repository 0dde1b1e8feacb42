"""Write a configuration of one form (TrainerMon) as one of the other (TrainerMonitorV2).

What means something else in the other form, or has no place in it, is said on stderr.
"""

import argparse
import json
import sys
from pathlib import Path

from msmon.config import ConfigError, load_either

EPILOG = """\
examples:
  msmon convert-config config_v2.json                          the first form, on stdout
  msmon convert-config monitor_config.json -o config_v2.json   the second form

exit status:
  0  the other form collects the same
  1  written, but it is not the same: see stderr
  2  not valid, or a file cannot be read or written"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="the configuration file, JSON")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="where the result goes; default: stdout")


def run(args: argparse.Namespace) -> int:
    from msmon.config.form_conversion import as_first_form, as_second_form

    try:
        config = load_either(args.config)
        made, notes = as_second_form(config) if config.second_form is None else as_first_form(config)
        written = json.dumps(made, indent=4, ensure_ascii=False) + "\n"
        if args.output is None:
            print(written, end="")
        else:
            args.output.write_text(written, encoding="utf-8")
    except (ConfigError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return 1 if notes else 0
