"""Hands the tensors that L2 features are computed of to the functions that compute them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import define

from msmon_hooks.call_hooks import AfterCall, BeforeCall, CallHooks
from msmon_hooks.coverage import NOT_FIRED
from msmon_hooks.guard import logger
from msmon_hooks.l2_features import has_linear_weight, l2_name
from msmon_hooks.names import tensor_leaves
from msmon_hooks.recording import Recording
from msmon_hooks.short_names import ShortNames
from msmon_hooks.targets import Sides, Targets
from msmon_hooks.training_forwards import TrainingForwards

_OF_WEIGHTS = ("linear_hook", "moe_router_weight_hook")


@define(slots=True, eq=False)
class _Use:
    """One feature of one module."""

    kind: str
    name: str
    vpp_stage: int
    index: int
    compute: Callable[..., Any]
    module: Any
    named: bool
    """The configuration names the module; else it only qualified."""
    step: int = -1
    micro_step: int = -1
    calls: int = 0
    enabled: bool = True

    def row_name(self, step: int, micro_step: int) -> str:
        """The second call in a micro-step is another row than the first."""
        if (self.step, self.micro_step) != (step, micro_step):
            self.step, self.micro_step, self.calls = step, micro_step, 0
        number = self.calls
        self.calls += 1
        return l2_name(self.kind, self.name if number == 0 else f"{self.name}@{number}")


class L2Hooks:
    """Features of attention modules and routers at each call, of weights once a step.

    What cannot be computed (one input, 3-D queries, a sharded weight) is said once and has no row.
    """

    def __init__(self, recording: Recording, forwards: TrainingForwards, call_hooks: CallHooks) -> None:
        self.framework = recording.framework
        self.clock = recording.clock
        self.guard = recording.guards("L2 features")
        self._recording = recording
        self._coverage = recording.coverage
        self._forwards = forwards
        self._call_hooks = call_hooks
        self._hooked: list[tuple[Any, BeforeCall | AfterCall]] = []
        self._weights: list[_Use] = []
        self._reported: set[str] = set()

    def attach(self, modules: Mapping[tuple[int, str], Any], names: ShortNames) -> None:
        """Hook the modules of every feature; called again, those of the model as it is now."""
        for module, hook in self._hooked:
            self._call_hooks.remove(module, hook)
        self.close()
        for kind, feature in self._recording.request.l2_features.items():
            targets = Targets({name: Sides() for name in feature.modules})
            # Without names every module qualifies by itself for linear_hook, and none for the others.
            if not feature.modules and kind != "linear_hook":
                continue
            for index, ((stage, name), module) in enumerate(modules.items()):
                if targets.module(stage, name) is None:
                    continue
                named = bool(feature.modules)
                if not named and not has_linear_weight(module, self.framework.weight(module)):
                    continue
                short = names(stage, name)
                self._add(_Use(kind, short, stage, index, feature.compute, module, named))
            if feature.modules:
                self._report_unmatched(kind, targets, [name for _, name in modules])

    def _add(self, use: _Use) -> None:
        self._coverage.expect(use.kind, l2_name(use.kind, use.name), NOT_FIRED, stage=use.vpp_stage)
        if use.kind in _OF_WEIGHTS:
            self._weights.append(use)
            return
        hook = _Attention(self, use) if use.kind == "attention_hook" else _Logits(self, use)
        self._call_hooks.add(use.module, hook)
        self._hooked.append((use.module, hook))

    def _report_unmatched(self, kind: str, targets: Targets, known: list[str]) -> None:
        for text in targets.unmatched(f"l2_targets.{kind}", known):
            if text not in self._reported:
                self._reported.add(text)
                logger.warning("%s", text)
                self._coverage.note(text)

    def step_begins(self) -> None:
        """Weights are read before the update, like those of `param_origin`."""
        if not self.clock.sampled:
            return
        for use in self._weights:
            if use.enabled:
                self.guard.run(self._of_weight, use)

    def _of_weight(self, use: _Use) -> None:
        weight = self.framework.weight(use.module)
        if weight is None:
            self._refuse(use, "the module has no weight")
        elif self.framework.is_sharded(weight):
            self._refuse(use, "the weight is sharded, and a part does not tell of the whole")
        else:
            self._compute(use, None, l2_name(use.kind, use.name), weight)

    def of_call(self, use: _Use, tensors: list[Any]) -> None:
        """A module is called, or has returned; `tensors` are what its feature looks at."""
        if self.framework.in_backward() or not self._forwards.recording(use.vpp_stage):
            return
        needed = 2 if use.kind == "attention_hook" else 1
        if len(tensors) < needed:
            self._refuse(use, f"the module has {len(tensors)} tensors, {needed} are needed")
            return
        micro_step = self.clock.micro_step_of(use.vpp_stage)
        self._compute(use, micro_step, use.row_name(self.clock.step, micro_step), *tensors[:needed])

    def _compute(self, use: _Use, micro_step: int | None, name: str, *tensors: Any) -> None:
        try:
            numbers = use.compute(*tensors)
        except (ValueError, TypeError, RuntimeError) as error:
            self._refuse(use, str(error))
            return
        number = self.clock.next_call_id()
        order = (use.index,) if micro_step is None else (number,)
        shape, dtype = tuple(tensors[0].shape), str(tensors[0].dtype)
        ref = self._recording.refs.ref(use.kind, name, use.vpp_stage, micro_step, number, order, shape, dtype)
        observer = self._recording.observer
        observer.record([ref], [observer.put(numbers.reshape(-1))])

    def _refuse(self, use: _Use, reason: str) -> None:
        use.enabled = False
        name = l2_name(use.kind, use.name)
        self._coverage.explain(use.kind, name, reason, stage=use.vpp_stage)
        logger.warning("l2_targets.%s: %s cannot be computed: %s", use.kind, name, reason)

    def close(self) -> None:
        """Let go of the model."""
        self._hooked.clear()
        self._weights.clear()


class _Attention(BeforeCall):
    def __init__(self, owner: L2Hooks, use: _Use) -> None:
        super().__init__(owner.guard)
        self.owner = owner
        self.use = use

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.owner.clock.sampled and self.use.enabled:
            tensors = [value for value in (*args, *kwargs.values()) if self.owner.framework.is_tensor(value)]
            self.owner.of_call(self.use, tensors)


class _Logits(AfterCall):
    def __init__(self, owner: L2Hooks, use: _Use) -> None:
        super().__init__(owner.guard)
        self.owner = owner
        self.use = use

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.owner.clock.sampled and self.use.enabled:
            tensors = [tensor for _, tensor in tensor_leaves(output, self.owner.framework.is_tensor)]
            self.owner.of_call(self.use, tensors)
