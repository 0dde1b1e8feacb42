"""Two or more processes that stay, and run one function after the other.

Starting processes and importing torch takes seconds, so a test file starts its ranks once and hands them many
functions. Ranks find each other through a file; nothing listens on a port of a fixed number.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class RankError(AssertionError):
    """A rank failed, or did not answer in time."""


class Ranks:
    """Processes of one process group, gloo on the CPU.

    Example:
        with Ranks(2) as ranks:
            first, second = ranks.run("ddp", "trained", variant="static_graph")

    Args:
        world_size: number of processes.
        env: further environment variables.
        init: whether the process group is initialised before the first function runs.
    """

    def __init__(self, world_size: int = 2, *, env: dict[str, str] | None = None, init: bool = True) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        folder = Path(self._folder.name)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self._logs = [folder / f"rank{rank}.log" for rank in range(world_size)]
        shared = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            # The parent may have found its packages by sys.path alone.
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            **(env or {}),
        }
        with Listener(str(folder / "socket"), "AF_UNIX") as listener:
            for rank, log in enumerate(self._logs):
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, str(HERE / "_worker.py"), str(folder), "init" if init else "bare"],
                        env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                        cwd=folder,
                        stdin=subprocess.DEVNULL,
                        stdout=log.open("wb"),
                        stderr=subprocess.STDOUT,
                    )
                )
            by_rank: dict[int, Connection] = {}
            # A process that dies while it starts must not leave this one waiting for ever.
            listener._listener._socket.settimeout(60)  # type: ignore[attr-defined]
            while len(by_rank) < world_size:
                try:
                    connection = listener.accept()
                except TimeoutError:
                    raise self._failure(f"only {len(by_rank)} of {world_size} ranks started") from None
                by_rank[connection.recv()] = connection
            self._connections = [by_rank[rank] for rank in range(world_size)]

    def run(self, module: str, function: str, *, timeout: float = 120, **arguments: Any) -> list[Any]:
        """Call ``function`` of ``module`` (a file of this folder) on all ranks; returns what each returned.

        Raises:
            RankError: a rank raised, died or did not answer; with all ranks' output. The processes are then gone.
        """
        for connection in self._connections:
            connection.send((module, function, arguments))
        deadline = time.monotonic() + timeout
        answers: list[Any] = []
        for rank, connection in enumerate(self._connections):
            try:
                if not connection.poll(max(deadline - time.monotonic(), 0.1)):
                    raise RankError(f"rank {rank} did not answer within {timeout:g} s")
                done, answer = connection.recv()
            except (EOFError, OSError, RankError) as error:
                raise self._failure(f"rank {rank}: {error!r}") from None
            if not done:
                raise self._failure(f"rank {rank} raised:\n{answer}")
            answers.append(answer)
        return answers

    def exit_codes(self, module: str, function: str, *, timeout: float = 60, **arguments: Any) -> tuple[list[int], str]:
        """Call a function that ends the program; returns the exit codes and what the ranks printed."""
        for connection in self._connections:
            connection.send((module, function, arguments))
        try:
            codes = [process.wait(timeout) for process in self._processes]
        except subprocess.TimeoutExpired as error:
            raise self._failure(str(error)) from None
        return codes, self.output()

    def output(self) -> str:
        """Everything that the ranks printed so far."""
        return "\n".join(f"--- rank {rank}\n{log.read_text(errors='replace')}" for rank, log in enumerate(self._logs))

    def _failure(self, reason: str) -> RankError:
        # A rank that waits for a dead one only says that it lost a connection: give the others time to say why.
        time.sleep(0.5)
        output = self.output()
        self.close()
        return RankError(f"{reason}\n{output[-8000:]}")

    def close(self) -> None:
        """End the processes."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
