"""`moe_router_logit_hook`: the entropy of the softmax of the logits, whatever a router returns."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from msmon_hooks import Feature
from msmon_stats import features

from .recorder import Monitored

transformers = pytest.importorskip("transformers", minversion="5.0")

SIZES = {
    "vocab_size": 16,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
}
MODELS = {
    "Mixtral": {"num_local_experts": 6, "num_experts_per_tok": 2},
    "Qwen2Moe": {"num_experts": 6, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8},
    "Qwen3Moe": {"num_experts": 6, "moe_intermediate_size": 8, "num_experts_per_tok": 2},
    "DeepseekV3": {
        "n_routed_experts": 6,
        "moe_intermediate_size": 8,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 2,
        "first_k_dense_replace": 0,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 4,
        "kv_lora_rank": 8,
        "q_lora_rank": 8,
    },
    "Olmoe": {"num_experts": 6, "num_experts_per_tok": 2},
    "GptOss": {"num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 8},
}


def entropy_of(logits) -> float:
    p = logits.double().softmax(-1)
    return -(p * p.log()).sum(-1).mean().item()


def recorded(model, modules, forward) -> dict[str, float]:
    """What is recorded of each of the modules."""
    wanted = {"moe_router_logit_hook": Feature(modules=modules, compute=features.router_entropy)}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitored(model, optimizer, l2_features=wanted) as monitored:
        forward()
        assert monitored.missing() == {}
        names = monitored.recorder.names("moe_router_logit_hook", micro_step=0)
    return dict(zip(names, [values[0] for values in monitored.recorder.values if values], strict=True))


@pytest.mark.parametrize("of", ["router", "block"])
@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers(name, of):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, **MODELS[name])
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    block = "mlp" if hasattr(model.model.layers[0], "mlp") else "block_sparse_moe"
    router = "router" if hasattr(getattr(model.model.layers[0], block), "router") else "gate"
    expected, modules = {}, []
    for layer in (0, 1):
        module = getattr(getattr(model.model.layers[layer], block), router)
        nn.init.normal_(module.weight)
        modules.append(f"model.layers.{layer}.{block}" + (f".{router}" if of == "router" else ""))

        def look(module, args, row=f"{modules[-1]}.moe_router"):
            hidden = args[0].detach().reshape(-1, 16)
            expected[row] = entropy_of(functional.linear(hidden, module.weight, getattr(module, "bias", None)))

        module.register_forward_pre_hook(look)
    tokens = torch.randint(0, 16, (2, 5))
    found = recorded(model, tuple(modules), lambda: model(tokens, use_cache=False))
    assert found == pytest.approx(expected, rel=1e-4)
    assert min(found.values()) > 0.1


class DeepSeekGate(nn.Module):
    """As DeepSeek publishes it: indices, weights, a loss."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 8))

    def forward(self, hidden):
        scores = functional.linear(hidden.reshape(-1, 8).float(), self.weight.float()).softmax(-1)
        weights, indices = scores.topk(2, dim=-1, sorted=False)
        return indices, weights, None

    def logits(self, x):
        return x.reshape(-1, 8) @ self.weight.T


class TwoOfTheSameShape(nn.Linear):
    """Scores in front of the logits, as in Llama 4; they look the same."""

    def __init__(self):
        super().__init__(8, 6)

    def forward(self, x):
        logits = super().forward(x)
        return logits.sigmoid(), logits

    def logits(self, x):
        return super().forward(x)


class ScoresByALayer(nn.Module):
    """As in Switch Transformers, JetMoe, DeepSpeed, Tutel."""

    def __init__(self):
        super().__init__()
        self.wg = nn.Linear(8, 6)

    def forward(self, x):
        logits = self.wg(x)
        return logits.argmax(-1), logits.softmax(-1), logits * 1.0

    def logits(self, x):
        return self.wg(x)


class Probabilities(nn.Module):
    """Returns what was the softmax of logits that nobody sees."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 6)

    def forward(self, x):
        return self.logits(x).softmax(-1)

    def logits(self, x):
        return self.second(self.first(x).tanh())


@pytest.mark.parametrize("kind", [DeepSeekGate, TwoOfTheSameShape, ScoresByALayer, Probabilities])
def test_routers(kind):
    torch.manual_seed(0)
    model = nn.Sequential(kind())
    x = 3 * torch.randn(2, 7, 8)
    expected = entropy_of(model[0].logits(x).detach())
    assert recorded(model, ("0",), lambda: model(x)) == {"0.moe_router": pytest.approx(expected, rel=1e-4)}


def test_a_module_without_logits():
    model = nn.Sequential(nn.Embedding(4, 4), nn.Identity())
    model[1].forward = lambda x: (x.argmax(-1), None)
    wanted = {"moe_router_logit_hook": Feature(modules=("1",), compute=features.router_entropy)}
    with Monitored(model, torch.optim.SGD(model.parameters(), lr=0.1), l2_features=wanted) as monitored:
        model(torch.tensor([1, 2]))
        assert set(monitored.missing().values()) == {"no tensor of floating point among its outputs"}


@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="megatron-core is not installed")
def test_megatron():
    """It returns probabilities of the chosen experts; the logits are seen where they are computed."""
    command = [sys.executable, "-m", "tests.hooks.megatron_router"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found, expected, *rest = output.splitlines()[-1].split()
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
    assert rest == ["{}", "True"]
