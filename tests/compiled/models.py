"""Small models of many kinds, each with a batch and a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

WORDS, LENGTH, WIDTH = 64, 16, 32


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, 2 * WIDTH), nn.ReLU(inplace=True)
        )
        self.norm, self.head = nn.LayerNorm(2 * WIDTH), nn.Linear(2 * WIDTH, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.net(x)))


class Attention(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.qkv, self.proj, self.drop = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, 4, width // 4).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.drop(self.proj(heads.transpose(1, 2).reshape(batch, length, width)))


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attn = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attention(dropout)
        self.up, self.act, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.down(self.act(self.up(self.norm2(x))))


class GPT(nn.Module):
    """The token embedding is the head's weight where `tied` says so."""

    def __init__(self, *, dropout: float = 0.0, checkpointed: bool = False, tied: bool = False) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.checkpointed = checkpointed
        if tied:
            self.head.weight = self.token.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(self.norm(x))


class LlamaLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, out, bias=False) for out in (32, 16, 16, 32))
        self.gate, self.up = (nn.Linear(WIDTH, 64, bias=False) for _ in range(2))
        self.act, self.down = nn.SiLU(), nn.Linear(64, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        h = self.norm1(x)
        q, k, v = (layer(h).view(batch, length, -1, 8).transpose(1, 2) for layer in (self.q, self.k, self.v))
        q, k = (part * cos + torch.cat((-part[..., 4:], part[..., :4]), -1) * sin for part in (q, k))
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        heads = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
        x = x + self.o(heads.transpose(1, 2).reshape(batch, length, width))
        h = self.norm2(x)
        return x + self.down(self.act(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(LlamaLayer() for _ in range(2))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        angles = torch.outer(torch.arange(float(LENGTH)), 1e4 ** (-torch.arange(4.0) / 4)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens)
        cos, sin = (table[: tokens.shape[1]].to(x.dtype) for table in (self.cos, self.sin))
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


class Encoder(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.token = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.token(tokens)))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.first = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.position = nn.Parameter(torch.randn(1, 17, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block(0.0) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(len(x), -1, -1), x), 1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.norm2(self.conv2(self.act(self.norm1(self.conv1(x))))) + x)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.act = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        self.blocks = nn.Sequential(Residual(8), Residual(8))
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(8, WORDS)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(self.blocks(self.act(self.norm(self.stem(images))))).flatten(1))


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.rnn = nn.Embedding(WORDS, WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.token(tokens))[0])


class Logits(nn.Module):
    """A model of transformers."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        import transformers

        config, cls = HUGGING_FACE[kind]
        made = getattr(transformers, config)(
            vocab_size=WORDS,
            hidden_size=WIDTH,
            n_embd=WIDTH,
            intermediate_size=64,
            num_hidden_layers=2,
            n_layer=2,
            num_attention_heads=4,
            n_head=4,
            num_key_value_heads=2,
            num_local_experts=2,
            use_cache=False,
            attn_pdrop=0.0,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
        )
        self.model = getattr(transformers, cls)(made)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens).logits


HUGGING_FACE = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel"),
    "qwen": ("Qwen2Config", "Qwen2ForCausalLM"),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM"),
}
MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": MLP,
    "gpt": GPT,
    "llama": Llama,
    "encoder": Encoder,
    "vit": ViT,
    "resnet": ResNet,
    "lstm": LSTM,
    **{kind: lambda kind=kind: Logits(kind) for kind in HUGGING_FACE},
}


def batch(kind: str, number: int, *, length: int = LENGTH, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Inputs and wanted outputs."""
    generator = torch.Generator().manual_seed(number)
    if kind == "mlp":
        inputs = torch.randn(8, WIDTH, generator=generator)
    elif kind in ("vit", "resnet"):
        inputs = torch.randn(4, 3, 16, 16, generator=generator)
    else:
        if kind == "lstm":
            # Its loop is unrolled where oneDNN has no operator for it.
            length = 4
        tokens = torch.randint(0, WORDS, (4, length + 1), generator=generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return inputs.to(dtype), torch.randint(0, WORDS, (len(inputs),), generator=generator)
