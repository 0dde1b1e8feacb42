"""`attention_hook` of Hugging Face's attention modules, which are called with hidden states."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn

from msmon_hooks import Feature
from msmon_stats import features

from .recorder import Monitored

transformers = pytest.importorskip("transformers", minversion="5.0")

LLAMA = {
    "vocab_size": 16,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
}


def llama(implementation: str) -> nn.Module:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, attn_implementation=implementation))


def train(model, modules: tuple[str, ...], steps=2):
    """Losses, and what monitored the training."""
    compute = partial(features.attention_features, layout="s,b,h,d")
    wanted = {"attention_hook": Feature(modules=modules, compute=compute)}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    with Monitored(model, optimizer, l2_features=wanted) as monitored:
        for step in range(steps):
            torch.manual_seed(step)
            tokens = torch.randint(0, 16, (2, 6))
            with torch.no_grad():
                model(tokens)
            loss = model(tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        missing = monitored.missing()
    return losses, monitored.recorder, missing


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_attention_of_transformers(implementation):
    """Entropy and largest weight are those of the weights that the model itself returns."""
    model = llama(implementation)
    unmonitored = copy.deepcopy(model)
    eager = llama("eager")
    weights = eager(torch.randint(0, 16, (2, 6), generator=torch.manual_seed(0)), output_attentions=True).attentions
    names = ("model.layers.0.self_attn", "model.layers.1.self_attn")
    losses, recorder, missing = train(model, names)
    assert missing == {}
    assert recorder.names("attention_hook", step=1, micro_step=0) == [f"{name}.attention" for name in names]
    assert not recorder.doubled()
    found = [values for values in recorder.values if values][:2]
    for layer, numbers in enumerate(found):
        p = weights[layer][0, 0].double()
        entropy = -(p * p.clamp_min(1e-30).log()).sum(-1).mean().item()
        assert numbers == pytest.approx([entropy, p.amax(-1).mean().item()], rel=1e-4)
    assert train(unmonitored, ("nothing",))[0] == losses


def test_a_module_that_will_not_do_is_told_of_those_that_will():
    model = llama("sdpa")
    _, recorder, missing = train(model, ("model.layers.0", "model.layers.0.self_attn"))
    ((name, reason),) = missing.items()
    assert name == ("attention_hook", "model.layers.0.attention")
    assert reason.endswith("these will do: model.layers.0.self_attn, model.layers.1.self_attn")
    assert ("attention_hook", "model.layers.0.self_attn.attention", 1, 0) in recorder.rows


def test_the_functions_are_themselves_again_afterwards():
    function = transformers.integrations.sdpa_attention.sdpa_attention_forward
    code = function.__code__
    train(llama("sdpa"), ("model.layers.0.self_attn",))
    assert function.__code__ is code
