"""Imports the modules that are named as arguments, then forks for each job that comes in as a line of JSON."""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

SECONDS = 120


def python(step: dict[str, Any], names: dict[str, Any]) -> None:
    """Code, with the names that earlier code made."""
    exec(compile(step["code"], step["place"], "exec"), names)


def script(step: dict[str, Any], names: dict[str, Any]) -> None:
    """A file, as the main program."""
    path = Path(step["path"])
    sys.argv = [str(path), *step.get("arguments", [])]
    sys.path.insert(0, str(path.parent))
    runpy.run_path(str(path), run_name="__main__")


def command(step: dict[str, Any], names: dict[str, Any]) -> None:
    """A command line program that is a Python module, such as `msmon show RUN`."""
    module, *arguments = step["words"]
    try:
        status = importlib.import_module(module).main(arguments)
    except SystemExit as end:
        status = end.code
    print(f"$ {' '.join(step['words'])}: {status}")
    if status not in step["statuses"]:
        raise SystemExit(f"{step['place']}: {' '.join(step['words'])} ends with {status}")


DO = {"python": python, "script": script, "command": command}


def program(job: dict[str, Any], rank: int, output: Path) -> None:
    """The life of a fork."""
    signal.alarm(SECONDS)
    stream = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(stream, number)
    status = 1
    try:
        if job["ranks"] > 1:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        os.chdir(job["folder"])
        names: dict[str, Any] = {"__name__": "__main__"}
        for step in job["steps"]:
            DO[step["do"]](step, names)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1 if end.code else 0
        if status:
            print(end.code)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run_ranks(job: dict[str, Any], output: Path) -> list[int]:
    """The exit status of each rank. What all of them import is imported once, in a process between."""
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        for module in job["imports"]:
            importlib.import_module(module)
        children = []
        for rank in range(job["ranks"]):
            child = os.fork()
            if child == 0:
                program(job, rank, output)
            children.append(child)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        os.write(writing, json.dumps(statuses).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(between, 0)
    return json.loads(text) if text else [1] * job["ranks"]


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def main() -> None:
    here = str(Path(__file__).parent)
    sys.path[:] = [path for path in sys.path if path != here]
    for module in sys.argv[1:]:
        importlib.import_module(module)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        job = json.loads(line)
        ranks = job["ranks"]
        before = dict(os.environ)
        os.environ |= job["env"]
        if ranks > 1:
            size = str(ranks)
            os.environ |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        output = Path(job["folder"]) / ".output"
        output.unlink(missing_ok=True)
        statuses = run_ranks(job, output)
        os.environ.clear()
        os.environ |= before
        text = output.read_text(errors="replace") if output.exists() else ""
        print(json.dumps({"statuses": statuses, "output": text}), file=answers, flush=True)


if __name__ == "__main__":
    main()
