"""Loops and optimizers of packages that nobody here wrote: as they are used, with a monitor and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn

from msmon.pytorch import TrainerMon

from .conftest import Row
from .probe import CONFIG, Outcome, Probe, judge, outcome
from .test_loops import STEPS, batch, both, build, everywhere

pytestmark = [everywhere, pytest.mark.filterwarnings("ignore")]
Losses = list[float]


class Way:
    """A loop: what is done before it, in each step, and after each. By itself it is the usual one."""

    last = False
    """Whether of a step's forwards only the last is one of the training."""
    by_hand = False
    prefix = ""
    """Of names in the model that is watched."""

    def begin(self, model: nn.Module) -> tuple[nn.Module, Any]:
        """The model that is watched and called, and the optimizer that is given."""
        raise NotImplementedError

    def step(self, model: nn.Module, optimizer: Any, number: int) -> torch.Tensor:
        loss = self.loss(model, number)
        loss.backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    def after(self, model: nn.Module) -> None:
        pass

    def loss(self, model: nn.Module, number: int) -> torch.Tensor:
        return model(batch(number)).square().mean()

    def train(self, config: Path | None, probe: Probe | None) -> Outcome:
        """The whole training."""
        inner = build()
        model, optimizer = self.begin(inner)
        if probe is not None:
            probe.watch(model)
        monitor = None
        if config is not None:
            monitor = TrainerMon(str(config), params_have_main_grad=False)
            monitor.set_monitor(model, 1, optimizer)
        losses = []
        for number in range(STEPS):
            losses.append(self.step(model, optimizer, number).item())
            if monitor is not None and self.by_hand:
                monitor.step()
            self.after(model)
        if monitor is not None:
            monitor.close()
        return outcome(losses, inner)


class Sam(Way):
    """Two forwards a step, by the methods that its authors gave it."""

    last = True

    def begin(self, model):
        package = pytest.importorskip("pytorch_optimizer")
        return model, package.SAM(model.parameters(), torch.optim.AdamW, lr=0.01)

    def step(self, model, optimizer, number):
        loss = self.loss(model, number)
        loss.backward()
        optimizer.first_step(zero_grad=True)
        self.loss(model, number).backward()
        optimizer.second_step(zero_grad=True)
        return loss


class SamByClosure(Sam):
    def step(self, model, optimizer, number):
        def closure():
            loss = self.loss(model, number)
            loss.backward()
            return loss

        loss = closure()
        optimizer.step(closure)
        optimizer.zero_grad()
        return loss


class Lookahead(Way):
    def begin(self, model):
        package = pytest.importorskip("torch_optimizer")
        return model, package.Lookahead(torch.optim.AdamW(model.parameters(), lr=0.01), k=2)


class Swa(Way):
    """Averages of the weights, in a copy of the model that is evaluated."""

    def begin(self, model):
        from torch.optim.swa_utils import SWALR, AveragedModel

        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        self.average, self.schedule = AveragedModel(model), SWALR(optimizer, swa_lr=0.02)
        return model, optimizer

    def after(self, model):
        self.average.update_parameters(model)
        self.schedule.step()
        torch.optim.swa_utils.update_bn([batch(100)], self.average)
        with torch.no_grad():
            self.average(batch(100))


class Ema(Way):
    def begin(self, model):
        package = pytest.importorskip("ema_pytorch")
        self.ema = package.EMA(model, beta=0.9, update_after_step=0, update_every=1)
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)

    def after(self, model):
        self.ema.update()
        self.ema(batch(100))


