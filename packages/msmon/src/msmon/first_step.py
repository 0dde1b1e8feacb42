"""Files that are written once, after the first step: the structure of the modules, and where they are called from."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msmon_io

logger = logging.getLogger("msmon")


def write_structure(output_dir: Path, rank: int, document: Mapping[str, Any]) -> None:
    """Write and show `module_struct.json`; a failure is an error line.

    Args:
        output_dir: the directory of all runs.
        rank: of this process.
        document: see `msmon_hooks.structure`.
    """
    path = output_dir / "module_struct" / f"rank{rank}" / "module_struct.json"
    logger.warning("inputs and outputs of the modules:\n%s", json.dumps(document, indent=2))
    try:
        output_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        msmon_io.write_json(path, dict(document), root=output_dir)
    except Exception as error:
        logger.error("%s was not written: %s", path, error)
    else:
        logger.warning("written to %s; the program ends here, since print_struct is on", path)


def write_stacks(run_dir: Path, stacks: Mapping[str, str]) -> None:
    """Write `stack_info.csv`; a failure is an error line.

    Args:
        run_dir: the directory of this run and rank.
        stacks: module name with stage prefix to the call stack of its first call, innermost call first.
    """
    path = run_dir / "stack_info.csv"
    try:
        msmon_io.write_text_csv(path, ("module_name", "stack_info"), list(stacks.items()), root=run_dir)
    except Exception as error:
        logger.error("%s was not written, training goes on: %s", path, error)
