"""Hugging Face's Trainer: one line makes it watched.

torchrun --nproc-per-node 2 examples/hf_trainer.py
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from torch.utils.data import TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from msmon.integrations.transformers import MsmonCallback

CONFIG = Path(__file__).with_name("monitor_config.json")


def collate(examples: list[tuple[torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Token ids as inputs and as labels."""
    ids = torch.stack([example[0] for example in examples])
    return {"input_ids": ids, "labels": ids}


def main() -> None:
    """Four steps of a tiny GPT-2."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2))
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            max_steps=4,
            gradient_accumulation_steps=2,
            report_to=[],
            save_strategy="no",
        ),
        train_dataset=TensorDataset(torch.randint(0, 64, (256, 16))),
        data_collator=collate,
        callbacks=[MsmonCallback(CONFIG)],
    )
    trainer.train()
    if trainer.is_world_process_zero():
        print("files in", os.path.abspath(os.environ.get("MONITOR_OUTPUT_DIR", "monitor_output")))


if __name__ == "__main__":
    main()