class InBackward(Way):
    """An optimizer a parameter, called when its gradient is there."""

    by_hand = True
    package, name = "galore_torch", "GaLoreAdamW"
    low_rank: dict[str, Any] = {"rank": 2, "update_proj_gap": 2, "scale": 0.25, "proj_type": "std"}  # noqa: RUF012

    def begin(self, model):
        make = getattr(pytest.importorskip(self.package), self.name)
        inner = {
            one: make([{"params": [one], **(self.low_rank if one.dim() > 1 else {})}], lr=0.01)
            for one in model.parameters()
        }

        def update(parameter):
            inner[parameter].step()
            inner[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        return model, None


class ApolloInBackward(InBackward):
    package, name = "apollo_torch", "APOLLOAdamW"
    low_rank = InBackward.low_rank | {"proj": "random", "scale_type": "channel"}


class AppliedInBackward(Way):
    by_hand = True

    def begin(self, model):
        from torch.distributed.optim import _apply_optimizer_in_backward

        _apply_optimizer_in_backward(torch.optim.AdamW, model.parameters(), {"lr": 0.01})
        return model, None


class ZeroRedundancy(Way):
    def begin(self, model):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)


class PostLocalSgd(Way):
    def begin(self, model):
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
        from torch.distributed.optim import PostLocalSGDOptimizer

        averager = PeriodicModelAverager(period=2, warmup_steps=0)
        return model, PostLocalSGDOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01), averager)


class Opacus(Way):
    """Gradients of single examples, clipped, with noise."""

    prefix = "_module."
    virtual = 1
    """Batches that make a step."""

    def begin(self, model):
        package = pytest.importorskip("opacus")
        examples = torch.utils.data.TensorDataset(torch.cat([batch(number) for number in range(STEPS)]))
        torch.manual_seed(3)
        private, optimizer, self.loader = package.PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
            data_loader=torch.utils.data.DataLoader(examples, batch_size=4),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
        )
        return private, optimizer

    def step(self, model, optimizer, number):
        total = torch.zeros(())
        parts = batch(number).chunk(self.virtual)
        for at, part in enumerate(parts):
            # As its BatchMemoryManager does.
            optimizer.signal_skip_step(do_skip=at < len(parts) - 1)
            loss = model(part).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        return total


