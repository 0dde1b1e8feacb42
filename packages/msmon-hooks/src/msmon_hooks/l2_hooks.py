"""Hands the tensors that L2 features are computed of to the functions that compute them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

from attrs import define

from msmon_hooks.attention_calls import attention_functions, given_queries_and_keys, queries_and_keys, will_do
from msmon_hooks.call_hooks import AfterCall, BeforeCall, CallHooks
from msmon_hooks.coverage import CAPTURED, NOT_FIRED
from msmon_hooks.guard import logger
from msmon_hooks.interception import intercept
from msmon_hooks.l2_features import has_linear_weight, l2_name
from msmon_hooks.momentum import reason_of
from msmon_hooks.recording import Recording
from msmon_hooks.registrations import Registrations
from msmon_hooks.router_logits import gating_of, logits_of, scoring_part
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
    running: bool = False
    """A call of the module in the training has begun and not ended."""

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
        self._owned = Registrations()
        self._inside: dict[int, _Use] = {}
        self._seen_functions: set[FunctionType] = set()
        self._hint: Callable[[], str] = str
        self._weights: list[_Use] = []
        self._reported: set[str] = set()

    def attach(self, modules: Mapping[tuple[int, str], Any], names: ShortNames) -> None:
        """Hook the modules of every feature; called again, those of the model as it is now."""
        for module, hook in self._hooked:
            self._call_hooks.remove(module, hook)
        self.close()
        self._hint = partial(will_do, dict(modules))
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
        maker = self.framework.weight_maker(use.module) if use.kind in _OF_WEIGHTS else None
        reason = NOT_FIRED if maker is None else "its parametrization was not called in a recorded step"
        self._coverage.expect(use.kind, l2_name(use.kind, use.name), reason, stage=use.vpp_stage)
        if maker is not None:
            self._hook(maker, _Made(self, use))
            return
        if use.kind in _OF_WEIGHTS:
            self._weights.append(use)
            return
        if use.kind == "attention_hook":
            functions = attention_functions(use.module)
            if functions:
                self._look_inside(use, functions)
            else:
                self._hook(use.module, _Attention(self, use))
            return
        gating = gating_of(use.module)
        if gating is not None:
            self._look_inside(use, [gating])
            return
        logits = _Logits(self, use)
        part = scoring_part(use.module, self.framework)
        if part is not None:
            self._hook(part, _Scored(self, logits))
        self._hook(use.module, logits)

    def _hook(self, module: Any, hook: BeforeCall | AfterCall) -> None:
        self._call_hooks.add(module, hook)
        self._hooked.append((module, hook))

    def _look_inside(self, use: _Use, functions: Sequence[FunctionType]) -> None:
        """Have calls of functions seen that the module makes while it runs, with itself as the first argument."""
        self._inside[id(use.module)] = use
        self._hook(use.module, _Begins(self, use))
        self._hook(use.module, _Ends(self, use))
        for function in functions:
            if function not in self._seen_functions:
                self._seen_functions.add(function)
                self._owned.callback(intercept(function, self._called_inside))

    def _called_inside(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = original(*args, **kwargs)
        use = self._inside.get(id(args[0])) if args else None
        if use is not None and use.running and self.clock.sampled and use.enabled:
            self.guard.run(self._of_inside, use, args, kwargs, result)
        return result

    def _of_inside(self, use: _Use, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if use.kind == "attention_hook":
            self.of_call(use, queries_and_keys(args, kwargs), layout="b,s,h,d")
        else:
            self.of_call(use, [result])

    def _report_unmatched(self, kind: str, targets: Targets, known: list[str]) -> None:
        for text in targets.unmatched(f"l2_targets.{kind}", known):
            if text not in self._reported:
                self._reported.add(text)
                logger.warning("%s", text)
                self._coverage.note(text, (kind,))

    def step_begins(self) -> None:
        """Weights are read before the update, like those of `param_origin`."""
        if not self.clock.sampled:
            return
        for use in self._weights:
            if use.enabled:
                self.guard.run(self._of_weight, use, self.framework.weight(use.module))

    def weight_made(self, use: _Use, weight: Any) -> None:
        """A parametrization has computed a weight; the first in a step is read."""
        in_training = not self.framework.in_backward() and self._forwards.recording(use.vpp_stage)
        if in_training and use.step != self.clock.step:
            use.step = self.clock.step
            self._of_weight(use, weight)

    def _of_weight(self, use: _Use, weight: Any) -> None:
        if weight is None:
            self._refuse(use, "the module stores no weight of its own")
        elif self.framework.is_sharded(weight):
            self._refuse(use, "the weight is sharded, and a part does not tell of the whole")
        else:
            self._compute(use, None, l2_name(use.kind, use.name), weight)

    def of_router(self, use: _Use, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, scored: Any) -> None:
        """A router has returned; `scored`: what the layer inside has given it."""
        if self._is_captured(use):
            return
        try:
            logits = logits_of(use.module, args, kwargs, output, scored, self.framework)
        except ValueError as error:
            self._refuse(use, str(error))
        else:
            self.of_call(use, [logits])

    def of_call(self, use: _Use, tensors: list[Any], **options: Any) -> None:
        """A module is called, or has returned; `tensors` are what its feature looks at."""
        if self.framework.in_backward() or not self._forwards.recording(use.vpp_stage):
            return
        needed = 2 if use.kind == "attention_hook" else 1
        if len(tensors) < needed:
            hint = f"; {self._hint()}" if use.kind == "attention_hook" else ""
            self._refuse(use, f"the module has {len(tensors)} tensors, {needed} are needed{hint}")
            return
        micro_step = self.clock.micro_step_of(use.vpp_stage)
        self._compute(use, micro_step, use.row_name(self.clock.step, micro_step), *tensors[:needed], **options)

    def _compute(self, use: _Use, micro_step: int | None, name: str, *tensors: Any, **options: Any) -> None:
        if self._is_captured(use):
            return
        try:
            numbers = use.compute(*tensors, **options)
        except Exception as error:  # of these tensors; those of the next module may be of another kind
            hint = f"; {self._hint()}" if use.kind == "attention_hook" and len(tensors[0].shape) != 4 else ""
            self._refuse(use, f"{reason_of(error)}{hint}")
            return
        number = self.clock.next_call_id()
        order = (use.index,) if micro_step is None else (number,)
        shape, dtype = tuple(tensors[0].shape), str(tensors[0].dtype)
        ref = self._recording.refs.ref(use.kind, name, use.vpp_stage, micro_step, number, order, shape, dtype)
        observer = self._recording.observer
        observer.record([ref], [observer.put(numbers.reshape(-1))])

    def _is_captured(self, use: _Use) -> bool:
        captured = self.framework.is_capturing()
        if captured:
            self._coverage.explain(use.kind, l2_name(use.kind, use.name), CAPTURED, stage=use.vpp_stage)
        return captured

    def _refuse(self, use: _Use, reason: str) -> None:
        use.enabled = False
        name = l2_name(use.kind, use.name)
        self._coverage.explain(use.kind, name, reason, stage=use.vpp_stage)
        logger.warning("l2_targets.%s: %s cannot be computed: %s", use.kind, name, reason)

    def close(self) -> None:
        """Let go of the model."""
        self._hooked.clear()
        self._owned.close()
        self._inside.clear()
        self._seen_functions.clear()
        self._hint = str
        self._weights.clear()


class _Made(AfterCall):
    def __init__(self, owner: L2Hooks, use: _Use) -> None:
        super().__init__(owner.guard)
        self.owner = owner
        self.use = use

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.owner.clock.sampled and self.use.enabled:
            self.owner.weight_made(self.use, output)


class _Attention(BeforeCall):
    def __init__(self, owner: L2Hooks, use: _Use) -> None:
        super().__init__(owner.guard)
        self.owner = owner
        self.use = use

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.owner.clock.sampled and self.use.enabled:
            self.owner.of_call(self.use, given_queries_and_keys(args, kwargs, self.owner.framework.is_tensor))


class _Begins(BeforeCall):
    def __init__(self, owner: L2Hooks, use: _Use) -> None:
        super().__init__(owner.guard)
        self.use = use

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.use.running = True


class _Ends(AfterCall):
    always = True

    def __init__(self, owner: L2Hooks, use: _Use) -> None:
        super().__init__(owner.guard)
        self.use = use

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.use.running = False


class _Logits(AfterCall):
    def __init__(self, owner: L2Hooks, use: _Use) -> None:
        super().__init__(owner.guard)
        self.owner = owner
        self.use = use
        self.scored: Any = None
        """What the layer inside has returned in this call."""

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        scored, self.scored = self.scored, None
        if self.owner.clock.sampled and self.use.enabled:
            self.owner.of_router(self.use, args, kwargs, output, scored)


class _Scored(AfterCall):
    def __init__(self, owner: L2Hooks, logits: _Logits) -> None:
        super().__init__(owner.guard)
        self.owner = owner
        self.logits = logits

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.owner.clock.sampled:
            with contextlib.suppress(ValueError):
                self.logits.scored = logits_of(module, args, kwargs, output, None, self.owner.framework)
