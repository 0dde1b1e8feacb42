"""Two ranks, each with a stage of a pipeline: what each does, as `test_pipelines.py` starts it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from attrs import frozen
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

from msmon.pytorch import TrainerMon

from .probe import CONFIG, Outcome, Probe, judge, outcome, read_rows

MICRO_STEPS, ROWS, WIDTH, STEPS = 4, 2, 8, 3
Places = Callable[[int], Sequence[int]]
"""Which stages a rank has."""
Train = Callable[[int, Path | None, Probe | None], Outcome]


def examples(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(MICRO_STEPS * ROWS, WIDTH, generator=generator), torch.randn(
        MICRO_STEPS * ROWS, WIDTH, generator=generator
    )


def layer(number: int) -> nn.Module:
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


class Twice(nn.Module):
    """Uses its weights twice, so that a backward for them alone passes one call on its way to the other."""

    def __init__(self, number: int) -> None:
        super().__init__()
        torch.manual_seed(number)
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(torch.tanh(self.inner(x)))


def schedule(
    name: str,
    inferred: bool,
    *,
    places: Places = lambda rank: [rank],
    sharded: bool = False,
    make: Callable[[int], nn.Module] = layer,
) -> Train:
    """`torch.distributed.pipelining`.

    Args:
        name: of the schedule.
        inferred: the stages find the shapes by a forward and backward of their own.
        places: which stages a rank has.
        make: makes the module of a stage.
        sharded: whether each stage is also given to FSDP2, over this rank alone.
    """

    def train(rank: int, config: Path | None, probe: Probe | None) -> Outcome:
        from torch.distributed import pipelining

        modules = [make(place) for place in places(rank)]
        if sharded:
            mesh = distributed.device_mesh.DeviceMesh("cpu", [rank])
            for module in modules:
                fully_shard(module, mesh=mesh)
        example = None if inferred else torch.zeros(ROWS, WIDTH, requires_grad=True)
        count, cpu = 2 * len(modules), torch.device("cpu")
        stages = [
            pipelining.PipelineStage(module, place, count, cpu, input_args=example, output_args=example)
            for place, module in zip(places(rank), modules, strict=True)
        ]
        loss_fn = nn.MSELoss()
        schedule_class = getattr(pipelining, name)
        several = issubclass(schedule_class, pipelining.schedules.PipelineScheduleMulti)
        run = schedule_class(stages if several else stages[0], MICRO_STEPS, loss_fn=loss_fn)
        whole = modules[0] if len(modules) == 1 else nn.ModuleList(modules)
        optimizer = torch.optim.AdamW(whole.parameters(), lr=0.01)
        if probe is not None:
            probe.watch(whole)
        monitor = None
        if config is not None:
            monitor = TrainerMon(str(config), params_have_main_grad=False)
            monitor.set_monitor(modules if len(modules) > 1 else modules[0], MICRO_STEPS, optimizer)
        kept: list[float] = []
        for step in range(STEPS):
            inputs, targets = examples(step)
            losses: list[torch.Tensor] = []
            given = (inputs,) if 0 in places(rank) else ()
            last = {"target": targets, "losses": losses} if count - 1 in places(rank) else {}
            run.step(*given, **last)
            optimizer.step()
            optimizer.zero_grad()
            # The first stage sees no loss; its weights say the same.
            kept += [loss.item() for loss in losses] or [float(step)]
        if monitor is not None:
            monitor.close()
        return outcome(kept, whole)

    return train


def deepspeed_engine(rank: int, config: Path | None, probe: Probe | None) -> Outcome:
    """DeepSpeed's `PipelineEngine`."""
    import deepspeed
    from deepspeed.ops import __compatible_ops__
    from deepspeed.pipe import PipelineModule

    # It would be compiled first.
    __compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo", verbose=False)
    torch.manual_seed(0)
    module = PipelineModule([layer(0), layer(1)], num_stages=2, loss_fn=nn.MSELoss(), partition_method="uniform")
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    engine, _, _, _ = deepspeed.initialize(
        model=module,
        optimizer=optimizer,
        config={
            "train_micro_batch_size_per_gpu": ROWS,
            "gradient_accumulation_steps": MICRO_STEPS,
            "steps_per_print": 1000,
            "gradient_clipping": 0.1,
        },
    )
    if probe is not None:
        probe.watch(engine.module)
    monitor = None
    if config is not None:
        monitor = TrainerMon(str(config), params_have_main_grad=False)
        monitor.set_monitor(engine, MICRO_STEPS, engine.optimizer)
    losses = []
    for step in range(STEPS):
        pairs = list(zip(*(one.chunk(MICRO_STEPS) for one in examples(step)), strict=True))
        losses.append(float(engine.train_batch(data_iter=iter(pairs))))
    if monitor is not None:
        monitor.close()
    return outcome(losses, engine.module)


def in_turn(rank: int) -> list[int]:
    return [rank, rank + 2]


