"""Pieces of work on several processes.

Workers are fresh interpreters that import this package and nothing of the calling program. So a script without
`if __name__ == "__main__"` is not run again in each of them, as it would be with spawned ones, and no thread
pool of torch is copied half, as it would be with forked ones.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
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
    queue: SimpleQueue[tuple[int, Message]] = SimpleQueue()
    for numbered in enumerate(pieces):
        queue.put(numbered)
    results: dict[int, Message] = {}

    def feed() -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-c", _SERVE]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        ) as worker:
            try:
                while True:
                    number, piece = queue.get_nowait()
                    results[number] = _ask(worker, {"function": function, "piece": piece}, report)
            except Empty:
                pass
            except BaseException:
                worker.kill()
                _drain(queue)
                raise
            finally:
                if worker.stdin:
                    worker.stdin.close()

    with ThreadPoolExecutor(process_num) as threads:
        futures = [threads.submit(feed) for _ in range(process_num)]
        try:
            for future in futures:
                future.result()
        except BaseException:
            _drain(queue)
            raise
    return [results[number] for number in range(len(pieces))]


def _drain(queue: SimpleQueue[tuple[int, Message]]) -> None:
    while True:
        try:
            queue.get_nowait()
        except Empty:
            return


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
