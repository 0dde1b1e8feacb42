"""Notes in the first step where each module is called from, for `stack_info`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msmon_hooks.call_hooks import BeforeCall, CallHooks
from msmon_hooks.recording import Recording
from msmon_hooks.short_names import ShortNames
from msmon_hooks.stacks import call_stack
from msmon_hooks.training_forwards import TrainingForwards

# What frameworks put between a module and the code that calls it.
_BETWEEN = (
    "torch.nn.modules.module",
    "torch._dynamo",
    "mindspore.nn.cell",
    "mindspore.ops.composite",
    "mindspore.graph",
)


class StackHooks:
    """Keeps the call stack of the first call of each module, and hands the stacks to `Request.on_stacks`, once, after
    the first step: module name (and stage prefix) to stack."""

    def __init__(self, recording: Recording, forwards: TrainingForwards, call_hooks: CallHooks) -> None:
        self.guard = recording.guards("call stacks")
        self._recording = recording
        self._forwards = forwards
        self._call_hooks = call_hooks
        self._stacks: dict[str, str] = {}

    def attach(self, modules: Mapping[tuple[int, str], Any], names: ShortNames) -> None:
        """Hook the modules that are asked for."""
        for (stage, name), module in modules.items():
            if self._recording.request.targets.module(stage, name) is not None:
                self._call_hooks.add(module, _Calls(self, f"{stage}:{names(stage, name)}", stage))

    def called(self, key: str, stage: int) -> None:
        """A module is about to run."""
        if key not in self._stacks and not self._recording.framework.in_backward() and self._forwards.recording(stage):
            self._stacks[key] = call_stack(_BETWEEN)

    def step_ends(self) -> Callable[[], None] | None:
        """After the first step: what hands the stacks over."""
        on_stacks = self._recording.request.on_stacks
        return None if on_stacks is None else partial(on_stacks, self._stacks)

    def close(self) -> None:
        """Take the hooks off."""
        self._call_hooks.close()


class _Calls(BeforeCall):
    def __init__(self, owner: StackHooks, key: str, stage: int) -> None:
        super().__init__(owner.guard)
        self.owner = owner
        self.key = key
        self.stage = stage

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.owner.called(self.key, self.stage)
