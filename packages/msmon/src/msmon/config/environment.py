"""What the environment decides."""

import os
from collections.abc import Mapping
from pathlib import Path

DEFAULT_OUTPUT_DIR = "./monitor_output"


def output_dir(env: Mapping[str, str] | None = None) -> Path:
    """The directory for all output: $MONITOR_OUTPUT_DIR, or ./monitor_output where it is unset or empty."""
    return Path((os.environ if env is None else env).get("MONITOR_OUTPUT_DIR") or DEFAULT_OUTPUT_DIR)


def dynamic_mode(env: Mapping[str, str] | None = None) -> bool:
    """Whether $DYNAMIC_MONITOR is `True`, in any case."""
    return (os.environ if env is None else env).get("DYNAMIC_MONITOR", "").strip().lower() == "true"


def launch_id(env: Mapping[str, str] | None = None) -> str:
    """What the ranks of one launch have in common and another launch need not have; empty where nothing is known."""
    values = os.environ if env is None else env
    return "-".join(filter(None, (values.get("TORCHELASTIC_RUN_ID"), values.get("MASTER_PORT"))))
