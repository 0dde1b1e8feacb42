"""Which ranks share a parameter under Megatron, and what its gradient is the sum of."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from torch import nn

from msmon_hooks.layout import Layout
from msmon_hooks.torch.grads.megatron_parallel import is_expert
from msmon_hooks.torch.process_groups import group_ranks

EMBEDDING = "embedding"


def layout_of(name: str, parameter: nn.Parameter, bucket: Any, config: Any) -> Layout | None:
    """The layout of a parameter.

    Args:
        name: of the parameter.
        parameter: a parameter of the model.
        bucket: Megatron's group of buckets, or bucket, whose reduction its gradient is in.
        config: the model's; None: not known.
    """
    # With a distributed optimizer the group has another name.
    groups = (
        getattr(bucket, name, None) for name in ("data_parallel_group", "intra_distributed_optimizer_instance_group")
    )
    group = next((one for one in groups if one is not None), None)
    if group is None:
        return None
    data = group_ranks(group)
    summed = {"expert_data" if is_expert(parameter) else "data": data}
    equal: dict[str, Sequence[int]] = dict(summed)
    tensor = _ranks("tensor_model_parallel")
    split = getattr(parameter, "tensor_model_parallel", False) or is_expert(parameter)
    known = not hasattr(bucket, "inter_distributed_optimizer_instance_group")
    if tensor and not split:
        equal["tensor"] = tensor
        # What `finalize_model_grads` does to them after the reduction over the data-parallel group.
        if getattr(parameter, "average_gradients_across_tp_domain", False):
            known = False
        elif _summed_over_tensor(name, parameter, config):
            summed["tensor"] = tensor
    tied = getattr(parameter, "shared_embedding", False)
    stages = _ranks("embedding") if tied else []
    if stages:
        equal[EMBEDDING] = summed[EMBEDDING] = stages
    return Layout(
        equal_over=equal,
        summed_over=summed if known else None,
        divided_by=_divisor(bucket, len(data), config),
        numel=parameter.numel(),
        tied=EMBEDDING if stages else "",
    )


def _summed_over_tensor(name: str, parameter: nn.Parameter, config: Any) -> bool:
    if getattr(config, "sequence_parallel", False) and getattr(parameter, "sequence_parallel", False):
        return True
    return bool(getattr(config, "qk_layernorm", False)) and ("q_layernorm" in name or "k_layernorm" in name)


def _divisor(bucket: Any, size: int, config: Any) -> float | None:
    """By what the sum is divided; None where that is the number of tokens, which differs from step to step."""
    inside = getattr(bucket, "buckets", (bucket,))
    scaling = getattr(inside[0], "gradient_scaling_factor", None)
    if not scaling or getattr(config, "calculate_per_token_loss", False):
        return None
    averages = getattr(getattr(bucket, "ddp_config", None), "average_in_collective", False)
    return round((size if averages else 1) / scaling, 9)


def _ranks(group: str) -> list[int]:
    """The ranks of one of Megatron's groups, where there are several; this process may be in none."""
    state: Any = sys.modules.get("megatron.core.parallel_state")
    get = getattr(state, f"get_{group}_group", None)
    try:
        found = get() if get is not None else None
        ranks = group_ranks(found[0] if isinstance(found, list) else found) if found is not None else []
    except (AssertionError, RuntimeError, ValueError):
        # Not initialised, or this process is in no such group.
        return []
    return ranks if len(ranks) > 1 else []
