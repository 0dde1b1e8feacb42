"""What `msmon run` says while a program runs: few lines, on the standard error output."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """One line; a closed or full output is nothing to a training."""
    try:
        print(f"msmon: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return
