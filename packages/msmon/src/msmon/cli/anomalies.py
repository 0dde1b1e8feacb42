"""The first anomalies of all ranks, earliest first."""

from collections.abc import Sequence

import msmon_alert.cli
from msmon_io import progress_bar


def main(argv: Sequence[str]) -> int:
    """`msmon anomalies ...`, which has a parser of its own."""
    return msmon_alert.cli.main(argv, progress=progress_bar)
