"""Makes calls inside the monitor raise: which calls there are, and which of them do."""

from __future__ import annotations

import importlib
import random
import threading
from collections import Counter
from collections.abc import Callable

import pytest

POINTS = {
    # statistics
    "measure": "msmon_stats.torch.buffer:PartialBuffer.measure",
    "put": "msmon_stats.torch.buffer:PartialBuffer.put",
    "transfer": "msmon_stats.torch.buffer:PartialBuffer.transfer",
    "matrix": "msmon_stats.torch.buffer:Transfer.matrix",
    # hooks
    "collector.measure": "msmon.collector:Collector.measure",
    "record": "msmon.collector:Collector.record",
    "step_end": "msmon.collector:Collector.step_end",
    "root.enter": "msmon_hooks.training_forwards:TrainingForwards.enter",
    "root.leave": "msmon_hooks.training_forwards:TrainingForwards.leave",
    "module.enter": "msmon_hooks.modules:ModuleHooks.enter",
    "module.leave": "msmon_hooks.modules:ModuleHooks.leave",
    "module.step_ends": "msmon_hooks.modules:ModuleHooks.step_ends",
    "gradient.watch": "msmon_hooks.activation_gradients:ActivationGradients.watch",
    "gradient.read": "msmon_hooks.activation_gradients:ActivationGradients.read",
    "weights.attach": "msmon_hooks.weights:WeightHooks.attach",
    "weights.step_begins": "msmon_hooks.weights:WeightHooks.step_begins",
    "weights.gradient": "msmon_hooks.weights:WeightHooks.accumulated",
    "weights.step_ends": "msmon_hooks.weights:WeightHooks.step_ends",
    "weights.read": "msmon_hooks.weights:WeightHooks._read",
    "model.changes": "msmon_hooks.torch.model_changes:ModelChanges.check",
    "loss_scale": "msmon_hooks.torch.loss_scale:LossScale.of",
    "found_inf": "msmon_hooks.torch.loss_scale:LossScale.found_inf",
    "structure": "msmon_hooks.module_stacks:StackHooks.step_ends",
    # what an engine answers
    "engine.weights": "msmon_hooks.torch.grads.source:GradientSource.weights",
    "engine.trains": "msmon_hooks.gradients:GradientSource.trains",
    "engine.attach": "msmon_hooks.torch.grads.source:GradientSource.attach",
    "engine.attach_update": "msmon_hooks.gradients:GradientSource.attach_update",
    "engine.reduced": "msmon_hooks.torch.grads.source:GradientSource.reduced",
    "engine.value": "msmon_hooks.torch.grads.source:GradientSource.value",
    "engine.moments": "msmon_hooks.torch.grads.source:GradientSource.moments",
    "engine.shard": "msmon_hooks.torch.grads.source:GradientSource.shard",
    "engine.writes": "msmon_hooks.gradients:GradientSource.writes",
    "engine.describe": "msmon_hooks.gradients:GradientSource.describe",
    "engine.scale": "msmon_hooks.gradients:GradientSource.scale",
    "engine.skipped": "msmon_hooks.gradients:GradientSource.skipped",
    "engine.step_ends": "msmon_hooks.gradients:GradientSource.step_ends",
    # beside the training
    "rows": "msmon.rows:RowReader.read",
    "tables": "msmon.rows:StepRows.tables",
    "csv.write": "msmon_io:CsvWriter.write",
    "csv.flush": "msmon_io:CsvWriter.flush",
    "csv.close": "msmon_io:CsvWriter.close",
    "tensorboard.write": "msmon_io:TensorBoardWriter.write",
    "tensorboard.flush": "msmon_io:TensorBoardWriter.flush",
    "tensorboard.close": "msmon_io:TensorBoardWriter.close",
    "open_writer": "msmon_io:open_writer",
    "alerts": "msmon_alert:Monitor.observe",
    "rule": "msmon_alert:AnomalyTurbulence.check",
    "rule.state": "msmon_alert:save_state",
    "json": "msmon_io:write_json",
    "stacks": "msmon.session:write_stacks",
    "coverage": "msmon_hooks.coverage:Coverage.to_dict",
    "session": "msmon.session:Session.request",
}
DYNAMIC_POINTS = {
    "begin": "msmon.config.dynamic_switch:DynamicSwitch.begin",
    "after_step": "msmon.config.dynamic_switch:DynamicSwitch.after_step",
    "file": "msmon.config.dynamic_file:ConfigWatch.changed",
    "parse": "msmon.config.dynamic_switch:DynamicSwitch._read",
    "switch_off": "msmon.config.dynamic_switch:switch_off",
    "switch.close": "msmon.config.dynamic_switch:DynamicSwitch.close",
    "session": "msmon.monitor:Session",
    "reattach": "msmon_hooks.readers:Readers.attach",
    "run_dir": "msmon.monitor:make_run_dir",
}


class InjectedError(Exception):
    """What an injected fault raises; nothing in the monitor knows it."""


class Faults:
    """Wraps calls so that they raise where ``decide(point, number of the call)`` says so."""

    def __init__(self, points: dict[str, str], decide: Callable[[str, int], bool], patch: pytest.MonkeyPatch) -> None:
        self.calls: Counter[str] = Counter()
        self.raised: list[str] = []
        self._decide = decide
        self._lock = threading.Lock()
        for point, place in points.items():
            module, _, path = place.partition(":")
            owner = importlib.import_module(module)
            *classes, name = path.split(".")
            for part in classes:
                owner = getattr(owner, part)
            patch.setattr(owner, name, self._wrapped(point, getattr(owner, name)))

    def _wrapped(self, point: str, original: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            with self._lock:
                number = self.calls[point]
                self.calls[point] += 1
                fails = self._decide(point, number)
                if fails:
                    self.raised.append(point)
            if fails:
                raise InjectedError(f"injected into {point}")
            return original(*args, **kwargs)

        return call


def at_call(number: int) -> Callable[[str, int], bool]:
    """Only this call of the point raises."""
    return lambda point, call: call == number


def from_call(number: int) -> Callable[[str, int], bool]:
    """This call and all later ones raise, as where something is gone for good."""
    return lambda point, call: call >= number


def at_random(seed: int, share: float) -> Callable[[str, int], bool]:
    """A share of all calls raises. Which ones depends on the seed, and on the order of threads."""
    chance = random.Random(seed)
    return lambda point, call: chance.random() < share
