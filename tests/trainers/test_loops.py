"""Lightning's Trainer and Fabric, and loops with parts of timm, diffusers and torchtitan in them."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from msmon.pytorch import TrainerMon

from .conftest import Row
from .probe import CONFIG, Outcome, Probe, judge, outcome

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
everywhere = pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="a case of `make test-trainers`")
STEPS = 4


def build() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def batch(number: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(number))


def both(train: Callable[[Path | None, Probe | None], Outcome], probe: Probe, config: Path) -> tuple[Outcome, Outcome]:
    """The training without and with a monitor; the probe looks at the first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with probe:
            plain = train(None, probe)
        return plain, train(config, None)


def batches(count: int) -> DataLoader:
    return DataLoader([batch(number) for number in range(count)], batch_size=None)


# Lightning


def lightning_trainer(folder: Path, config: Path | None, **options: Any) -> Any:
    lightning = pytest.importorskip("lightning.pytorch")
    from msmon.integrations.lightning import MsmonCallback

    for name in ("lightning", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return lightning.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[] if config is None else [MsmonCallback(config)],
        **options,
    )


@pytest.mark.parametrize("micro_steps", [pytest.param(1), pytest.param(2, marks=everywhere)])
def test_lightning(micro_steps: int, tmp_path: Path, write_config: Any, output_dir: Path, verdict: Row) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = build()
            self.losses: list[float] = []

        def training_step(self, x: torch.Tensor, index: int) -> torch.Tensor:
            loss = self.net(x).square().mean()
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    def train(config: Path | None, probe: Probe | None) -> Outcome:
        module = Module()
        if probe is not None:
            probe.watch(module)
        trainer = lightning_trainer(tmp_path, config, accumulate_grad_batches=micro_steps, gradient_clip_val=0.1)
        trainer.fit(module, batches(STEPS * micro_steps))
        return outcome(module.losses, module)

    probe = Probe("net.2.weight", "net.1")
    plain, monitored = both(train, probe, write_config(**CONFIG))
    verdict(f"Lightning{', accumulation' * (micro_steps > 1)}", judge(output_dir, probe, plain, monitored))


@everywhere
@pytest.mark.parametrize("first", ["generator", "critic"])
def test_lightning_with_two_optimizers(
    first: str, tmp_path: Path, write_config: Any, output_dir: Path, verdict: Row
) -> None:
    """Manual optimization; the first optimizer is followed, which steps first or second in a batch."""
    lightning = pytest.importorskip("lightning.pytorch")

    class Gan(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            torch.manual_seed(0)
            self.generator, self.critic = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Sequential(nn.Linear(8, 1))
            self.losses: list[float] = []

        def training_step(self, real: torch.Tensor, index: int) -> None:
            turns = {"generator": self.generate, "critic": self.judge}
            for turn in (first, *(one for one in turns if one != first)):
                turns[turn](real)

        def generate(self, real: torch.Tensor) -> None:
            self.update(0, -self.critic(self.generator(real.flip(0))).mean())

        def judge(self, real: torch.Tensor) -> None:
            with torch.no_grad():
                fake = self.generator(real.flip(0))
            self.update(1, (self.critic(fake) - self.critic(real)).mean())

        def update(self, number: int, loss: torch.Tensor) -> None:
            optimizer = self.optimizers()[number]
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.losses.append(loss.item())

        def configure_optimizers(self) -> Any:
            return [torch.optim.AdamW(one.parameters(), lr=0.01) for one in (self.generator, self.critic)]

    def train(config: Path | None, probe: Probe | None) -> Outcome:
        module = Gan()
        if probe is not None:
            probe.watch(module)
        lightning_trainer(tmp_path, config).fit(module, batches(STEPS))
        return outcome(module.losses, module)

    probe = Probe("generator.0.weight", "generator.1")
    plain, monitored = both(train, probe, write_config(**CONFIG))
    # Gradients of the other optimizer's parameters are not the followed one's.
    probe.with_gradient = {name for name in probe.with_gradient if name.startswith("generator.")}

    def of_the_other(entry: dict[str, str]) -> bool:
        return entry["name"].startswith("critic.") and entry["reason"] == "not in the optimizer that was given"

    # Without gradients the generator has been called before in the same micro-step.
    output = "generator.1@1.output" if first == "critic" else None
    found = judge(output_dir, probe, plain, monitored, output=output, allowed=of_the_other)
    verdict(f"Lightning, two optimizers, {first} first", found)


@everywhere
def test_fabric(write_config: Any, output_dir: Path, verdict: Row) -> None:
    fabric_package = pytest.importorskip("lightning.fabric")

    def train(config: Path | None, probe: Probe | None) -> Outcome:
        fabric = fabric_package.Fabric(accelerator="cpu", devices=1)
        inner = build()
        model, optimizer = fabric.setup(inner, torch.optim.AdamW(inner.parameters(), lr=0.01))
        if probe is not None:
            probe.watch(inner)
        monitor = None
        if config is not None:
            monitor = TrainerMon(str(config), params_have_main_grad=False)
            monitor.set_monitor(model, 1, optimizer)
        losses = []
        for step in range(STEPS):
            loss = model(batch(step)).square().mean()
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=0.1)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        if monitor is not None:
            monitor.close()
        return outcome(losses, inner)

    probe = Probe("2.weight", "1")
    plain, monitored = both(train, probe, write_config(**CONFIG))
    verdict("Fabric", judge(output_dir, probe, plain, monitored))


