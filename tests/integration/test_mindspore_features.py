"""L2 features, call stacks, and start and stop while a MindSpore network trains."""

import csv
import json
import os
from pathlib import Path

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from msmon.mindspore import TrainerMon

from .mindspore_models import batches, build, train, weight_bytes


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with next(folder.glob(f"*-rank0-*/{name}")).open(newline="") as file:
        return list(csv.DictReader(file))


class Core(nn.Cell):
    """Called with Q and K of shape [sequence, batch, heads, size]; keeps what it was called with."""

    def __init__(self):
        super().__init__()
        self.called = []

    def construct(self, q, k):
        self.called.append((q.asnumpy(), k.asnumpy()))
        scores = ops.softmax(ops.matmul(q[:, 0, 0], k[:, 0, 0].T), -1)
        return ops.matmul(scores, k[:, 0, 0])


class Layer(nn.Cell):
    """One head of attention, and a router of four experts."""

    def __init__(self):
        super().__init__()
        self.qk = nn.Dense(8, 16)
        self.core = Core()
        self.router = nn.Dense(8, 4, has_bias=False)

    def construct(self, x):
        q, k = ops.split(self.qk(x), 8, -1)
        return self.core(q[:, None, None], k[:, None, None]) + ops.softmax(self.router(x), -1).sum()


def step(model, optimizer, count):
    grad = mindspore.value_and_grad(lambda x: model(x).pow(2).mean(), None, optimizer.parameters)
    data = np.random.RandomState(4)
    losses = []
    for _ in range(count):
        loss, gradients = grad(Tensor(data.randn(6, 8).astype(np.float32)))
        optimizer(gradients)
        losses.append(loss.asnumpy().tobytes())
    return losses


def entropies(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(weights > 0, weights * np.log(weights), 0.0)
    return -terms.sum(-1).mean(), weights.max(-1).mean()


def test_attention_and_routers(write_config, output_dir):
    targets = {
        "attention_hook": ["core"],
        "linear_hook": ["qk"],
        "moe_router_weight_hook": ["router"],
        "moe_router_logit_hook": ["router"],
    }
    config = write_config(recording_l2_features=True, l2_targets=targets, ndigits=8)
    results = []
    for monitored in (False, True):
        mindspore.set_seed(1)
        model = Layer()
        optimizer = nn.Adam(model.trainable_params(), 1e-2)
        router, qk = model.router.weight.asnumpy().astype("f8"), model.qk.weight.asnumpy().astype("f8")
        if monitored:
            monitor = TrainerMon(config)
            monitor.set_monitor(model, 1, optimizer)
        results.append((step(model, optimizer, 2), weight_bytes(model)))
    monitor.close()
    assert results[0] == results[1]

    (found,) = rows(output_dir, "attention_hook_1-1.csv")
    q, k = (part[:, 0, 0].astype("f8") for part in model.core.called[1])
    scores = np.where(np.tril(np.ones((6, 6))) > 0, q @ k.T / np.sqrt(8), -np.inf)
    entropy, largest = entropies(scores)
    assert (found["name"], found["micro_step"]) == ("core.attention", "0")
    assert float(found["entropy"]) == pytest.approx(entropy, rel=1e-5)
    assert float(found["softmax_max"]) == pytest.approx(largest, rel=1e-5)

    (found,) = rows(output_dir, "linear_hook_0-0.csv")
    assert float(found["kernel_norm"]) == pytest.approx(np.linalg.svd(qk, compute_uv=False)[0], rel=1e-3)

    (found,) = rows(output_dir, "moe_router_weight_hook_0-0.csv")
    units = router / np.linalg.norm(router, axis=1, keepdims=True)
    pairs = (units @ units.T)[np.triu_indices(4, 1)]
    assert float(found["router_weight_similarity"]) == pytest.approx(pairs.mean(), rel=1e-5)

    (found,) = rows(output_dir, "moe_router_logit_hook_0-0.csv")
    data = np.random.RandomState(4).randn(6, 8)
    assert float(found["per_token_expert_entropy"]) == pytest.approx(entropies(data @ router.T)[0], rel=1e-4)


def test_stacks_name_the_users_program(write_config, output_dir):
    model, optimizer = build("mlp")
    with TrainerMon(write_config(stack_info=True, wg_distribution=True)) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        train("mlp", model, optimizer, steps=2)
    found = {row["module_name"]: row["stack_info"].splitlines() for row in rows(output_dir, "stack_info.csv")}
    assert list(found) == ["0:", "0:fc1", "0:relu", "0:fc2"]
    # What calls the network is the program, what calls its Cells is a container of MindSpore's.
    assert "mindspore_models.py" in found["0:"][0]
    assert "in forward: return model(batch)" in found["0:"][0]
    assert "in construct" in found["0:fc1"][0]
    for frames in found.values():
        assert not any("msmon_hooks" in frame or "cell.py" in frame for frame in frames)


def test_start_and_stop_while_the_network_trains(tmp_path, output_dir, monkeypatch):
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    path = tmp_path / "config.json"

    def write(**fields):
        path.write_text(json.dumps({"wg_distribution": True, "xy_distribution": True, **fields}))
        # The clock of a file system may stand still between two edits.
        changed = os.stat(path).st_mtime_ns + write.edits * 1_000_000_000
        os.utime(path, ns=(changed, changed))
        write.edits += 1

    write.edits = 1
    write(dynamic_on=False)
    model, optimizer = build("mlp")
    original = nn.Cell.__call__
    losses = []

    def run(count):
        grad = mindspore.value_and_grad(lambda batch: model(batch).pow(2).mean(), None, optimizer.parameters)
        for batch in batches("mlp")[:count]:
            loss, gradients = grad(batch)
            optimizer(gradients)
            losses.append(loss.asnumpy().tobytes())

    def hooked():
        return any(key.startswith("_msmon") for _, cell in model.cells_and_names() for key in vars(cell))

    with TrainerMon(path) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        run(2)
        assert not hooked()
        assert not output_dir.exists()
        write(dynamic_on=True, collect_times=2)
        run(1)
        assert hooked()
        run(2)
        assert not hooked()
        assert json.loads(path.read_text())["dynamic_on"] is False
        run(1)
        write(dynamic_on=True, collect_times=1)
        run(3)
    assert nn.Cell.__call__ is original
    steps = sorted(
        sorted(int(file.stem.rpartition("-")[2]) for file in folder.glob("grad_reduced_*.csv"))
        for folder in output_dir.glob("*-rank0-*")
    )
    assert steps == [[3, 4], [7]]
    assert all(list(folder.glob("actv_*.csv")) for folder in output_dir.glob("*-rank0-*"))

    model, optimizer = build("mlp")
    monitored, losses[:] = list(losses), []
    for count in (2, 1, 2, 1, 3):
        run(count)
    assert losses == monitored
