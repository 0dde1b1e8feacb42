"""Two ranks, each with a stage of a pipeline: what each does, as `test_pipelines.py` starts it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import attrs
import torch
from torch import distributed, nn

from msmon.pytorch import TrainerMon

from .probe import CONFIG, Outcome, Probe, judge, outcome

MICRO_STEPS, ROWS, WIDTH, STEPS = 4, 2, 8, 3
Train = Callable[[int, Path | None, Probe | None], Outcome]


def examples(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(MICRO_STEPS * ROWS, WIDTH, generator=generator), torch.randn(
        MICRO_STEPS * ROWS, WIDTH, generator=generator
    )


def layer(number: int) -> nn.Sequential:
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def schedule(name: str, inferred: bool) -> Train:
    """`torch.distributed.pipelining`. `inferred`: the stage finds the shapes by a forward and backward of its own."""

    def train(rank: int, config: Path | None, probe: Probe | None) -> Outcome:
        from torch.distributed import pipelining

        module = layer(rank)
        example = None if inferred else torch.zeros(ROWS, WIDTH, requires_grad=True)
        stage = pipelining.PipelineStage(module, rank, 2, torch.device("cpu"), input_args=example, output_args=example)
        loss_fn = nn.MSELoss()
        run = getattr(pipelining, name)(stage, MICRO_STEPS, loss_fn=loss_fn)
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
        if probe is not None:
            probe.watch(module)
        monitor = None
        if config is not None:
            monitor = TrainerMon(str(config), params_have_main_grad=False)
            monitor.set_monitor(module, MICRO_STEPS, optimizer)
        kept: list[float] = []
        for step in range(STEPS):
            inputs, targets = examples(step)
            losses: list[torch.Tensor] = []
            if rank == 0:
                run.step(inputs)
            else:
                run.step(target=targets, losses=losses)
            optimizer.step()
            optimizer.zero_grad()
            # The first stage sees no loss; its weights say the same.
            kept += [loss.item() for loss in losses] or [float(step)]
        if monitor is not None:
            monitor.close()
        return outcome(kept, module)

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


WAYS: dict[str, tuple[Train, Callable[[int], tuple[str, str]]]] = {
    "pipelining, GPipe": (schedule("ScheduleGPipe", False), lambda rank: ("2.weight", "1")),
    "pipelining, 1F1B": (schedule("Schedule1F1B", False), lambda rank: ("2.weight", "1")),
    "pipelining, 1F1B, shapes inferred": (schedule("Schedule1F1B", True), lambda rank: ("2.weight", "1")),
    "DeepSpeed PipelineEngine": (deepspeed_engine, lambda rank: (f"{rank}.2.weight", f"{rank}.1")),
}
"""Name to the training and, by rank, parameter and module to watch."""


def run(rank: int, folder: str, way: str) -> None:
    """Both trainings on one rank, and its verdict in a file."""
    torch.set_num_threads(1)
    os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    own = Path(folder) / str(rank)
    own.mkdir()
    os.environ["MONITOR_OUTPUT_DIR"] = str(own / "out")
    config = own / "config.json"
    config.write_text(json.dumps(CONFIG))
    store = distributed.FileStore(f"{folder}/store", 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    train, watched = WAYS[way]
    with Probe(*watched(rank)) as probe:
        plain = train(rank, None, probe)
    # The forward that only finds out the shapes is none of the training.
    probe.outputs = [means[-MICRO_STEPS:] for means in probe.outputs]
    distributed.barrier()
    monitored = train(rank, config, None)
    distributed.barrier()
    found = judge(own / "out", probe, plain, monitored, rank=rank)
    (own / "verdict.json").write_text(json.dumps(attrs.asdict(found)))
    distributed.destroy_process_group()
