"""Megatron-core's GPT on each rank: tensor parallel, pipelines, virtual stages, experts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from attrs import evolve
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import transformer_block
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn

from .megatron_core import CLIP, LEARNING_RATE, WEIGHT_DECAY, make_optimizer, parallel, watched
from .prove import Trained, make_monitor, prove

LAYERS = 4
VOCABULARY = 64
LENGTH = 8
ROWS = 2


def tokens(step: int, rank: int, micro_step: int) -> torch.Tensor:
    """Token ids ``[ROWS, LENGTH + 1]`` of one data-parallel rank in one micro-step."""
    generator = torch.Generator().manual_seed(7 + step * 10_000 + rank * 100 + micro_step)
    return torch.randint(0, VOCABULARY, (ROWS, LENGTH + 1), generator=generator)


def configuration(**further: Any) -> TransformerConfig:
    """Of the model, whatever it is split over."""
    return TransformerConfig(
        num_layers=LAYERS,
        hidden_size=16,
        num_attention_heads=2,
        use_cpu_initialization=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        pipeline_dtype=torch.float32,
        gradient_accumulation_fusion=False,
        **further,
    )


class Norm(nn.LayerNorm):
    """What torch's own lacks for sequence parallelism: the mark by which Megatron finds what it has to reduce."""

    marked = True

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__(hidden_size, eps)
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel and self.marked


def gpt(config: TransformerConfig, **stage: Any) -> GPTModel:
    """The model, or the part of it that a pipeline stage has."""
    torch.manual_seed(0)
    spec = get_gpt_layer_local_spec(num_experts=config.num_moe_experts)
    if config.sequence_parallel:
        spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = transformer_block.LayerNormImpl = Norm
    return GPTModel(
        config=config, transformer_layer_spec=spec, vocab_size=VOCABULARY, max_sequence_length=LENGTH, **stage
    )


def losses(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The model's output for a batch: the losses of its tokens, or what goes to the next stage."""
    positions = torch.arange(LENGTH)[None].expand(ROWS, -1)
    mask = torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool), 1)
    return model(ids[:, :-1], positions, mask, labels=ids[:, 1:])


def whole_training(*, steps: int, grad_acc_steps: int, batches: int = 1, **further: Any) -> dict[str, Any]:
    """Train the unsplit model in this process alone.

    Args:
        steps: how many.
        grad_acc_steps: micro-steps per step.
        batches: how many data-parallel ranks' batches it is trained on.
        further: fields of the configuration.

    Returns:
        ``initial``: the weights; ``steps``: the tables of each step; ``unreduced``: the gradients of the first
        step after each micro-step, for each data-parallel rank.
    """
    parallel()
    model = gpt(configuration(**further))
    names = dict(model.named_parameters())
    initial = {name: parameter.detach().clone() for name, parameter in names.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    unreduced: dict[int, list[dict[str, torch.Tensor]]] = {}
    tables = []
    for step in range(steps):
        total = {name: torch.zeros_like(parameter) for name, parameter in names.items()}
        for rank in range(batches):
            optimizer.zero_grad()
            for micro_step in range(grad_acc_steps):
                (losses(model, tokens(step, rank, micro_step)).float().mean() / grad_acc_steps).backward()
                if step == 0:
                    unreduced.setdefault(rank, []).append(_gradients(names))
            for name, gradient in _gradients(names).items():
                total[name] += gradient / batches
        for name, parameter in names.items():
            parameter.grad = total[name]
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        table = {"grad_reduced": _gradients(names), "param_origin": _weights(names)}
        for moment in ("exp_avg", "exp_avg_sq"):
            table[moment] = {n: optimizer.state[p][moment].clone() for n, p in names.items() if optimizer.state[p]}
        optimizer.step()
        table["param_updated"] = _weights(names)
        tables.append(table)
    return {"initial": initial, "steps": tables, "unreduced": unreduced}


def _gradients(names: dict[str, nn.Parameter]) -> dict[str, torch.Tensor]:
    # An expert that no token was sent to has none.
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for name, p in names.items()}


