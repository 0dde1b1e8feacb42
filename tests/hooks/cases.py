"""Small models of many kinds, and one step of training for each."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attrs import frozen
from torch import nn

VOCABULARY = 37
LENGTH = 6
TEXT = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


@frozen(kw_only=True)
class Case:
    """A model, and what is done with it."""

    build: Callable[[], nn.Module]
    loss: Callable[[nn.Module], torch.Tensor]
    """The loss of a fresh random batch."""
    optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW
    in_place: bool = False
    """Whether modules change their inputs in place."""
    unreadable: tuple[str, ...] = ()
    """Activations whose gradient autograd never computes: views that are changed in place."""


def tokens(count: int = 2, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (count, length))


def language_loss(model: nn.Module) -> torch.Tensor:
    batch = tokens()
    return model(input_ids=batch, labels=batch).loss


def gpt2() -> nn.Module:
    pytest.importorskip("transformers")
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(**TEXT, n_positions=16, n_embd=16, n_layer=2, n_head=2))


def _checkpointed(reentrant: bool) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = gpt2()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        return model

    return build


def llama() -> nn.Module:
    pytest.importorskip("transformers")
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**TEXT, **sizes, num_key_value_heads=1, max_position_embeddings=16))


def mixtral() -> nn.Module:
    pytest.importorskip("transformers")
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    experts = {"num_local_experts": 8, "num_experts_per_tok": 1, "output_router_logits": True}
    config = MixtralConfig(**TEXT, **sizes, **experts, num_key_value_heads=1, max_position_embeddings=16)
    return MixtralForCausalLM(config)


def t5() -> nn.Module:
    pytest.importorskip("transformers")
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(vocab_size=VOCABULARY, **sizes, decoder_start_token_id=0))


def bert() -> nn.Module:
    pytest.importorskip("transformers")
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return BertForSequenceClassification(BertConfig(vocab_size=VOCABULARY, **sizes, max_position_embeddings=16))


def vit() -> nn.Module:
    pytest.importorskip("transformers")
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return ViTForImageClassification(ViTConfig(**sizes, image_size=8, patch_size=4))


class Sequence(nn.Module):
    """Embedding, LSTM, head."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, 8)
        self.rnn = nn.LSTM(8, 6, batch_first=True, num_layers=2, dropout=0.1)
        self.head = nn.Linear(6, 3)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.emb(batch))[0])


class Encoder(nn.Module):
    """torch's own transformer, with a causal mask, which holds -inf, and positions from a module of buffers only."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = Positions()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(self.positions(x), mask=self.mask, is_causal=True)


class Positions(nn.Module):
    """No parameter at all."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.linspace(-1, 1, LENGTH * 8).reshape(LENGTH, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        Residual(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1, inplace=True),
        nn.Linear(4, 2),
    )


class Residual(nn.Module):
    """Adds to its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.norm(self.conv(x))
        out += x
        return self.relu(out)


class Tied(nn.Module):
    """The head's weight is the embedding's; one projection is used twice in a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, 8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, VOCABULARY, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        x = self.emb(batch)
        x = x + self.mix(torch.tanh(self.mix(x)))
        return self.head(x)


class Experts(nn.Module):
    """A mixture whose experts are modules: one that gets no token is not called, and has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 6, bias=False)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.router(x).softmax(-1)
        best = weights.argmax(-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            chosen = (best == index).nonzero().squeeze(-1)
            if len(chosen):
                out = out.index_add(0, chosen, expert(x[chosen]) * weights[chosen, index, None])
        return out


class Replicated(nn.Module):
    """Does what ``nn.DataParallel`` does with several GPUs: replicas of the module run in threads, their outputs are
    put together. The name is the wrapper's, so that it counts as one."""

    def __init__(self, module: nn.Module, replicas: int = 2) -> None:
        super().__init__()
        self.module = module
        self.replicas = replicas

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: list[torch.Tensor | None] = [None] * self.replicas
        # Threads in turn: the sums of their gradients must come out the same every time.
        for index, part in enumerate(x.chunk(self.replicas)):
            thread = threading.Thread(target=self._run, args=(_replica(self.module), part, outputs, index))
            thread.start()
            thread.join()
        return torch.cat([output for output in outputs if output is not None])

    def _run(self, replica: nn.Module, part: torch.Tensor, outputs: list[Any], index: int) -> None:
        outputs[index] = replica(part)


