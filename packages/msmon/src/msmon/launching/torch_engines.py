"""Engines that have their own optimizer around PyTorch's: which one belongs to a module that is called."""

from __future__ import annotations

import gc
import sys
from typing import Any

from torch import nn

from msmon.launching.found import Found


def engine_of(module: nn.Module) -> Found | None:
    """What trains by DeepSpeed or Megatron-core, if the module that is called does; imports neither."""
    return _deepspeed(module) or _megatron(module)


def _deepspeed(module: Any) -> Found | None:
    if "deepspeed" not in sys.modules:
        return None
    # A pipeline's engine calls its module itself.
    around = [module] if _is(module, "DeepSpeedEngine") else _objects("DeepSpeedEngine")
    engine = next((one for one in around if one is module or getattr(one, "module", None) is module), None)
    if engine is None or getattr(engine, "optimizer", None) is None:
        return None
    steps = engine.gradient_accumulation_steps
    return Found(
        models=[engine],
        optimizers=[engine.optimizer],
        engine="DeepSpeed",
        grad_acc_steps=int(steps() if callable(steps) else steps),
    )


def _megatron(module: Any) -> Found | None:
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not type(module).__module__.startswith("megatron."):
        return None
    chunks = [module]
    held = {id(parameter) for parameter in module.parameters()}
    optimizers = [one for one in _objects("MegatronOptimizer") if _chunks(one)]
    inside = {id(part) for one in optimizers for part in getattr(one, "chained_optimizers", ())}
    for optimizer in optimizers:
        chunks = _chunks(optimizer)
        if id(optimizer) not in inside and any(id(p) in held for chunk in chunks for p in chunk.parameters()):
            return Found(
                models=chunks,
                optimizers=[optimizer],
                engine="Megatron-core",
                grad_acc_steps=_microbatches(),
                process_group=state.get_pipeline_model_parallel_group(),
                groups={
                    "dp_group": state.get_data_parallel_group(),
                    "tp_group": state.get_tensor_model_parallel_group(),
                },
            )
    return None


def _chunks(optimizer: Any) -> list[Any]:
    own = list(getattr(optimizer, "model_chunks", None) or ())
    for inner in getattr(optimizer, "chained_optimizers", ()):
        own += [chunk for chunk in _chunks(inner) if all(chunk is not one for one in own)]
    return own


def _microbatches() -> int | None:
    calculator = sys.modules.get("megatron.core.num_microbatches_calculator")
    try:
        return None if calculator is None else int(calculator.get_num_microbatches())
    except Exception:  # no calculator was made: a loop of its own
        return None


def _is(value: object, name: str) -> bool:
    return any(cls.__name__ == name for cls in type(value).__mro__)


def _objects(name: str) -> list[Any]:
    return [one for one in gc.get_objects() if _is(one, name)]
