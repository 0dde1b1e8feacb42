"""The environment in which a command is watched, and the command in it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from msmon.config import output_dir
from msmon.launching.program import CONFIG

SITE = Path(__file__).with_name("site")
"""First on the search path of every Python process of the command."""


def environment(config: str | Mapping[str, Any]) -> dict[str, str]:
    """The environment of this process, and what has a monitor set in it.

    Args:
        config: the path of a configuration file, or what would stand in one.
    """
    text = os.path.abspath(config) if isinstance(config, str) else json.dumps(config)
    paths = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    # Programs change their directory.
    place = str(output_dir().absolute())
    return {**os.environ, CONFIG: text, "PYTHONPATH": os.pathsep.join(paths), "MONITOR_OUTPUT_DIR": place}


def run_in_place(words: Sequence[str], config: str | Mapping[str, Any]) -> NoReturn:
    """Become the command: its exit status, signals, input and tracebacks are its own.

    Raises:
        OSError: there is no such program, or it cannot be started.
    """
    program = words[0]
    if program.endswith(".py") and Path(program).is_file() and not os.access(program, os.X_OK):
        program, words = sys.executable, [sys.executable, *words]
    path = program if os.sep in program else shutil.which(program)
    if path is None:
        raise FileNotFoundError(f"{program}: no such program")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(path, list(words), environment(config))
