"""What the environment decides."""

import os
from pathlib import Path


def output_dir() -> Path:
    """The directory for all output: $MONITOR_OUTPUT_DIR, or ./monitor_output where it is unset or empty."""
    return Path(os.environ.get("MONITOR_OUTPUT_DIR") or "./monitor_output")


def dynamic_mode() -> bool:
    """Whether $DYNAMIC_MONITOR is `True`, in any case."""
    return os.environ.get("DYNAMIC_MONITOR", "").strip().lower() == "true"


def launch_id() -> str:
    """What the ranks of one launch have in common and another launch need not have; empty where nothing is known."""
    return "-".join(filter(None, map(os.environ.get, ("TORCHELASTIC_RUN_ID", "MASTER_PORT"))))
