"""A training that ends in the way that the command line says; each way in a forked child, so that torch starts once.

Started by test_process_end.py: ``python ended_training.py <folder> <ending>...``. Of each ending it prints the exit
status. The folder of an ending is ``<folder>/<ending>``.
"""

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from msmon.pytorch import TrainerMon
from msmon_io import ParquetWriter, TensorBoardWriter  # noqa: F401  (imported once, not in each child)

STEPS = 4
CONFIG = {
    "wg_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "ops": ["norm"],
    "step_count_per_record": 3,
    "format": ["csv", "tensorboard", "parquet"],
}


class Batches(torch.utils.data.Dataset):
    """Its workers even train the model that they have got: the monitor must not follow them."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.monitored = len(model._forward_hooks)

    def __len__(self) -> int:
        return 2 * STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        worker = torch.utils.data.get_worker_info() is not None
        if worker:
            hooks = self.model._forward_hooks.values()
            assert not [hook for hook in hooks if type(hook).__module__.startswith("msmon")], "the hooks came along"
            self.model(torch.ones(1, 4)).sum().backward()
            self.optimizer.step()
        return torch.full((4,), float(index))


def train(folder: Path, ending: str) -> None:
    logging.basicConfig(level=logging.INFO)
    os.environ["MONITOR_OUTPUT_DIR"] = str(folder / "out")
    config = folder / "config.json"
    config.write_text(json.dumps(CONFIG))
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = TrainerMon(config, params_have_main_grad=False)
    monitor.set_monitor(model, 1, optimizer)
    if ending == "sigterm_handled":
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    if ending in ("fork", "spawn"):
        data = torch.utils.data.DataLoader(
            Batches(model, optimizer), batch_size=2, num_workers=1, multiprocessing_context=ending
        )
    else:
        data = [torch.ones(2, 4) * step for step in range(STEPS)]
    with monitor if ending == "context" else open(os.devnull):
        for batch in data:
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        if ending == "exception":
            raise ValueError("out of data")
    if ending == "close":
        monitor.close()
    if ending in ("close", "context"):
        assert not model._forward_hooks
        os._exit(0)  # Whatever is written only at the interpreter's exit would be missing.
    if ending.startswith("sigterm"):
        os.write(1, f"{ending} {os.getpid()}\n".encode())
        while True:
            time.sleep(1)


def main() -> None:
    root = Path(sys.argv[1])
    torch.set_num_threads(1)
    for ending in sys.argv[2:]:
        folder = root / ending
        folder.mkdir()
        child = os.fork()
        if child == 0:
            with open(folder / "stderr.txt", "w") as file:
                os.dup2(file.fileno(), 2)
            train(folder, ending)
            sys.exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(f"{ending} ended {status}", flush=True)


if __name__ == "__main__":
    main()
