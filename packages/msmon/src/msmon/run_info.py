"""What `run.json` says of a run."""

from __future__ import annotations

import importlib.metadata
import platform
from datetime import datetime
from typing import Any

from msmon.config import Config


def run_info(
    config: Config, *, framework: str, rank: int, world_size: int, grad_acc_steps: int | None = 1
) -> dict[str, Any]:
    """Versions, configuration and place of a run; the engine and the tensors are added when the hooks are set.

    Args:
        config: the configuration in force.
        framework: import name of the framework.
        rank, world_size: of this process.
        grad_acc_steps: micro-steps of a step, as the script has announced them. None: the most that a step has had;
            it is written when that is known.
    """
    return {
        "schema": 1,
        "msmon": _version("msmon"),
        "framework": framework,
        "framework_version": _version(framework),
        "python": platform.python_version(),
        "start_time": now(),
        "end_time": None,
        "engine": None,
        "rank": rank,
        "world_size": world_size,
        "grad_acc_steps": grad_acc_steps,
        "pp_stage": 0,
        "parallel": {},
        "gradients_unscaled": True,
        "config": config.to_dict(),
        "tensors": [],
    }


def now() -> str:
    """The local time, with its distance from UTC, to a thousandth of a second: launches are put in order by it."""
    return datetime.now().astimezone().isoformat(timespec="milliseconds")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
