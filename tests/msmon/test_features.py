"""Fields that bring files of their own, or other columns: through the monitor to what stands on disk."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from msmon.pytorch import TrainerMon


class Attention(nn.Module):
    """One head; the core is called with Q and K of shape [sequence, batch, heads, size]."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 16)
        self.core = Core()
        self.router = nn.Linear(8, 4)

    def forward(self, x):
        q, k = self.qkv(x).chunk(2, dim=-1)
        return self.core(q.unsqueeze(2), k.unsqueeze(2)) + self.router(x).mean(-1, keepdim=True)


class Core(nn.Module):
    def forward(self, q, k):
        scores = torch.einsum("sbhd,tbhd->bhst", q, k).softmax(-1)
        return torch.einsum("bhst,tbhd->sbhd", scores, k).squeeze(2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(11, 8)
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.head = nn.Linear(8, 2)

    def forward(self, tokens):
        x = self.emb(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def train(config: Path, *, steps: int = 2, micro_steps: int = 1) -> None:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with TrainerMon(config, params_have_main_grad=False) as monitor:
        monitor.set_monitor(model, micro_steps, optimizer)
        for _ in range(steps):
            for _ in range(micro_steps):
                model(torch.randint(0, 11, (5, 2))).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def run_dir(output_dir: Path) -> Path:
    (found,) = output_dir.glob("*-rank0-*")
    return found


def rows(path: Path) -> list[list[str]]:
    with path.open() as file:
        return list(csv.reader(file))


def test_l2_features(write_config, output_dir):
    fields = {
        "attention_hook": ["layers.0.core", "layers.1.core"],
        "linear_hook": [],
        "moe_router_weight_hook": ["layers.0.router"],
        "moe_router_logit_hook": ["layers.0.router", "layers.1.router"],
    }
    train(write_config(recording_l2_features=True, l2_targets=fields), micro_steps=2)
    directory = run_dir(output_dir)
    found = {name: rows(directory / f"{name}_1-1.csv") for name in fields}
    assert found["attention_hook"][0] == ["vpp_stage", "name", "step", "micro_step", "entropy", "softmax_max"]
    assert [row[:4] for row in found["attention_hook"][1:]] == [
        ["0", f"layers.{layer}.core.attention", "1", str(micro_step)] for micro_step in range(2) for layer in range(2)
    ]
    assert found["linear_hook"][0] == ["vpp_stage", "name", "step", "sr", "kernel_norm"]
    linear = [f"layers.{layer}.{name}.linear" for layer in range(2) for name in ("qkv", "router")]
    assert [row[1] for row in found["linear_hook"][1:]] == [*linear, "head.linear"]
    assert found["moe_router_weight_hook"][0] == ["vpp_stage", "name", "step", "router_weight_similarity"]
    assert [row[1] for row in found["moe_router_weight_hook"][1:]] == ["layers.0.router.moe_router"]
    assert found["moe_router_logit_hook"][0] == ["vpp_stage", "name", "step", "micro_step", "per_token_expert_entropy"]
    assert len(found["moe_router_logit_hook"]) == 5
    coverage = json.loads((directory / "coverage.json").read_text())
    assert coverage["expected"] == coverage["seen"]


def test_l2_features_are_off_without_the_switch(write_config, output_dir):
    train(write_config(wg_distribution=True, l2_targets={"linear_hook": []}))
    assert not list(run_dir(output_dir).glob("linear_hook*"))


def test_alerts_judge_features(write_config, output_dir):
    rules = {"rules": [{"rule_name": "AnomalyNan", "args": {"threshold": 0.01}}], "dump": True}
    train(write_config(recording_l2_features=True, l2_targets={"linear_hook": ["head"]}, alert=rules))
    records = json.loads((output_dir / "anomaly_detected" / "rank0" / "anomaly.json").read_text())
    assert {record["tag_name"] for record in records.values()} == {"0:head.linear/rank0/linear_hook"}


def test_pictures_of_adam(write_config, output_dir):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(write_config(ur_distribution=True, wg_distribution=True, format="tensorboard", ops=["norm"]), steps=4)
    events = event_accumulator.EventAccumulator(str(run_dir(output_dir)), size_guidance={"images": 0})
    events.Reload()
    tags = events.Tags()
    names = [name for name, _ in Model().named_parameters()]
    assert set(tags["images"]) == {f"0:{name}/rank0/{kind}" for name in names for kind in ("adam_update", "adam_ratio")}
    pictures = events.Images("0:head.weight/rank0/adam_update")
    # There are no moments before the first update.
    assert (pictures[-1].step, pictures[-1].width) == (3, 3 * 4)
    assert [picture.width for picture in pictures] == sorted({picture.width for picture in pictures})
    assert pictures[0].encoded_image_string.startswith(b"\x89PNG")
    scalars = {tag for tag in tags["scalars"] if "adam" in tag}
    assert scalars == {
        f"0:{name}/rank0/adam_{kind}_{op}" for name in names for kind in ("update", "ratio") for op in ("nans", "infs")
    }
    # Rows of the embedding that were never looked up have no ratio: 0 over 0.
    ratio = events.Scalars("0:emb.weight/rank0/adam_ratio_nans")
    assert ratio[0].value % 8 == 0
    assert events.Scalars("0:emb.weight/rank0/adam_update_nans")[0].value == 0
    assert "0:head.weight/rank0/grad_reduced_norm" in tags["scalars"]
    assert not [tag for tag in tags["scalars"] if "adam_histogram" in tag]


def test_pictures_need_tensorboard(write_config, output_dir, caplog):
    train(write_config(ur_distribution=True, wg_distribution=True, format="csv"))
    assert [record for record in caplog.records if "ur_distribution" in record.getMessage()]
    assert not list(run_dir(output_dir).glob("events*"))
    coverage = json.loads((run_dir(output_dir) / "coverage.json").read_text())
    assert "adam_histogram" not in coverage["expected"]


def test_call_stacks(write_config, output_dir):
    train(write_config(stack_info=True, targets={"layers.0": {}, "head": {}}))
    found = rows(run_dir(output_dir) / "stack_info.csv")
    assert found[0] == ["module_name", "stack_info"]
    assert [row[0] for row in found[1:]] == ["0:layers.0", "0:head"]
    assert "in forward: x = x + layer(x)" in found[1][1]
    assert "test_features.py" in found[1][1]
    mode = (run_dir(output_dir) / "stack_info.csv").stat().st_mode & 0o777
    assert mode == 0o640


def test_call_stacks_are_for_csv(write_config, output_dir):
    pytest.importorskip("tensorboard")
    train(write_config(stack_info=True, wg_distribution=True, format="tensorboard"))
    assert not (run_dir(output_dir) / "stack_info.csv").exists()


def test_short_names_lose_no_row(write_config, output_dir):
    fields = {"param_distribution": True, "xy_distribution": True, "all_xy": True, "wg_distribution": True}
    train(write_config(**fields, squash_name=True))
    directory = run_dir(output_dir)
    names = [row[1] for row in rows(directory / "param_origin_0-0.csv")[1:]]
    assert len(names) == len(set(names)) == len(list(Model().named_parameters()))
    info = json.loads((directory / "run.json").read_text())
    assert [tensor["name"] for tensor in info["tensors"]] == names


PROGRAM = """
import sys, torch
from torch import nn
from msmon.pytorch import TrainerMon
model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
monitor = TrainerMon(sys.argv[1], params_have_main_grad=False)
monitor.set_monitor(model, 2, optimizer)
for step in range(3):
    print("step", step, flush=True)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
print("not reached")
"""


@pytest.mark.parametrize("rank", ["0", "1"])
def test_print_struct_ends_the_program_on_all_ranks(write_config, output_dir, rank):
    config = write_config(print_struct=True, wg_distribution=True, module_ranks=[0])
    environment = {**os.environ, "RANK": rank, "WORLD_SIZE": "2"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(config)], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stdout) == (0, "step 0\n"), done.stderr
    path = output_dir / "module_struct" / f"rank{rank}" / "module_struct.json"
    assert path.exists() == (rank == "0")
    if rank == "0":
        assert list(json.loads(path.read_text())) == ["0:0", "0:1", "0:"]
        assert '"0:1"' in done.stderr
        assert (run_dir(output_dir) / "grad_reduced_0-0.csv").exists()
    assert "Traceback" not in done.stderr
