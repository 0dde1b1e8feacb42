"""One rank: waits for functions to call. Started by launcher.py."""

import importlib
import importlib.util
import os
import sys
import traceback
from multiprocessing.connection import Client
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = "distributed_tests"


def main() -> None:
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # This folder would hide other modules of the same names.
    sys.path[:] = [path for path in sys.path if path and Path(path) != HERE]
    spec = importlib.util.spec_from_file_location(PACKAGE, HERE / "__init__.py", submodule_search_locations=[str(HERE)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    import torch

    torch.set_num_threads(1)
    if mode == "init":
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world_size
        )
    with Client(str(folder / "socket"), "AF_UNIX") as connection:
        connection.send(rank)
        while True:
            try:
                module, function, arguments = connection.recv()
            except EOFError:
                break
            try:
                answer = getattr(importlib.import_module(f"{PACKAGE}.{module}"), function)(**arguments)
            except Exception:
                connection.send((False, traceback.format_exc()))
            else:
                connection.send((True, answer))
    sys.stdout.flush()
    # Not a clean shutdown: a rank that failed would make the others wait for it.
    os._exit(0)


if __name__ == "__main__":
    main()
