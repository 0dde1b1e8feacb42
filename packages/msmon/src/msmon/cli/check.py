"""Validate a configuration file, of either form, and print what it would monitor.

Every problem is reported at once, with its key, its value, what is allowed and the nearest known key.
"""

import argparse
import sys

from msmon.config import ConfigError, load_either

EPILOG = """\
examples:
  msmon check monitor_config.json
  DYNAMIC_MONITOR=True msmon check monitor_config.json     as in dynamic mode

exit status:
  0  valid, perhaps with warnings
  2  not valid, or the file cannot be read"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="the configuration file, JSON")


def run(args: argparse.Namespace) -> int:
    from msmon.cli.plan import print_plan

    try:
        config = load_either(args.config)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    print_plan(config)
    return 0