# Parts of other packages in a loop of one's own


def of_timm(name: str) -> Any:
    """A module of timm by its file: the package as a whole needs torchvision, which no build fits to torch for CPUs."""
    package = importlib.util.find_spec("timm")
    if package is None or package.origin is None:
        pytest.skip("timm is not installed")
    spec = importlib.util.spec_from_file_location(f"timm_{name}", Path(package.origin).parent / "utils" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Loop:
    """A loop, and what a package does in it: nothing here."""

    def __init__(self, model: nn.Module) -> None:
        self.optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.01)

    def before_step(self, model: nn.Module) -> None:
        pass

    def after_step(self, model: nn.Module) -> None:
        pass


class Timm(Loop):
    """Adaptive clipping before the step, and an average of the weights that is also evaluated."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.clip = of_timm("agc").adaptive_clip_grad
        self.ema = of_timm("model_ema").ModelEmaV2(model, decay=0.9)

    def before_step(self, model: nn.Module) -> None:
        self.clip(model.parameters(), clip_factor=0.001)

    def after_step(self, model: nn.Module) -> None:
        self.ema.update(model)
        with torch.no_grad():
            self.ema.module(batch(100))


class Diffusers(Loop):
    """Its average is put into the model for an evaluation, and taken out again."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.ema = pytest.importorskip("diffusers.training_utils").EMAModel(model.parameters(), decay=0.9)

    def after_step(self, model: nn.Module) -> None:
        self.ema.step(model.parameters())
        self.ema.store(model.parameters())
        self.ema.copy_to(model.parameters())
        model.eval()
        with torch.no_grad():
            model(batch(100))
        model.train()
        self.ema.restore(model.parameters())


class TorchTitan(Loop):
    """Matrices and biases have an optimizer each, in a container that is one."""

    def __init__(self, model: nn.Module) -> None:
        package = pytest.importorskip("torchtitan.components.optimizer")
        groups = [
            package.ParamGroupConfig(pattern=pattern, optimizer_name=name, optimizer_kwargs={"lr": 0.01})
            for pattern, name in (("weight$", "AdamW"), ("bias$", "Adam"))
        ]
        config = package.OptimizersContainer.Config(param_groups=groups, implementation="for-loop")
        self.optimizer = config.build(model_parts=[model])


@everywhere
@pytest.mark.parametrize("kind", [Timm, Diffusers, TorchTitan])
def test_loop(kind: type[Loop], write_config: Any, output_dir: Path, verdict: Row) -> None:
    def train(config: Path | None, probe: Probe | None) -> Outcome:
        model = build()
        loop = kind(model)
        if probe is not None:
            probe.watch(model)
        monitor = None
        if config is not None:
            monitor = TrainerMon(str(config), params_have_main_grad=False)
            monitor.set_monitor(model, 1, loop.optimizer)
        losses = []
        for step in range(STEPS):
            loss = model(batch(step)).square().mean()
            loss.backward()
            loop.before_step(model)
            loop.optimizer.step()
            loop.after_step(model)
            loop.optimizer.zero_grad()
            losses.append(loss.item())
        if monitor is not None:
            monitor.close()
        return outcome(losses, model)

    probe = Probe("2.weight", "1")
    plain, monitored = both(train, probe, write_config(**CONFIG))
    verdict(kind.__name__, judge(output_dir, probe, plain, monitored))
