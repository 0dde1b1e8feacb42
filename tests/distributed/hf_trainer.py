"""Hugging Face's Trainer on each rank."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState
from torch.utils.data import Dataset, SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

from msmon.integrations.transformers import MsmonCallback

from .prove import Finished, Trained, hooks_on, prove_trainer
from .workload import ROWS, STEPS, Perceptron, batch, loss_of, make_optimizer


class WithLoss(Perceptron):
    """What a Trainer wants: the loss is in the output."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        output = super().forward(x)
        return {"loss": loss_of(output), "output": output}


class Examples(Dataset):
    """The batches of the workload in the order in which accelerate deals them out to the ranks."""

    def __init__(self, steps: int, micro_steps: int, ranks: int) -> None:
        self.batches = [
            batch(step, rank, micro_step)
            for step in range(steps)
            for micro_step in range(micro_steps)
            for rank in range(ranks)
        ]

    def __len__(self) -> int:
        return len(self.batches) * ROWS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.batches[index // ROWS][index % ROWS]}


class InOrder(Trainer):
    """Deals the examples out as they lie, and keeps the losses."""

    losses: list[float]

    def _get_train_sampler(self, *args: Any) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        self.losses.append(loss.item())
        return loss


class CountHooks(TrainerCallback):
    """What sits on the model while it trains."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.counts = hooks_on(
            Trained(model=kwargs["model"], optimizer=kwargs["optimizer"].optimizer, step=lambda number: 0.0)
        )


def train(config: Path | None, grad_acc_steps: int) -> Finished:
    """One training."""
    AcceleratorState._reset_state(False)
    GradientState._reset_state()
    torch.manual_seed(0)
    model = WithLoss()
    optimizer = make_optimizer(model.parameters())
    counts = CountHooks()
    with tempfile.TemporaryDirectory() as folder:
        trainer = InOrder(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                use_cpu=True,
                ddp_backend="gloo",
                max_steps=STEPS,
                per_device_train_batch_size=ROWS,
                gradient_accumulation_steps=grad_acc_steps,
                max_grad_norm=0,
                lr_scheduler_type="constant",
                logging_strategy="no",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                remove_unused_columns=False,
                ddp_find_unused_parameters=False,
            ),
            train_dataset=Examples(STEPS, grad_acc_steps, torch.distributed.get_world_size()),
            optimizers=(optimizer, None),
            callbacks=[counts, *([MsmonCallback(config)] if config else [])],
        )
        trainer.losses = []
        trainer.train()
    return Finished(losses=trainer.losses, model=model, optimizer=optimizer, during=counts.counts)


def proof(*, output: str, grad_acc_steps: int = 1, **config: Any) -> dict[str, Any]:
    """The trainings of `prove_trainer`."""
    return prove_trainer(lambda path: train(path, grad_acc_steps), output=output, **config)
