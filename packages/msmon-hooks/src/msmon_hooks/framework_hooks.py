"""How the modules, optimizers, engines and collectives of one framework are hooked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from attrs import frozen

from msmon_hooks.adam import AdamSettings
from msmon_hooks.call_hooks import CallHooks
from msmon_hooks.collective_rows import CollectiveRows
from msmon_hooks.framework import Framework
from msmon_hooks.gradients import GradientSource
from msmon_hooks.guard import Guarded
from msmon_hooks.loss_scale import LossScale
from msmon_hooks.optimizer_steps import OptimizerSteps
from msmon_hooks.parameters import Weight
from msmon_hooks.recording import Recording
from msmon_hooks.registrations import Registrations

Agreement = Callable[[Any, Any], Any]
"""See `msmon_hooks.Request.sign_agreement`."""


class ModelChanges(Protocol):
    """Notices that modules or parameters are others than before."""

    def check(self) -> None:
        """Call back if anything is different from the last time."""

    def follow(self, optimizer: Any) -> None:
        """Look at another optimizer."""

    def close(self) -> None:
        """Let go of the model."""


class InsideCompiled(Protocol):
    """Reads the tensors of modules that run inside of compiled graphs."""

    guard: Guarded

    def attach(self, modules: Mapping[tuple[int, str], Any]) -> None:
        """Mark the modules that are asked for. Called again: what has changed since."""

    def forget(self) -> None:
        """Of the step in flight nothing more will be read."""

    def step_ends(self) -> None:
        """The same, and it is over."""

    def close(self) -> None:
        """Take everything off; harmless when called again."""


@frozen(kw_only=True)
class FrameworkHooks:
    """What a framework's half of the hooks consists of; `msmon_hooks.torch.attach.HOOKS` is the one of PyTorch."""

    framework: Framework
    optimizer_steps: type[OptimizerSteps[Any]]
    collective_rows: type[CollectiveRows]
    loss_scale: Callable[..., LossScale]
    """Makes what watches loss scalers, from a guard and the optimizer's steps."""
    call_hooks: Callable[[], CallHooks]
    named_modules: Callable[[Sequence[Any]], Mapping[tuple[int, str], Any]]
    """Stage and plain name to module."""
    find_source: Callable[[Sequence[Any], Any, Recording], GradientSource]
    """The engine that trains these models by this optimizer."""
    adam_settings: Callable[[Any], Callable[[Weight], AdamSettings | None]]
    """Of an optimizer: how the moments of a parameter were accumulated, or None."""
    agreement: Callable[[Agreement], Agreement]
    """Makes what `Request.sign_agreement` computes of what the framework's gradients and moments are; it is given a
    momentum of None before the first update."""
    model_changes: Callable[[Sequence[Any], Any, Callable[[], None]], ModelChanges] | None = None
    """From models, optimizer and what to call. None: models of the framework do not change."""
    inside_compiled: Callable[..., InsideCompiled] | None = None
    """From a recording, training forwards, call hooks, module hooks and what owns marks: what reads inside of compiled
    graphs. None: graphs cannot be looked into."""
    prepare: Callable[[Sequence[Any], Recording, Registrations], None] = lambda models, recording, registrations: None
    """What is done before anything is hooked."""
