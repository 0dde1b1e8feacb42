"""Programs that begin with torch and msmon imported: forks of one process, which starts once and takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class Forks:
    """Runs programs, each in a process of its own."""

    def __init__(self, *modules: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "_forking.py"), *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                # The parent may have found its packages by sys.path alone.
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                "NO_COLOR": "1",
                "DS_ACCELERATOR": "cpu",
            },
        )

    def run(
        self,
        folder: Path,
        *steps: dict[str, Any],
        ranks: int = 1,
        env: dict[str, str] | None = None,
        imports: Sequence[str] = (),
    ) -> str:
        """What the program printed.

        Args:
            folder: working directory.
            steps: done in order, see `_forking.py`.
            ranks: so many processes do them, with the environment that torchrun sets.
            env: further environment variables.
            imports: modules that take long to import, so that the ranks need not each do it.

        Raises:
            AssertionError: it failed; the message has its output.
        """
        job = {"folder": str(folder), "steps": steps, "ranks": ranks, "env": env or {}, "imports": imports}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert answer["statuses"] == [0] * ranks, f"exit {answer['statuses']}\n{answer['output']}"
        return str(answer["output"])

    def close(self) -> None:
        """No more programs."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
