"""The engines of the bench: how each is set up for one training."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from attrs import frozen
from torch import distributed, nn

from ..prove import Trained
from ..workload import Perceptron


@frozen(kw_only=True)
class Engine:
    """One way to train."""

    ranks: int
    pool: str
    """Engines with the same one share processes."""
    build: Callable[..., Trained]
    data_group: Callable[[], Any] = lambda: distributed.group.WORLD
    clips: bool = True
    """Whether a training may clip, with which its healthy runs are drawn."""
    accumulates: bool = True
    """Likewise micro-steps."""


def _ddp(*, grad_acc_steps: int = 1, clip: float = 0.0, buffers: bool = False, **unused: Any) -> Trained:
    from .. import ddp

    # Buffers are left alone, as where each rank has its own.
    arguments = {"broadcast_buffers": False} if buffers else {}
    return _clipping(ddp.build(grad_acc_steps=grad_acc_steps, **arguments), clip)


def _by_hand(**unused: Any) -> Trained:
    from .. import ddp

    trained = ddp.build_by_hand()
    trained.groups["dp_group"] = distributed.group.WORLD
    return trained


def _fsdp2(**mesh: Any) -> Callable[..., Trained]:
    def build(*, grad_acc_steps: int = 1, clip: float = 0.0, **unused: Any) -> Trained:
        from .. import fsdp2

        return _clipping(fsdp2.build(grad_acc_steps=grad_acc_steps, **mesh), clip)

    return build


def _zero(stage: int) -> Callable[..., Trained]:
    def build(*, grad_acc_steps: int = 1, clip: float = 0.0, **unused: Any) -> Trained:
        from .. import deepspeed_zero

        return deepspeed_zero.build(stage=stage, grad_acc_steps=grad_acc_steps, gradient_clipping=clip)

    return build


def _tensor_parallel(*, clip: float = 0.0, **unused: Any) -> Trained:
    from .. import tensor_parallel

    return tensor_parallel.build(sequence=True)


def _norm(cls: type, config: Any, hidden_size: int, eps: float = 1e-5, **unused: Any) -> nn.Module:
    """A layer norm as that of Apex, which does not install here: it says that its gradients are parts of a sum."""
    made = nn.LayerNorm(hidden_size, eps)
    for parameter in made.parameters():
        parameter.sequence_parallel = config.sequence_parallel
    return made


_INITIAL: dict[str, dict[str, torch.Tensor]] = {}


def _megatron(model: dict[str, Any] | None = None, **sizes: Any) -> Callable[..., Trained]:
    def build(*, seed: int, grad_acc_steps: int = 1, **unused: Any) -> Trained:
        from .. import megatron_core, megatron_gpt  # first: it answers for CUDA
        from megatron.core.transformer import torch_norm  # isort: skip

        # Megatron splits whatever it is told to; a model of one process has to be made where nothing is split.
        whole = {name: value for name, value in (model or {}).items() if name != "sequence_parallel"}
        if repr(whole) not in _INITIAL:
            megatron_core.parallel()
            made = megatron_gpt.gpt(megatron_gpt.configuration(**whole))
            _INITIAL[repr(whole)] = {name: one.detach().clone() for name, one in made.named_parameters()}
        noise = torch.Generator().manual_seed(seed)
        initial = {
            name: one + 0.01 * torch.randn(one.shape, generator=noise) for name, one in _INITIAL[repr(whole)].items()
        }
        tied = "pipeline" in sizes
        if tied:
            initial["output_layer.weight"] = initial["embedding.word_embeddings.weight"]
        stages = functools.partial(megatron_gpt.gpt, share_embeddings_and_output_weights=tied)
        with (
            mock.patch.object(torch_norm.WrappedTorchNorm, "__new__", _norm),
            mock.patch.object(megatron_gpt, "gpt", stages),
        ):
            trained = megatron_gpt.build(initial=initial, grad_acc_steps=grad_acc_steps, **sizes, **(model or {}))
        # With the group only the first rank would write what the others have, too.
        trained.groups.clear()
        return trained

    return build


def _megatron_data_group() -> Any:
    from megatron.core import parallel_state

    return parallel_state.get_data_parallel_group()


_EXPERTS = {"num_moe_experts": 2, "moe_router_topk": 1, "moe_router_pre_softmax": True, "add_bias_linear": False}


def _of_megatron(ranks: int, model: dict[str, Any] | None = None, **sizes: Any) -> Engine:
    build = _megatron(model, **sizes)
    return Engine(ranks=ranks, pool="megatron", build=build, data_group=_megatron_data_group, clips=False)


ENGINES: dict[str, Engine] = {
    "ddp": Engine(ranks=2, pool="torch", build=_ddp),
    "ddp 4": Engine(ranks=4, pool="torch", build=_ddp),
    "by hand": Engine(ranks=2, pool="torch", build=_by_hand, clips=False, accumulates=False),
    "fsdp2": Engine(ranks=2, pool="torch", build=_fsdp2()),
    "fsdp2 2x2": Engine(ranks=4, pool="torch", build=_fsdp2(mesh=(2, 2), names=("replicate", "shard"))),
    "zero 1": Engine(ranks=2, pool="torch", build=_zero(1)),
    "zero 2": Engine(ranks=2, pool="torch", build=_zero(2)),
    "zero 3": Engine(ranks=2, pool="torch", build=_zero(3)),
    "dtensor tp": Engine(ranks=2, pool="torch", build=_tensor_parallel, clips=False, accumulates=False),
    "megatron tp": _of_megatron(2, tensor=2),
    "megatron tp sp": _of_megatron(2, {"sequence_parallel": True}, tensor=2),
    "megatron pp": _of_megatron(2, {}, pipeline=2),
    "megatron ep": _of_megatron(2, _EXPERTS, expert=2),
    "megatron tp dp": _of_megatron(4, tensor=2),
}


def healthy_settings(engine: Engine, draw: random.Random) -> dict[str, Any]:
    """How a training of the engine is set up: accumulation and clipping as they are drawn."""
    steps = draw.choice([1, 1, 2, 3]) if engine.accumulates else 1
    return {"grad_acc_steps": steps, "clip": draw.choice([0.0, 0.05]) if engine.clips else 0.0}


def make_model(seed: int, *, frozen: str = "", buffers: bool = False) -> nn.Module:
    """The model of engines that do not bring one."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Perceptron()
    if frozen:
        model.get_parameter(frozen).requires_grad_(False)
    if buffers:
        model.register_buffer("scale", torch.ones(33))
        model.norm.register_forward_hook(lambda module, args, output: output * model.scale)
    return model


def _clipping(trained: Trained, clip: float) -> Trained:
    if clip:
        parameters = list(trained.model.parameters())

        def before(*unused: Any) -> None:
            nn.utils.clip_grad_norm_(parameters, clip)

        trained.optimizer.register_step_pre_hook(before)
    return trained
