"""What each rank does: one training with a monitor, and a fault in it."""

from __future__ import annotations

import gc
import random
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import distributed

from ..prove import make_monitor
from . import engines, kinds
from .scene import Place, Scene

STEPS = 10
FIRST, LAST = 3, 6
"""Between which steps a fault begins."""

CONFIG: dict[str, Any] = {
    "format": ["parquet"],
    "ops": ["norm", "min", "max", "mean", "shape", "fingerprint"],
}


def train(*, engine: str, kind: str, seed: int, output: str) -> dict[str, Any] | None:
    """Train once; what a verification should say of it, or None of a healthy training.

    Args:
        engine: a name of `engines.ENGINES`.
        kind: a name of `kinds.KINDS`; "": a healthy one.
        seed: of everything that is drawn.
        output: the folder for the monitors' files.
    """
    setting = engines.ENGINES[engine]
    fault_type = kinds.KINDS[kind] if kind else kinds.Fault
    draw = random.Random(f"{engine} {kind} {seed}")
    settings = dict(fault_type.settings) if kind else engines.healthy_settings(setting, draw)
    with pytest.MonkeyPatch.context() as patch:
        model = {name: settings[name] for name in ("frozen", "buffers") if name in settings}
        reader = _Reader(seed)
        _replace(patch, engine, reader, lambda: engines.make_model(seed, **model))
        trained = setting.build(seed=seed, **settings)
        scene = Scene(trained=trained, data_group=setting.data_group())
        fault = fault_type(scene, _place(scene, fault_type, draw))
        reader.fault = fault
        # Before the monitor, which so sees what has become of the gradients and weights.
        scene.at_update(fault.at_update)
        scene.after_update(fault.after_update)
        fields = {**CONFIG, "cc_distribution": {"enable": True, "cc_pre_hook": True}} if engine == "by hand" else CONFIG
        monitor = make_monitor(trained, Path(output), **fields)
        if fault.needs_own:
            scene.keep_own()
        for number in range(STEPS):
            fault.number = number
            fault.before_step()
            with fault.during():
                trained.step(number)
        truth = {**attrs.asdict(fault.truth()), "recorded": fault.recorded()} if kind else None
        monitor.close()
    distributed.barrier()
    scene.registrations.close()
    del trained, scene, fault, monitor
    gc.collect()
    return truth


class _Reader:
    """Reads batches where the engines' own do, of another data set for each seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.fault: kinds.Fault | None = None

    def instead_of(self, original: Any) -> Any:
        def batch(step: int, rank: int, micro_step: int = 0) -> torch.Tensor:
            if self.fault is not None:
                if micro_step:
                    self.fault.between()
                step, rank, micro_step = self.fault.data(step, rank, micro_step)
            return original(step + 1000 * self._seed, rank, micro_step)

        return batch


def _replace(patch: pytest.MonkeyPatch, engine: str, reader: _Reader, make_model: Any) -> None:
    if engine.startswith("megatron"):
        from .. import megatron_gpt

        patch.setattr(megatron_gpt, "tokens", reader.instead_of(megatron_gpt.tokens))
        return
    from .. import ddp, fsdp2, prove, tensor_parallel

    modules: list[Any] = [ddp, fsdp2, prove, tensor_parallel]
    if engine.startswith("zero"):
        from .. import deepspeed_zero

        modules.append(deepspeed_zero)
    for module in modules:
        for name, replacement in (("batch", reader.instead_of), ("make_model", lambda original: make_model)):
            if hasattr(module, name):
                patch.setattr(module, name, replacement(getattr(module, name)))


def _place(scene: Scene, kind: type[kinds.Fault], draw: random.Random) -> Place:
    """Drawn alike on all ranks, of the tensors that the drawn rank holds."""
    rank = draw.randrange(scene.world)
    own = [name for name in scene.weights if (value := scene.value(name)) is not None and value.numel()]
    names: list[Any] = [None] * scene.world
    distributed.all_gather_object(names, own)
    tensor = draw.choice([name for name in names[rank] if kind.sort in name] or names[rank])
    layer = tensor.rpartition(".")[0]
    return Place(
        step=draw.randint(FIRST, LAST) if kind.first_step is None else kind.first_step,
        rank=rank,
        tensor=tensor,
        layer=tuple(name for name in names[rank] if name.rpartition(".")[0] == layer),
        factor=draw.random(),
    )
