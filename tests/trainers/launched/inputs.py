"""What the launched commands train: a model of two layers with its tokenizer, and a few texts."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import torch

TEXT = "the a red blue old new cat dog bird sees likes finds house tree road . what is it ? user assistant"
WORDS = TEXT.split()
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
TEMPLATE = "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}"


def make(folder: Path) -> None:
    """Write `model`, a Llama with its tokenizer, and texts for the ways to train."""
    _model(folder / "model")
    sentences = [" ".join(words) + " ." for words in itertools.product(["the", "a"], ["red", "old"], ["cat", "dog"])]
    pairs = list(itertools.pairwise(sentences))
    _lines(folder / "texts/train.jsonl", [{"text": f"{one} {other}"} for one, other in pairs])
    _lines(
        folder / "preferences/train.jsonl", [{"prompt": "what is it ?", "chosen": a, "rejected": b} for a, b in pairs]
    )
    asked = [{"instruction": "what is it ?", "input": "", "output": one} for one in sentences]
    for name in ("train", "val"):
        _write(folder / f"asked/{name}.json", json.dumps(asked))


def make_litgpt(folder: Path) -> None:
    """Write `litgpt`, a checkpoint of litgpt's own, next to `model`."""
    from litgpt.config import Config
    from litgpt.model import GPT
    from litgpt.utils import save_config

    checkpoint = folder / "litgpt"
    shutil.copytree(folder / "model", checkpoint)
    config = Config.from_name("pythia-14m", n_layer=2, n_embd=16, n_head=2, padded_vocab_size=32, block_size=64)
    torch.manual_seed(0)
    torch.save(GPT(config).state_dict(), checkpoint / "lit_model.pth")
    save_config(config, checkpoint)


def _model(folder: Path) -> None:
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        chat_template=TEMPLATE,
        model_max_length=64,
    )
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    _write(path, "".join(f"{json.dumps(row)}\n" for row in rows))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
