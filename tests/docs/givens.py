"""What pages take for granted: files in the folder in which a page's blocks run, and names that its code uses.

The runs are real ones, of a small model; a weight is multiplied by 10,000 at step 40.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from .forks import Forks

CONFIG = {
    "wg_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "mv_distribution": True,
    "param_distribution": True,
    "format": ["csv", "parquet"],
    "ops": ["norm", "min", "max", "mean", "zeros", "nans"],
    "alert": {"rules": [{"rule_name": "AnomalyNan"}, {"rule_name": "AnomalySpike"}], "dump": True},
}
TRAINING = """
import os
import torch
from torch import nn
from msmon.pytorch import TrainerMon

os.environ["MONITOR_OUTPUT_DIR"] = OUTPUT
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters())
with TrainerMon("config.json", params_have_main_grad=False) as monitor:
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
    for step in range(44):
        if step == FAULT:
            with torch.no_grad():
                model[2].weight.mul_(1e4)
        model(torch.randn(32, 8)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
CODE = {
    "model": "import torch\nmodel = torch.nn.Linear(4, 2)\noptimizer = torch.optim.AdamW(model.parameters())\n",
    "gradients": "model(torch.ones(1, 4)).sum().backward()\n",
}
"""Names that pages use."""


class Givens:
    """Made once, copied into the folder of each page that names them.

    Args:
        folder: where they are kept.
        forks: run the trainings.
        example: runs an example, and returns its output directory.
    """

    def __init__(self, folder: Path, forks: Forks, example: Callable[[str], Path]) -> None:
        self._folder, self._forks, self._example = folder, forks, example

    def put(self, name: str, target: Path) -> None:
        """Put a file or directory into the folder of a page."""
        if name == "monitor_config.json":
            (target / name).write_text(json.dumps(CONFIG))
        elif name == "checkpoint.npz":
            code = "import numpy\nnumpy.savez('checkpoint.npz', weight=numpy.ones((2, 2)), bias=numpy.zeros(2))\n"
            self._forks.run(target, {"do": "python", "code": code, "place": name})
        elif name == "sharded_output":
            shutil.copytree(self._example("examples/fsdp2.py"), target / name)
        elif name == "sharded monitor_output":
            shutil.copytree(self._example("examples/fsdp2.py"), target / "monitor_output")
        elif " of " in name:
            # A run directory of that time stamp, as in the examples of commands.
            name, stamp = name.split(" of ")
            shutil.copytree(self._run(name), target / name)
            (run_dir,) = (target / name).glob("*-rank0-*")
            run_dir.rename(run_dir.with_name(stamp + run_dir.name[run_dir.name.index("-rank0") :]))
        else:
            shutil.copytree(self._run(name), target / name)

    def _run(self, name: str) -> Path:
        fault = {"monitor_output": 40, "run_a": -1, "run_a_again": -1, "run_b": 20}[name]
        output = self._folder / name
        if not output.exists():
            (self._folder / "config.json").write_text(json.dumps(CONFIG))
            code = f"OUTPUT, FAULT = {str(output)!r}, {fault}\n{TRAINING}"
            self._forks.run(self._folder, {"do": "python", "code": code, "place": name})
        return output