class OpacusVirtualSteps(Opacus):
    virtual = 2


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """Some of these want a process group, of one process here."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


WAYS: list[type[Way]] = [
    *(Sam, SamByClosure, Lookahead, Swa, Ema, InBackward, ApolloInBackward, AppliedInBackward),
    *(ZeroRedundancy, PostLocalSgd, Opacus, OpacusVirtualSteps),
]


@pytest.mark.parametrize("kind", WAYS)
def test_way(kind: type[Way], write_config: Any, output_dir: Path, verdict: Row) -> None:
    way = kind()
    probe = Probe(f"{way.prefix}2.weight", f"{way.prefix}1", last=way.last)
    plain, monitored = both(way.train, probe, write_config(**CONFIG))
    verdict(kind.__name__, judge(output_dir, probe, plain, monitored))


# Trainers


def ignite(watch: Callable[[nn.Module, Any], None]) -> tuple[Losses, nn.Module]:
    engine = pytest.importorskip("ignite.engine")
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch(model, optimizer)
    losses: Losses = []
    trainer = engine.create_supervised_trainer(model, optimizer, nn.MSELoss(), gradient_accumulation_steps=2)
    trainer.add_event_handler(engine.Events.ITERATION_COMPLETED, lambda one: losses.append(one.state.output))
    trainer.run([(batch(number), torch.zeros(4, 4)) for number in range(2 * STEPS)], max_epochs=1)
    return losses, model


def skorch(watch: Callable[[nn.Module, Any], None]) -> tuple[Losses, nn.Module]:
    package = pytest.importorskip("skorch")
    model = build()

    class Begins(package.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_begin(self, net, **more):
            watch(net.module_, net.optimizer_)

    net = package.NeuralNetRegressor(
        lambda: model,
        optimizer=torch.optim.AdamW,
        max_epochs=2,
        batch_size=4,
        train_split=None,
        verbose=0,
        callbacks=[("begins", Begins())],
    )
    net.fit(torch.cat([batch(0), batch(1)]).numpy(), torch.zeros(8, 4).numpy())
    return net.history[:, "train_loss"], model


def stable_baselines(watch: Callable[[nn.Module, Any], None]) -> tuple[Losses, nn.Module]:
    """It runs its policy without gradients between the updates, to act."""
    package, gymnasium = pytest.importorskip("stable_baselines3"), pytest.importorskip("gymnasium")

    class World(gymnasium.Env):  # type: ignore[misc, name-defined]
        observation_space = gymnasium.spaces.Box(-1, 1, (3,))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, seed=None, options=None):
            self.turns = 0
            return self.observation_space.low, {}

        def step(self, action):
            self.turns += 1
            return self.observation_space.low + 0.1 * self.turns, float(action), self.turns >= 8, False, {}

    algorithm = package.PPO(
        "MlpPolicy",
        World(),
        n_steps=16,
        batch_size=8,
        n_epochs=2,
        seed=0,
        policy_kwargs={"net_arch": [8]},
        device="cpu",
    )
    watch(algorithm.policy, algorithm.policy.optimizer)
    algorithm.learn(32)
    return [float(algorithm.num_timesteps)], algorithm.policy


def gpytorch(watch: Callable[[nn.Module, Any], None]) -> tuple[Losses, nn.Module]:
    """Its models return distributions."""
    package = pytest.importorskip("gpytorch")
    torch.manual_seed(0)
    inputs = torch.linspace(0, 1, 20)
    targets = torch.sin(6 * inputs)

    class Process(package.models.ExactGP):  # type: ignore[misc, name-defined]
        def __init__(self, likelihood):
            super().__init__(inputs, targets, likelihood)
            self.mean, self.net = package.means.ConstantMean(), nn.Linear(1, 1)
            self.kernel = package.kernels.ScaleKernel(package.kernels.RBFKernel())

        def forward(self, x):
            features = self.net(x.reshape(-1, 1))
            return package.distributions.MultivariateNormal(self.mean(features), self.kernel(features))

    likelihood = package.likelihoods.GaussianLikelihood()
    model = Process(likelihood)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    watch(model, optimizer)
    score = package.mlls.ExactMarginalLogLikelihood(likelihood, model)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = -score(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def metric_learning(watch: Callable[[nn.Module, Any], None]) -> tuple[Losses, nn.Module]:
    """The loss is a module that is trained, too."""
    package = pytest.importorskip("pytorch_metric_learning.losses")
    model = build()
    both = nn.ModuleDict({"net": model, "loss": package.ProxyAnchorLoss(num_classes=3, embedding_size=4)})
    optimizer = torch.optim.AdamW(both.parameters(), lr=0.01)
    watch(both, optimizer)
    losses = []
    for number in range(STEPS):
        optimizer.zero_grad()
        loss = both["loss"](both["net"](batch(number)), torch.arange(4) % 3)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, both


TRAINERS: dict[Callable[..., tuple[Losses, nn.Module]], tuple[str, str, int]] = {
    ignite: ("2.weight", "1", 2),
    skorch: ("2.weight", "1", 1),
    stable_baselines: ("action_net.weight", "action_net", 1),
    gpytorch: ("net.weight", "net", 1),
    metric_learning: ("net.2.weight", "net.1", 1),
}
"""Trainer to parameter and module to watch, and micro-steps."""


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda trainer: trainer.__name__)
def test_trainer(trainer: Callable[..., Any], write_config: Any, output_dir: Path, verdict: Row) -> None:
    parameter, module, micro_steps = TRAINERS[trainer]

    def train(config: Path | None, probe: Probe | None) -> Outcome:
        monitors = []

        def watch(model: nn.Module, optimizer: Any) -> None:
            if probe is not None:
                probe.watch(model)
            if config is not None:
                monitors.append(TrainerMon(str(config), params_have_main_grad=False))
                monitors[0].set_monitor(model, micro_steps, optimizer)

        losses, model = trainer(watch)
        for monitor in monitors:
            monitor.close()
        return outcome(losses, model)

    probe = Probe(parameter, module)
    plain, monitored = both(train, probe, write_config(**CONFIG))
    verdict(trainer.__name__, judge(output_dir, probe, plain, monitored))