def _weights(names: dict[str, nn.Parameter]) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in names.items()}


def build(
    *,
    initial: dict[str, torch.Tensor],
    tensor: int = 1,
    pipeline: int = 1,
    virtual: int | None = None,
    expert: int = 1,
    grad_acc_steps: int = 1,
    split: bool = False,
    overlap: bool = False,
    tied: bool = False,
    **further: Any,
) -> Trained:
    """One training of the split model.

    Args:
        initial: weights of the unsplit model.
        tensor, pipeline, virtual, expert: over how many ranks (chunks a rank, for ``virtual``) the model is split.
        grad_acc_steps: micro-steps per step.
        split: whether the optimizer is distributed.
        overlap: whether the reduction overlaps with the backward.
        tied: whether the last layer has the weight of the first.
        further: fields of the model's configuration.
    """
    parallel(
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        virtual_pipeline_model_parallel_size=virtual,
        expert_model_parallel_size=expert,
    )
    config = configuration(
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        virtual_pipeline_model_parallel_size=virtual,
        expert_model_parallel_size=expert,
        # With virtual stages two ranks send each other several tensors at once: not in one batch, where the order of
        # sending is not that of receiving.
        overlap_p2p_comm=virtual is not None,
        batch_p2p_comm=virtual is None,
        **further,
    )
    ddp_config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=split, overlap_grad_reduce=overlap, bucket_size=5000
    )
    chunks = []
    for stage in range(virtual or 1):
        place: dict[str, Any] = _stage(stage) if virtual else {}
        first = parallel_state.is_pipeline_first_stage(ignore_virtual=False, **place)
        last = parallel_state.is_pipeline_last_stage(ignore_virtual=False, **place)
        part = gpt(config, pre_process=first, post_process=last, share_embeddings_and_output_weights=tied, **place)
        load(part, initial)
        chunks.append(DistributedDataParallel(config=config, ddp_config=ddp_config, module=part))
    adam = make_optimizer(chunks, split=split)
    config.grad_scale_func = adam.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    if overlap:
        config.no_sync_func = [chunk.no_sync for chunk in chunks] if virtual else chunks[0].no_sync
    groups = {"tp_group": parallel_state.get_tensor_model_parallel_group()} if tensor > 1 else {}
    return Trained(
        model=chunks if virtual else chunks[0],
        optimizer=adam,
        step=_step(chunks, adam, grad_acc_steps),
        grad_acc_steps=grad_acc_steps,
        groups=groups,
        process_group=parallel_state.get_pipeline_model_parallel_group() if pipeline > 1 else None,
        watched=watched(chunks, adam),
    )


def _stage(stage: int) -> dict[str, int]:
    """How Megatron is told which of a rank's chunks is meant."""
    if "vp_stage" in inspect.signature(GPTModel.__init__).parameters:
        return {"vp_stage": stage}
    parallel_state.set_virtual_pipeline_model_parallel_rank(stage)
    return {}


