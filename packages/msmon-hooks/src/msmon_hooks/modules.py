"""Forward hooks on modules: activations, and the calls that their gradients belong to."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from itertools import count
from typing import Any

from attrs import define

from msmon_hooks.activation_gradients import INPUT, OUTPUT, ActivationGradients
from msmon_hooks.call_hooks import AfterCall, BeforeCall, ModuleCalls
from msmon_hooks.calls import Call, Leaf, Site, element_count, input_leaves, output_leaves, selected
from msmon_hooks.clock import Clock
from msmon_hooks.coverage import NOT_FIRED, Coverage
from msmon_hooks.events import Observer, TensorRef
from msmon_hooks.framework import Framework
from msmon_hooks.guard import Guarded, logger
from msmon_hooks.measured import Measured
from msmon_hooks.ref_cache import RefCache
from msmon_hooks.short_names import ShortNames
from msmon_hooks.targets import Target, Targets
from msmon_hooks.training_forwards import TrainingForwards


class _Enter(BeforeCall):
    def __init__(self, owner: ModuleHooks, site: Site) -> None:
        self.owner = owner
        self.site = site

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        owner = self.owner
        if owner.clock.sampled and owner.part.enabled:
            try:
                owner.enter(self.site, args, kwargs)
            except Exception as error:
                owner.part.fail(error)


class _Leave(AfterCall):
    def __init__(self, owner: ModuleHooks, site: Site) -> None:
        self.owner = owner
        self.site = site

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        owner = self.owner
        if owner.clock.sampled and owner.part.enabled:
            try:
                owner.leave(self.site, output)
            except Exception as error:
                owner.part.fail(error)


class _OpenCalls(threading.local):
    """Calls that have begun and not ended, innermost last; the replicas of a data-parallel module are threads."""

    def __init__(self) -> None:
        self.first: list[Call] = []
        self.again: list[Call] = []


class ModuleHooks:
    """Reads the inputs and outputs of modules, and has the gradients of both read in backward.

    Inputs are read before the module runs, since it may change them in place; they are listed when it has ended.
    Gradients come from tensor hooks that are set here: unlike backward hooks of modules these add no node to the
    graph, so in-place operations and the order of summation stay what they were.
    """

    def __init__(
        self,
        *,
        framework: Framework,
        clock: Clock,
        observer: Observer,
        part: Guarded,
        coverage: Coverage,
        forwards: TrainingForwards,
        gradients: ActivationGradients | None,
        forward: bool = True,
    ) -> None:
        self.framework = framework
        self.clock = clock
        self.part = part
        self._observer = observer
        self._coverage = coverage
        self._forwards = forwards
        self._gradients = gradients
        self._forward = forward
        self._data_type = "actv" if forward else "actv_grad"
        self._hooked: dict[tuple[int, str], _Hooked] = {}
        self._open = _OpenCalls()
        self._numbering = threading.Lock()
        self._next_end = count().__next__
        self._measured = Measured(framework)
        self._refs = RefCache()

    def attach(
        self,
        modules: Mapping[tuple[int, str], Any],
        targets: Targets,
        names: ShortNames,
        calls: ModuleCalls,
    ) -> None:
        """Hook every module that `targets` asks for. Called again, what has changed since.

        Args:
            modules: stage and plain name to module, for all modules.
            targets: which of them, and which of their tensors.
            names: what rows call them.
            calls: takes the hooks.
        """
        wanted: dict[tuple[int, str], tuple[Any, Target]] = {}
        for (stage, name), module in modules.items():
            target = targets.module(stage, name)
            # Containers such as ModuleList are never called.
            if target is not None and self.framework.is_called(module):
                wanted[stage, name] = (module, target)
        unseen = self.framework.unseen(modules.values())
        known = {key: hooked.enter.site for key, hooked in self._hooked.items()}
        for key, hooked in list(self._hooked.items()):
            if key not in wanted or wanted[key][0] is not hooked.module:
                del self._hooked[key]
                calls.remove(hooked.module, hooked.enter)
                calls.remove(hooked.module, hooked.leave)
                if not hooked.enter.site.called:
                    self._explain(hooked.enter.site, "removed from the model")
        for key, (module, target) in wanted.items():
            if key in self._hooked:
                continue
            stage, name = key
            site = known.get(key) or Site(names(stage, name), stage, target)
            hooked = self._hooked[key] = _Hooked(module, _Enter(self, site), _Leave(self, site))
            calls.add(module, hooked.enter)
            calls.add(module, hooked.leave)
            if not site.called:
                why = unseen.get(id(module))
                reason = NOT_FIRED if why is None else f"{NOT_FIRED}: {why}"
                self._explain(site, reason)

    def _explain(self, site: Site, reason: str) -> None:
        self._coverage.explain(self._data_type, _shown(site.name), reason, stage=site.vpp_stage)

    def close(self) -> None:
        """Let go of the model and forget what was read."""
        self._hooked.clear()
        self.step_ends()

    def step_ends(self) -> None:
        """Forget what was read in the step."""
        self._next_end = count().__next__
        self._measured.clear()
        self._open.first.clear()
        self._open.again.clear()
        for hooked in self._hooked.values():
            hooked.enter.site.pending.clear()
        if self._gradients is not None:
            self._gradients.step_ends()

    def enter(self, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is about to run."""
        again = self.framework.in_backward()
        if not again and not self._forwards.recording(site.vpp_stage):
            return
        call = self._pending(site) if again else self._begin(site)
        if call is None:
            return
        (self._open.again if again else self._open.first).append(call)
        leaves = input_leaves(site, call.number, args, kwargs, self.framework.is_tensor)
        length, positional = len(args) + len(kwargs), len(args)
        if self._forward and not again:
            chosen = self._chosen(site, "input", leaves, length, positional)
            describe = self.framework.describe
            call.inputs = [(name, describe(tensor)) for name, _, tensor in chosen]
            call.handles = self._measured.handles([tensor for _, _, tensor in chosen], self._observer.measure)
        if self._gradients is not None:
            self._watch(self._gradients, call, INPUT, leaves, length, positional)

    def leave(self, site: Site, output: Any) -> None:
        """A module has run."""
        again = self.framework.in_backward()
        call = _closed(self._open.again if again else self._open.first, site)
        if call is None:
            return
        is_tensor = self.framework.is_tensor
        leaves = output_leaves(site, call.number, output, is_tensor)
        length = element_count(output, is_tensor)
        if not again:
            call.end = self._next_end()
            if self._forward:
                self._list(call, leaves, length)
            if self._gradients is not None and not self.framework.is_recording():
                site.pending.append(call)
        if self._gradients is not None:
            self._watch(self._gradients, call, OUTPUT, leaves, length)

    def _begin(self, site: Site) -> Call:
        step, micro_step = self.clock.step, self.clock.micro_step_of(site.vpp_stage)
        with self._numbering:
            if site.micro_step != micro_step or site.step != step:
                site.step, site.micro_step, site.calls = step, micro_step, 0
            number = site.calls
            site.calls += 1
        if not site.called:
            site.called = True
            self._coverage.withdraw(self._data_type, _shown(site.name), stage=site.vpp_stage)
        parent = self._open.first[-1] if self._open.first else None
        return Call(site, step, micro_step, number, parent, self.framework.segment_number())

    def _pending(self, site: Site) -> Call | None:
        """The call that is being recomputed, if its gradients are not read yet.

        A checkpoint that keeps the graph of the first run has its gradients read there. The other kind builds the
        graph now: micro-step by micro-step, the last segment first, each in the order of its first run.
        """
        if self._gradients is None or not self.framework.is_recording():
            return None
        calls = [call for call in site.pending if call.step == self.clock.step]
        if not calls:
            return None
        outer = self._open.again[-1] if self._open.again else None
        inner = [call for call in calls if outer is not None and call.parent is outer]
        if not inner:
            running = self.clock.backward_micro_step
            micro_step = running if any(call.micro_step == running for call in calls) else calls[0].micro_step
            inner = [call for call in calls if call.micro_step == micro_step]
            inner = [call for call in inner if call.segment == inner[-1].segment]
        site.pending.remove(inner[0])
        return inner[0]

    def _list(self, call: Call, leaves: list[Leaf], length: int) -> None:
        chosen = self._chosen(call.site, "output", leaves, length)
        handles = self._measured.handles([tensor for _, _, tensor in chosen], self._observer.measure)
        describe = self.framework.describe
        refs = [self._ref(call, True, name, *description) for name, description in call.inputs]
        refs += [self._ref(call, False, name, *describe(tensor)) for name, _, tensor in chosen]
        if refs:
            self._observer.record(refs, [*call.handles, *handles])
        elif not leaves:
            reason = "no tensor among its inputs and outputs"
            self._coverage.expect("actv", _shown(call.site.name), reason, stage=call.site.vpp_stage)

    def _watch(
        self,
        gradients: ActivationGradients,
        call: Call,
        side: tuple[str, int],
        leaves: list[Leaf],
        length: int,
        positional: int | None = None,
    ) -> None:
        slot, position = side
        for index, (name, _, tensor) in enumerate(self._chosen(call.site, slot, leaves, length, positional)):
            if name not in call.watched and self.framework.can_have_gradient(tensor):
                gradients.watch(tensor, call, name, (position, index))
                if not self.framework.is_recording():
                    call.watched |= {name}

    def _chosen(
        self, site: Site, slot: str, leaves: list[Leaf], length: int, positional: int | None = None
    ) -> list[Leaf]:
        if site.unselective:
            return leaves
        selector = site.target.selector(slot)
        if selector is None:
            return []
        chosen = selected(selector, leaves, length, positional)
        if chosen is None and slot not in site.mismatched:
            site.mismatched.add(slot)
            side = slot.removesuffix("_grad")
            data_type = "actv" if slot == side else "actv_grad"
            wanted = f"{length} elements, not the {selector.length} that targets says"
            self._coverage.explain(data_type, f"{site.name}.{side}", wanted, stage=site.vpp_stage)
            logger.warning(
                "targets: %s of %s has %s: not monitored",
                slot,
                _shown(site.name),
                f"{length} elements, not {selector.length}",
            )
        return chosen or []

    def _ref(
        self, call: Call, is_input: bool, name: str, shape: tuple[int, ...], dtype: str, requires_grad: bool
    ) -> TensorRef:
        number = self.clock.next_call_id()
        stage, micro_step = call.site.vpp_stage, call.micro_step
        return self._refs.ref("actv", name, stage, micro_step, number, (number,), shape, dtype, is_input, requires_grad)


@define(slots=True, eq=False)
class _Hooked:
    module: Any
    enter: _Enter
    leave: _Leave


def _closed(calls: list[Call], site: Site) -> Call | None:
    """Take the innermost open call of a module out, and with it what a raised exception left open in it."""
    for index in range(len(calls) - 1, -1, -1):
        if calls[index].site is site:
            call = calls[index]
            del calls[index:]
            return call
    return None


def _shown(name: str) -> str:
    return name or "(root)"