def in_a_v(rank: int) -> list[int]:
    return [rank, 3 - rank]


@frozen(kw_only=True)
class Way:
    """A training, and what is watched in it."""

    train: Train
    parameter: str = "2.weight"
    module: str = "1"
    """`R` in these two stands for the rank."""
    chunks: bool = False
    """Whether a rank has several stages; names then begin with the number of one."""
    unreduced: float | None = 1 / MICRO_STEPS
    """By what the schedule multiplies the sum of the gradients."""


def in_chunks(name: str, inferred: bool, places: Places, watched: int) -> Way:
    train = schedule(name, inferred, places=places)
    return Way(train=train, chunks=True, parameter=f"{watched}.2.weight", module=f"{watched}.1")


WAYS = {
    "pipelining, GPipe": Way(train=schedule("ScheduleGPipe", False)),
    "pipelining, 1F1B": Way(train=schedule("Schedule1F1B", False)),
    "pipelining, 1F1B, shapes inferred": Way(train=schedule("Schedule1F1B", True)),
    "pipelining, 1F1B, FSDP2, shapes inferred": Way(train=schedule("Schedule1F1B", True, sharded=True)),
    "pipelining, interleaved 1F1B": in_chunks("ScheduleInterleaved1F1B", False, in_turn, 1),
    "pipelining, interleaved 1F1B, shapes inferred": in_chunks("ScheduleInterleaved1F1B", True, in_turn, 0),
    "pipelining, interleaved zero bubble": in_chunks("ScheduleInterleavedZeroBubble", True, in_turn, 1),
    "pipelining, zero bubble in a V": in_chunks("ScheduleZBVZeroBubble", True, in_a_v, 1),
    "pipelining, dual pipe in a V": in_chunks("ScheduleDualPipeV", True, in_a_v, 0),
    "DeepSpeed PipelineEngine": Way(train=deepspeed_engine, parameter="R.2.weight", module="R.1", unreduced=None),
}


def begin(rank: int, folder: str, **fields: Any) -> tuple[Path, Path]:
    """A process of a rank: joins the other one, and has a folder of its own and a configuration in it."""
    torch.set_num_threads(1)
    os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    own = Path(folder) / str(rank)
    own.mkdir()
    os.environ["MONITOR_OUTPUT_DIR"] = str(own / "out")
    config = own / "config.json"
    config.write_text(json.dumps(CONFIG | fields))
    store = distributed.FileStore(f"{folder}/store", 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    return own, config


def compare(rank: int, folder: str) -> None:
    """A schedule that splits backwards, and one that does not: of all tensors the same rows."""
    own, config = begin(rank, folder, forward_only=False, monitor_mbs_grad=True)
    rows = []
    for name in ("ScheduleInterleaved1F1B", "ScheduleInterleavedZeroBubble"):
        os.environ["MONITOR_OUTPUT_DIR"] = str(own / name)
        schedule(name, True, places=in_turn, make=Twice)(rank, config, None)
        distributed.barrier()
        (run_dir,) = (own / name).iterdir()
        rows.append(read_rows(run_dir, chunks=True))
    kinds = {kind for kind, *_ in rows[0]}
    assert kinds >= {"actv", "actv_grad", "grad_unreduced", "grad_reduced", "exp_avg", "param_updated"}
    assert len({key for key in rows[0] if key[0] == "grad_unreduced"}) == STEPS * MICRO_STEPS * 4
    assert rows[0].keys() == rows[1].keys()
    # Sums in another order.
    differ = {key: (row, rows[1][key]) for key, row in rows[0].items() if not close(row, rows[1][key])}
    assert not differ, differ
    distributed.destroy_process_group()


def close(row: dict[str, float], other: dict[str, float]) -> bool:
    """Whether two rows are the same but for rounding."""
    return all(abs(value - other[op]) <= 1e-5 * abs(row["norm"]) + 1e-9 for op, value in row.items())


def run(rank: int, folder: str, way: str) -> None:
    """Both trainings on one rank, and its verdict in a file."""
    own, config = begin(rank, folder)
    found = WAYS[way]
    with Probe(found.parameter.replace("R", str(rank)), found.module.replace("R", str(rank))) as probe:
        plain = found.train(rank, None, probe)
    # The forward that only finds out the shapes is none of the training.
    probe.outputs = [means[-MICRO_STEPS:] for means in probe.outputs]
    distributed.barrier()
    monitored = found.train(rank, config, None)
    distributed.barrier()
    verdict = judge(own / "out", probe, plain, monitored, rank=rank, chunks=found.chunks, unreduced=found.unreduced)
    (notes,) = (json.loads(path.read_text())["notes"] for path in (own / "out").glob("*/coverage.json"))
    assert not notes, notes
    (own / "verdict.json").write_text(json.dumps(attrs.asdict(verdict)))
    distributed.destroy_process_group()
