"""Pieces of work on several processes.

Workers are fresh interpreters that import this package and nothing of the calling program. So a script without
`if __name__ == "__main__"` is not run again in each of them, as it would be with spawned ones, and no thread
pool of torch is copied half, as it would be with forked ones.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from queue import SimpleQueue
from typing import Any

Message = dict[str, Any]
"""What a piece reports while it runs; plain JSON."""

_SERVE = "from msmon_io.workers import serve; serve()"


class WorkerError(RuntimeError):
    """A worker process failed."""


def run_pieces(
    function: str, pieces: Sequence[Message], process_num: int, report: Callable[[Message], None]
) -> list[Message]:
    """Run `function(report=..., **piece)` for each piece, the largest first in the list to balance best.

    Args:
        function: `module:name` of a function that returns a JSON object.
        pieces: its keyword arguments, plain JSON.
        process_num: at most so many processes at once; with 1 all runs in this one.
        report: is called with each message of a piece, from several threads.

    Returns:
        The results, in the order of `pieces`.

    Raises:
        WorkerError: a piece failed in a worker; the message holds its error.
    """
    process_num = min(process_num, len(pieces))
    if process_num <= 1:
        return [_find(function)(report=report, **piece) for piece in pieces]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", _SERVE]
    idle: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()

    def run(piece: Message) -> Message:
        worker = idle.get()
        try:
            return _ask(worker, {"function": function, "piece": piece}, report)
        finally:
            idle.put(worker)

    with contextlib.ExitStack() as workers, ThreadPoolExecutor(process_num) as threads:
        for _ in range(process_num):
            worker = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
            )
            workers.callback(_end, worker)
            idle.put(worker)
        futures = [threads.submit(run, piece) for piece in pieces]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            # Those that are at work do not end it.
            workers.close()
            raise
        return [future.result() for future in futures]


def _end(worker: subprocess.Popen[str]) -> None:
    worker.kill()
    # What a worker that had died was not given any more.
    with contextlib.suppress(BrokenPipeError), worker:
        pass


def _ask(worker: subprocess.Popen[str], request: Message, report: Callable[[Message], None]) -> Message:
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        worker.stdin.write(json.dumps(request) + "\n")
        worker.stdin.flush()
    except BrokenPipeError:
        pass
    for line in worker.stdout:
        message: Message = json.loads(line)
        if "result" in message:
            result: Message = message["result"]
            return result
        if "error" in message:
            raise WorkerError(message["error"])
        report(message)
    raise WorkerError(f"a worker process ended unexpectedly (exit code {worker.wait()})")


def _find(function: str) -> Callable[..., Message]:
    module, _, name = function.partition(":")
    found: Callable[..., Message] = getattr(importlib.import_module(module), name)
    return found


def serve() -> None:
    """The worker process: one request a line on stdin, messages on stdout, until stdin ends."""
    # Whatever is printed meanwhile goes to stderr.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)

        def send(message: Message) -> None:
            out.write(json.dumps(message) + "\n")
            out.flush()

        for line in sys.stdin:
            request = json.loads(line)
            try:
                send({"result": _find(request["function"])(report=send, **request["piece"])})
            except Exception as error:
                send({"error": f"{type(error).__name__}: {error}"})
