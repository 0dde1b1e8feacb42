"""Prints the entropy that is recorded of Megatron's router, and that of the softmax of its logits.

A process of its own: Megatron is told that the CPU is CUDA.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch

from msmon_hooks import Feature
from msmon_stats import features
from tests.distributed.megatron_on_cpu import answer_with_cpu
from tests.hooks.recorder import Monitored


def main() -> None:
    answer_with_cpu()
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.moe.router import TopKRouter

    torch.manual_seed(0)
    config = TransformerConfig(
        num_layers=1,
        hidden_size=8,
        num_attention_heads=2,
        num_moe_experts=4,
        moe_router_topk=2,
        moe_router_load_balancing_type="none",
    )
    router = TopKRouter(config, SimpleNamespace(tp=None, cp=None, tp_cp=None, tp_dp_cp=None))
    with torch.no_grad():
        router.weight.mul_(100.0)
    model = torch.nn.Sequential(router)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    wanted = {"moe_router_logit_hook": Feature(modules=("0",), compute=features.router_entropy)}
    x = torch.randn(5, 2, 8)
    original = TopKRouter.gating.__code__
    with Monitored(model, optimizer, l2_features=wanted) as monitored:
        probabilities, _ = model(x)
        probabilities.pow(2).sum().backward()
        optimizer.step()
        missing = monitored.missing()
    logits = router.gating(x).detach()
    p = logits.softmax(-1)
    entropy = -(p * p.log()).sum(-1).mean()
    (found,) = [values for values in monitored.recorder.values if values]
    print(found[0], entropy.item(), missing, TopKRouter.gating.__code__ is original)


if __name__ == "__main__":
    main()