Replicated.__name__ = "DataParallel"


def _replica(module: nn.Module) -> nn.Module:
    replica = module._replicate_for_data_parallel()
    for name, child in module.named_children():
        setattr(replica, name, _replica(child))
    for name, parameter in module.named_parameters(recurse=False):
        # As torch does: the replica's weights are no parameters but results.
        setattr(replica, name, parameter.view_as(parameter))
    return replica


def lora() -> nn.Module:
    pytest.importorskip("peft")
    from peft import LoraConfig, get_peft_model

    return get_peft_model(gpt2(), LoraConfig(r=2, target_modules=["c_attn"], lora_dropout=0.1, fan_in_fan_out=True))


class FrozenParts(nn.Module):
    """A frozen tower that runs without gradients, frozen statistics in evaluation mode, and a parameter that no loss
    reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(4, 8), nn.GELU()).requires_grad_(False)
        self.norm = nn.BatchNorm1d(8)
        self.fc = nn.Linear(8, 2)
        self.unused = nn.Linear(2, 2)

    def train(self, mode: bool = True) -> FrozenParts:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = self.tower(x)
        return self.fc(self.norm(x))


def squares(shape: tuple[int, ...]) -> Callable[[nn.Module], torch.Tensor]:
    return lambda model: model(torch.randn(shape)).pow(2).mean()


def text_squares(model: nn.Module) -> torch.Tensor:
    return model(tokens()).pow(2).mean()


def labelled(model: nn.Module) -> torch.Tensor:
    return model(input_ids=tokens(), labels=torch.randint(0, 2, (2,))).loss


def pictures(model: nn.Module) -> torch.Tensor:
    return model(pixel_values=torch.randn(2, 3, 8, 8), labels=torch.randint(0, 2, (2,))).loss


CASES = {
    "gpt2": Case(build=gpt2, loss=language_loss),
    "gpt2 checkpointed": Case(build=_checkpointed(False), loss=language_loss),
    "gpt2 checkpointed, reentrant": Case(build=_checkpointed(True), loss=language_loss),
    "llama": Case(build=llama, loss=language_loss),
    "mixtral": Case(build=mixtral, loss=language_loss),
    "t5": Case(build=t5, loss=language_loss),
    "bert": Case(build=bert, loss=labelled),
    "vit": Case(build=vit, loss=pictures),
    "lstm": Case(build=Sequence, loss=text_squares),
    "transformer encoder, buffers": Case(build=Encoder, loss=squares((2, LENGTH, 8))),
    "convolutions, in place": Case(
        build=convolutions, loss=squares((4, 3, 6, 6)), in_place=True, unreadable=("5.output", "6.input")
    ),
    "tied embeddings": Case(build=Tied, loss=text_squares),
    "experts without tokens": Case(build=Experts, loss=squares((3, 8))),
    "data-parallel replicas": Case(
        build=lambda: Replicated(nn.Sequential(nn.Linear(4, 8), nn.Tanh())), loss=squares((4, 4))
    ),
    "lora": Case(build=lora, loss=language_loss),
    "frozen parts": Case(build=FrozenParts, loss=squares((5, 4))),
    "momentum": Case(
        build=lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)),
        loss=squares((5, 4)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    ),
}


@frozen(kw_only=True)
class Outcome:
    """What a training left."""

    losses: list[float]
    state: dict[str, bytes]
    random: bytes
    """State of the random number generator at the end."""


def train(
    case: Case,
    *,
    steps: int = 2,
    micro_steps: int = 2,
    attach: Callable[[nn.Module, torch.optim.Optimizer], Any] | None = None,
) -> Outcome:
    """Train from fixed seeds. ``attach`` is called with model and optimizer before the first step; what it returns is
    closed after the last."""
    torch.manual_seed(0)
    model = case.build().train()
    optimizer = case.optimizer(model.parameters())
    monitor = attach(model, optimizer) if attach is not None else None
    torch.manual_seed(1)
    losses = []
    for _ in range(steps):
        for _ in range(micro_steps):
            loss = case.loss(model) / micro_steps
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    if monitor is not None:
        monitor.close()
    state = {name: copy.deepcopy(value).numpy().tobytes() for name, value in model.state_dict().items()}
    return Outcome(losses=losses, state=state, random=torch.get_rng_state().numpy().tobytes())


def cross_entropy(logits: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), batch.flatten())
