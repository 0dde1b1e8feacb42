"""Notes in the first step where each module is called from, for `stack_info`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msmon_hooks.call_hooks import BeforeCall, ModuleCalls
from msmon_hooks.guard import Guarded
from msmon_hooks.short_names import ShortNames
from msmon_hooks.stacks import call_stack
from msmon_hooks.targets import Targets
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
    """Keeps the call stack of the first call of each module.

    Args:
        on_stacks: called once, after the first step, with module name (and stage prefix) to stack.
    """

    def __init__(
        self, *, part: Guarded, forwards: TrainingForwards, on_stacks: Callable[[dict[str, str]], None]
    ) -> None:
        self.part = part
        self.active = True
        self._forwards = forwards
        self._on_stacks = on_stacks
        self._stacks: dict[str, str] = {}
        self._hooked: list[tuple[Any, BeforeCall]] = []
        self._module_calls: ModuleCalls | None = None

    def attach(
        self, modules: Mapping[tuple[int, str], Any], targets: Targets, names: ShortNames, calls: ModuleCalls
    ) -> None:
        """Hook the modules that `targets` asks for."""
        for (stage, name), module in modules.items():
            if targets.module(stage, name) is not None:
                hook = _Calls(self, f"{stage}:{names(stage, name)}", stage)
                calls.add(module, hook)
                self._hooked.append((module, hook))
        self._module_calls = calls

    def called(self, key: str, stage: int) -> None:
        """A module is about to run."""
        if key not in self._stacks and not self._forwards.framework.in_backward() and self._forwards.recording(stage):
            self._stacks[key] = call_stack(_BETWEEN)

    def step_ends(self) -> Callable[[], None] | None:
        """After the first step: take the hooks off, and return what hands the stacks over."""
        if not self.active:
            return None
        self.close()
        return partial(self._on_stacks, self._stacks)

    def close(self) -> None:
        """Take the hooks off."""
        self.active = False
        if self._module_calls is not None:
            for module, hook in self._hooked:
                self._module_calls.remove(module, hook)
        self._hooked.clear()


class _Calls(BeforeCall):
    def __init__(self, owner: StackHooks, key: str, stage: int) -> None:
        self.owner = owner
        self.key = key
        self.stage = stage

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.owner.active:
            self.owner.part.run(self.owner.called, self.key, self.stage)
