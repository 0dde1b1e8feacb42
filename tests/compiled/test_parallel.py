"""DDP and FSDP2 around compiled blocks, on one rank: which graphs there are does not depend on how many."""

from __future__ import annotations

import os

import pytest
import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.compiled.models import GPT, batch
from tests.hooks.recorder import Monitored

WHOLE = bool(os.environ.get("MSMON_WHOLE_TABLE"))
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*:DeprecationWarning", "ignore:.*:UserWarning", "ignore:.*:FutureWarning"
)


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory):
    path = tmp_path_factory.mktemp("group") / "store"
    init_process_group("gloo", init_method=f"file://{path}", rank=0, world_size=1)
    yield
    destroy_process_group()


def train(way, inside, backend="aot_eager"):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = GPT()
    run = model
    if way == "ddp blocks":
        for block in model.blocks:
            block.compile(backend=backend, fullgraph=True)
        run = DistributedDataParallel(model)
    elif way == "ddp":
        run = DistributedDataParallel(model, bucket_cap_mb=0.01)
    elif way == "fsdp2":
        mesh = init_device_mesh("cpu", (1,))
        for index, block in enumerate(model.blocks):
            model.blocks[index] = torch.compile(block, backend=backend, fullgraph=True)
            fully_shard(model.blocks[index], mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitored = None
    if inside is not None:
        monitored = Monitored(run, optimizer, activations=True, activation_gradients=True, inside_compiled=inside)
    if way == "ddp":
        run = torch.compile(run, backend=backend)
    torch.manual_seed(1)
    losses = []
    for number in range(2):
        inputs, wanted = batch("gpt", number)
        loss = torch.nn.functional.cross_entropy(run(inputs).flatten(0, 1), wanted.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if monitored is not None:
        monitored.close()
    return losses, monitored


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"] if WHOLE else ["aot_eager"])
@pytest.mark.parametrize("way", ["ddp blocks", "ddp", "fsdp2"])
def test_rows_are_those_of_eager_mode(way, backend, monkeypatch):
    # So that the graph is parted in several, as those of large models are.
    monkeypatch.setattr(torch.distributed, "_DEFAULT_FIRST_BUCKET_BYTES", 4096)
    base, _ = train(way, None, backend)
    losses, seen = train(way, "all", backend)
    assert losses == base
    assert seen.recorder.doubled() == []
    _, eager = train("eager", "")
    rows, expected = ({key for key in one.recorder.rows if "actv" in key[0]} for one in (seen, eager))
    assert rows == expected
    for key in expected:
        assert seen.recorder.rows[key] == pytest.approx(eager.recorder.rows[key], rel=1e-3, abs=1e-7)