def _step(chunks: list[Any], optimizer: Any, grad_acc_steps: int) -> Callable[[int], float]:
    run = get_forward_backward_func()
    rank = parallel_state.get_data_parallel_rank()

    def forward_step(batches: Iterator[torch.Tensor], model: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
        return losses(model, next(batches)), _loss

    def step(number: int) -> float:
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        batches = [iter([tokens(number, rank, micro) for micro in range(grad_acc_steps)]) for _ in chunks]
        found = run(
            forward_step_func=forward_step,
            data_iterator=batches if len(chunks) > 1 else batches[0],
            model=chunks if len(chunks) > 1 else chunks[0],
            num_microbatches=grad_acc_steps,
            seq_length=LENGTH,
            micro_batch_size=ROWS,
            forward_only=False,
        )
        optimizer.step()
        # Only the last stage of a pipeline has losses.
        return sum(one["loss"] for one in found) if found else float(number)

    return step


def _loss(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
    loss = output.float().mean()
    return loss, {"loss": loss.item()}


def global_names(chunk: Any) -> dict[str, str]:
    """Parameter names of a pipeline stage -> those of the unsplit model."""
    layers = chunk.decoder.layers
    numbers = {f"decoder.layers.{at}.": f"decoder.layers.{layer.layer_number - 1}." for at, layer in enumerate(layers)}
    found = {}
    for name, _ in chunk.named_parameters():
        local = next((prefix for prefix in numbers if name.startswith(prefix)), None)
        found[name] = name if local is None else numbers[local] + name[len(local) :]
    return _experts(found)


def _experts(names: dict[str, str]) -> dict[str, str]:
    """Experts are numbered from 0 on every expert-parallel rank."""
    rank, size = parallel_state.get_expert_model_parallel_rank(), parallel_state.get_expert_model_parallel_world_size()
    count = len({name.split("local_experts.")[1].split(".")[0] for name in names if "local_experts." in name})
    found = {}
    for name, whole in names.items():
        if "local_experts." in name and size > 1:
            before, _, behind = whole.partition("local_experts.")
            number, _, rest = behind.partition(".")
            whole = f"{before}local_experts.{int(number) + rank * count}.{rest}"
        found[name] = whole
    return found


def load(chunk: Any, initial: dict[str, torch.Tensor]) -> None:
    """Give a stage its part of the unsplit model's weights."""
    names = global_names(chunk)
    rank, size = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size()
    with torch.no_grad():
        for name, parameter in chunk.named_parameters():
            whole = initial[names[name]]
            if getattr(parameter, "tensor_model_parallel", False) and size > 1:
                whole = whole.chunk(size, parameter.partition_dim)[rank]
            parameter.copy_(whole)


def proof(
    *,
    output: str,
    steps: int,
    config: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    **variant: Any,
) -> dict[str, Any]:
    """The four trainings of `prove`, and the unsplit one."""
    ranks = torch.distributed.get_world_size() // variant.get("tensor", 1) // variant.get("pipeline", 1)
    whole = whole_training(steps=steps, grad_acc_steps=variant.get("grad_acc_steps", 1), batches=ranks, **(model or {}))
    names: list[dict[str, str]] = []

    def make() -> Trained:
        trained = build(initial=whole["initial"], **variant, **(model or {}))
        chunks = trained.model if isinstance(trained.model, list) else [trained.model]
        names[:] = [global_names(chunk.module) for chunk in chunks]
        return trained

    answer = prove(make, output=output, steps=steps, **(config or {}))
    as_arrays = [{kind: _arrays(table) for kind, table in tables.items()} for tables in whole["steps"]]
    unreduced = {rank: [_arrays(table) for table in tables] for rank, tables in whole["unreduced"].items()}
    return {**answer, "whole": as_arrays, "unreduced": unreduced, "names": names}


def _arrays(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def monitored(*, output: str, steps: int, marked: bool = True, parting: int | None = None, **variant: Any) -> None:
    """One monitored training in which every rank writes what it holds.

    Args:
        marked: whether Megatron is told of the gradients that it has to add up over the tensor-parallel group.
        parting: the step before which rank 0 gets another weight in its first layer.
    """
    Norm.marked = marked
    initial = whole_training(steps=0, grad_acc_steps=1)["initial"]
    if variant.get("tied"):
        initial["output_layer.weight"] = initial["embedding.word_embeddings.weight"]
    trained = evolve(build(initial=initial, **variant), groups={})
    Norm.marked = True
    monitor = make_monitor(trained, Path(output), format=["parquet"])
    for step in range(steps):
        if step == parting and torch.distributed.get_rank() == 0:
            trained.model.module.embedding.word_embeddings.weight.data[0, 0] += 1e-3
        trained.step(step)
    monitor.close()
    torch.distributed.barrier()
