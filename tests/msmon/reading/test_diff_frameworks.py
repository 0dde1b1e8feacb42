"""The same training in PyTorch and in MindSpore, compared through rules for the names."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import msmon_hooks
import msmon_io
import msmon_stats
from msmon.cli import main
from msmon.reading.diff import diff_runs, read_rules

MINDSPORE = Path(__file__).parents[3] / ".venv-mindspore" / "bin" / "python"
CONFIG = {
    "wg_distribution": True,
    "param_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "ops": ["norm", "min", "max", "mean"],
}
RULES = [
    {"pattern": r"\.gamma$", "replace": ".weight", "run": "b"},
    {"pattern": r"\.beta$", "replace": ".bias", "run": "b"},
]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 8)
        self.norm = nn.LayerNorm(8)
        self.fc2 = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(nn.functional.gelu(self.norm(self.fc1(x))))


def train_in_torch(network: Network, batches: np.ndarray, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from msmon.pytorch import TrainerMon

    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(output))
    config = output.parent / "torch.json"
    config.write_text(json.dumps(CONFIG))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with TrainerMon(config, params_have_main_grad=False) as monitor:
        monitor.set_monitor(network, grad_acc_steps=1, optimizer=optimizer)
        for batch in batches:
            network(torch.from_numpy(batch)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def train_in_mindspore(data: Path, output: Path, scale: float) -> None:
    import msmon
    import msmon_alert

    packages = (msmon_stats, msmon_hooks, msmon_io, msmon_alert, msmon)
    sources = os.pathsep.join(str(Path(package.__file__).parent.parent) for package in packages)
    done = subprocess.run(
        [MINDSPORE, Path(__file__).parent / "mindspore_training.py", data, output, str(scale)],
        env={**os.environ, "PYTHONPATH": sources},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_mindspore_against_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MINDSPORE.exists(), f"{MINDSPORE} is missing; make venv makes it"
    torch.manual_seed(0)
    network = Network()
    batches = np.random.default_rng(0).standard_normal((4, 5, 4)).astype(np.float32)
    data = tmp_path / "data.npz"
    weights = {name: value.detach().numpy() for name, value in network.named_parameters()}
    np.savez(data, batches=batches, config=json.dumps(CONFIG), **weights)
    for name, scale in (("same", 1.0), ("other", 1.5)):
        train_in_mindspore(data, tmp_path / name, scale)
    train_in_torch(network, batches, tmp_path / "torch", monkeypatch)
    path = tmp_path / "rules.json"
    path.write_text(json.dumps(RULES))
    rules = read_rules(path)

    same = diff_runs(tmp_path / "torch", tmp_path / "same", rules=rules, atol=1e-6)
    assert not same.first, same.first[0]
    assert not same.one_sided, same.one_sided
    assert same.compared_tensors > 6 * 4
    # Without the rules gamma and beta are strangers.
    strangers = {one.what for one in diff_runs(tmp_path / "torch", tmp_path / "same", atol=1e-6).one_sided}
    assert {"norm.gamma", "norm.weight"} <= strangers

    other = diff_runs(tmp_path / "torch", tmp_path / "other", rules=rules, atol=1e-6)
    first = other.first[0]
    assert (first.step, first.data_type, first.tensor.name) == (2, "actv", "fc2.input")
    assert main(["diff", str(tmp_path / "torch"), str(tmp_path / "same"), "--map", str(path), "--atol", "1e-6"]) == 0
