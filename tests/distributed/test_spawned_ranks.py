"""Ranks that no launcher started: the environment says nothing, and the monitor is made before the process group."""

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys, torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from msmon import TrainerMon

def train(rank, config, meeting):
    torch.set_num_threads(1)
    monitor = TrainerMon(config, params_have_main_grad=False)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor.set_monitor(model, 1, optimizer)
    for _ in range(2):
        model(torch.full((2, 3), rank + 1.0)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.close()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(train, (sys.argv[1], sys.argv[2]), nprocs=2)
"""


def test_each_rank_writes_as_itself(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    config = tmp_path / "config.json"
    rules = {"rules": [{"rule_name": "AnomalyNan"}], "dump": True}
    config.write_text(json.dumps({"wg_distribution": True, "module_ranks": [0, 1], "alert": rules}))
    env = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    env |= {
        "MONITOR_OUTPUT_DIR": str(tmp_path / "out"),
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    command = [sys.executable, str(script), str(config), f"file://{tmp_path / 'meeting'}"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        (run_dir,) = (tmp_path / "out").glob(f"*-rank{rank}-*")
        info = json.loads((run_dir / "run.json").read_text())
        assert (info["rank"], info["world_size"], info["engine"]) == (rank, 2, "ddp")
        rows = (run_dir / "grad_unreduced_1-1.csv").read_text().splitlines()
        # The gradient of each weight is the sum of a column of the rank's own batch.
        assert [float(row.split(",")[3]) for row in rows[1:]] == pytest.approx([8**0.5, 24**0.5 * (rank + 1)])
        assert (tmp_path / f"out/anomaly_detected/rank{rank}/anomaly.json").exists()
    assert len(list((tmp_path / "out").glob("*-rank*"))) == 2
