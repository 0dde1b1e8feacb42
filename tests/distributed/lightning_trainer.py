"""Lightning's Trainer on each rank."""

from __future__ import annotations

import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch.utils.data import DataLoader, Dataset

from msmon.integrations.lightning import MsmonCallback

from .prove import Finished, Trained, hooks_on, prove_trainer
from .workload import STEPS, batch, loss_of, make_model, make_optimizer


class Module(LightningModule):
    """The workload's model; its training step calls the layers, never the module as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()
        self.losses: list[float] = []

    def training_step(self, x: torch.Tensor, index: int) -> torch.Tensor:
        loss = loss_of(self.model(x[0]))
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return make_optimizer(self.parameters())


class Batches(Dataset):
    """This rank's batches of the workload."""

    def __init__(self, rank: int, micro_steps: int) -> None:
        self.batches = [batch(step, rank, micro) for step in range(STEPS) for micro in range(micro_steps)]

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.batches[index]


class AlreadyStarted(LightningEnvironment):
    """The processes are there and know each other."""

    @property
    def creates_processes_externally(self) -> bool:
        return True

    def world_size(self) -> int:
        return torch.distributed.get_world_size()

    def global_rank(self) -> int:
        return torch.distributed.get_rank()

    def local_rank(self) -> int:
        return torch.distributed.get_rank()

    def set_world_size(self, size: int) -> None:
        pass

    def set_global_rank(self, rank: int) -> None:
        pass


class CountHooks(Callback):
    """What sits on the model while it trains."""

    def on_before_zero_grad(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.counts = hooks_on(Trained(model=module.model, optimizer=optimizer, step=lambda number: 0.0))


def train(config: Path | None, grad_acc_steps: int, strategy: str) -> Finished:
    """One training."""
    warnings.simplefilter("ignore")
    for name in ("lightning", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    module, counts = Module(), CountHooks()
    alone = strategy == "single"
    rank = torch.distributed.get_rank()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            default_root_dir=folder,
            accelerator="cpu",
            devices=1 if alone else torch.distributed.get_world_size(),
            strategy=SingleDeviceStrategy("cpu") if alone else DDPStrategy(cluster_environment=AlreadyStarted()),
            max_steps=STEPS,
            max_epochs=1,
            accumulate_grad_batches=grad_acc_steps,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            callbacks=[counts, *([MsmonCallback(config)] if config else [])],
        )
        trainer.fit(module, DataLoader(Batches(rank, grad_acc_steps), batch_size=1))
    return Finished(losses=module.losses, model=module.model, optimizer=trainer.optimizers[0], during=counts.counts)


def proof(*, output: str, grad_acc_steps: int = 1, strategy: str = "ddp", **config: Any) -> dict[str, Any]:
    """The trainings of `prove_trainer`."""
    return prove_trainer(lambda path: train(path, grad_acc_steps, strategy), output=output, **config)
