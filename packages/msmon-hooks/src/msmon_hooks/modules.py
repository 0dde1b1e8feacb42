"""Forward hooks on modules: activations, and the calls that their gradients belong to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from attrs import define

from msmon_hooks.activation_gradients import INPUT, OUTPUT, ActivationGradients
from msmon_hooks.call_hooks import AfterCall, BeforeCall, CallHooks
from msmon_hooks.clock import Clock
from msmon_hooks.coverage import NOT_CALLED, NOT_FIRED
from msmon_hooks.events import TensorRef
from msmon_hooks.guard import logger
from msmon_hooks.module_calls import Leaf, ModuleCall, Site, element_count, input_leaves, output_leaves, selected
from msmon_hooks.parameters import Weight
from msmon_hooks.recording import Recording
from msmon_hooks.short_names import ShortNames
from msmon_hooks.targets import Sides
from msmon_hooks.training_forwards import TrainingForwards
from msmon_hooks.uncalled_modules import uses_of

_NO_CALL = (
    "no call of a module was seen in a recorded step: where a function that is compiled as a whole (by torch.compile, "
    "by jit) or transformed (by torch.func) calls the model, nothing of its modules is recorded"
)


class _Enter(BeforeCall):
    def __init__(self, owner: ModuleHooks, site: Site) -> None:
        super().__init__(owner.guard)
        self.clock: Clock = owner.clock
        self.owner = owner
        self.site = site

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.clock.sampled:
            self.owner.enter(self.site, args, kwargs)


class _Leave(AfterCall):
    def __init__(self, owner: ModuleHooks, site: Site) -> None:
        super().__init__(owner.guard)
        self.clock: Clock = owner.clock
        self.owner = owner
        self.site = site

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.clock.sampled:
            self.owner.leave(self.site, output)


class _OpenCalls(threading.local):
    """Calls that have begun and not ended, innermost last; the replicas of a data-parallel module are threads."""

    def __init__(self) -> None:
        self.first: list[ModuleCall] = []
        self.again: list[ModuleCall] = []


class ModuleHooks:
    """Reads the inputs and outputs of modules, and has the gradients of both read in backward.

    Inputs are read before the module runs, since it may change them in place; they are listed when it has ended.
    Gradients come from tensor hooks that are set here: unlike backward hooks of modules these add no node to the
    graph, so in-place operations and the order of summation stay what they were.
    """

    def __init__(
        self,
        recording: Recording,
        forwards: TrainingForwards,
        call_hooks: CallHooks,
        gradients: ActivationGradients | None,
    ) -> None:
        self.guard = recording.guards("activations")
        self.clock = recording.clock
        self._recording = recording
        self._framework = recording.framework
        self._coverage = recording.coverage
        self._forwards = forwards
        self._call_hooks = call_hooks
        self.gradients = gradients
        self._forward = recording.request.activations
        self._data_type = "actv" if self._forward else "actv_grad"
        self._hooked: dict[tuple[int, str], _Hooked] = {}
        self._open = _OpenCalls()
        self._numbering = threading.Lock()
        self._called = self._explained = False
        self._settled: set[tuple[int, str]] = set()
        self.next_end: Callable[[], int] = count().__next__
        """Counts the calls that have ended in the step."""

    def attach(self, modules: Mapping[tuple[int, str], Any], names: ShortNames) -> None:
        """Hook every module that is asked for. Called again, what has changed since.

        Args:
            modules: stage and plain name to module, for all modules.
            names: what rows call them.
        """
        wanted: dict[tuple[int, str], tuple[Any, Sides]] = {}
        for (stage, name), module in modules.items():
            sides = self._recording.request.targets.module(stage, name)
            # Containers such as ModuleList are never called.
            if sides is not None and self._framework.is_called(module):
                wanted[stage, name] = (module, sides)
        unseen = self._framework.unseen(modules.values())
        self._explained = self._explained or bool(unseen)
        self._settled = {key for key, (module, _) in wanted.items() if id(module) in unseen}
        known = {key: hooked.enter.site for key, hooked in self._hooked.items()}
        for key, hooked in list(self._hooked.items()):
            if key not in wanted or wanted[key][0] is not hooked.module:
                del self._hooked[key]
                self._call_hooks.remove(hooked.module, hooked.enter)
                self._call_hooks.remove(hooked.module, hooked.leave)
                if not hooked.enter.site.called:
                    self._explain(hooked.enter.site, "removed from the model")
        for key, (module, sides) in wanted.items():
            if key in self._hooked:
                continue
            stage, name = key
            site = known.get(key) or Site(names(stage, name), stage, sides)
            hooked = self._hooked[key] = _Hooked(module, _Enter(self, site), _Leave(self, site))
            self._call_hooks.add(module, hooked.enter)
            self._call_hooks.add(module, hooked.leave)
            if not site.called:
                why = unseen.get(id(module))
                reason = NOT_FIRED if why is None else f"{NOT_FIRED}: {why}"
                self._explain(site, reason)

    def _explain(self, site: Site, reason: str, kind: str = "") -> None:
        self._coverage.explain(self._data_type, _shown(site.name), reason, kind=kind, stage=site.vpp_stage)

    def gradients_ready(self, weights: Sequence[Weight], has_gradient: Callable[[Weight], bool]) -> None:
        """The step's forwards and backwards are over: say what is known of modules that were not called.

        Args:
            weights: all parameters, under plain names.
            has_gradient: whether a parameter has a gradient in this step.
        """
        # What compiled code calls, no hook sees.
        if not self._called or self._framework.runs_compiled():
            return
        sites = {key: hooked.enter.site for key, hooked in self._hooked.items()}
        uncalled = [key for key, site in sites.items() if not site.called and key not in self._settled]
        if uncalled:
            called = [key for key, site in sites.items() if site.called]
            for key, use in uses_of(uncalled, called, weights, has_gradient).items():
                self._settled.add(key)
                self._explain(sites[key], use, NOT_CALLED)

    def close(self) -> None:
        """Let go of the model and forget what was read."""
        self._hooked.clear()
        self.forget()

    def step_ends(self) -> None:
        """Forget what was read in the step."""
        if self.clock.sampled and not self._called and not self._explained:
            self._explained = True
            logger.warning("%s", _NO_CALL)
            self._coverage.note(_NO_CALL, (self._data_type,))
        self._called = False
        if self.clock.sampled:
            self.forget()

    def forget(self) -> None:
        """Of the step in flight nothing more will be read."""
        self.next_end = count().__next__
        self._open.first.clear()
        self._open.again.clear()
        for hooked in self._hooked.values():
            hooked.enter.site.pending.clear()
            hooked.enter.site.micro_step = -1
        if self.gradients is not None:
            self.gradients.step_ends()

    def enter(self, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is about to run."""
        again = self._framework.in_backward()
        if not again and not self._forwards.recording(site.vpp_stage):
            return
        call = self._pending(site) if again else self.begin(site)
        if call is None:
            return
        (self._open.again if again else self._open.first).append(call)
        leaves = input_leaves(site, call.number, args, kwargs, self._framework.is_tensor)
        length, positional = len(args) + len(kwargs), len(args)
        if self._forward and not again:
            chosen = self.chosen(site, "input", leaves, length, positional)
            describe = self._framework.describe
            call.inputs = [(name, describe(tensor)) for name, _, tensor in chosen]
            call.handles = self._measure(chosen)
        if self.gradients is not None:
            self._watch(self.gradients, call, INPUT, leaves, length, positional)

    def leave(self, site: Site, output: Any) -> None:
        """A module has run."""
        again = self._framework.in_backward()
        call = _closed(self._open.again if again else self._open.first, site)
        if call is None:
            return
        is_tensor = self._framework.is_tensor
        leaves = output_leaves(site, call.number, output, is_tensor)
        length = element_count(output, is_tensor)
        if not again:
            call.end = self.next_end()
            if self._forward:
                self._list(call, leaves, length)
            if call.parent is None:
                self._forwards.leave_alone(site.vpp_stage, output)
            if self.gradients is not None and not self._framework.is_recording():
                site.pending.append(call)
        if self.gradients is not None:
            self._watch(self.gradients, call, OUTPUT, leaves, length)

    def site(self, stage: int, name: str) -> Site | None:
        """The module of this plain name, if it is hooked."""
        hooked = self._hooked.get((stage, name))
        return None if hooked is None else hooked.enter.site

    def running(self) -> ModuleCall | None:
        """The innermost call that has begun and not ended in this thread."""
        calls = self._open.again if self._framework.in_backward() else self._open.first
        return calls[-1] if calls else None

    def begin(self, site: Site) -> ModuleCall:
        """A call of a module begins."""
        self._called = True
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
        return ModuleCall(site, step, micro_step, number, parent, self._framework.segment_number())

    def _pending(self, site: Site) -> ModuleCall | None:
        """The call that is being recomputed, if its gradients are not read yet.

        A checkpoint that keeps the graph of the first run has its gradients read there. The other kind builds the
        graph now: micro-step by micro-step, the last segment first, each in the order of its first run.
        """
        if self.gradients is None or not self._framework.is_recording():
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

    def _list(self, call: ModuleCall, leaves: list[Leaf], length: int) -> None:
        chosen = self.chosen(call.site, "output", leaves, length)
        handles = self._measure(chosen)
        describe = self._framework.describe
        refs = [self.ref(call, True, name, *description) for name, description in call.inputs]
        refs += [self.ref(call, False, name, *describe(tensor)) for name, _, tensor in chosen]
        if refs:
            self._recording.observer.record(refs, [*call.handles, *handles])
        elif not leaves:
            reason = "no tensor among its inputs and outputs"
            self._coverage.expect("actv", _shown(call.site.name), reason, stage=call.site.vpp_stage)

    def _watch(
        self,
        gradients: ActivationGradients,
        call: ModuleCall,
        side: tuple[str, int],
        leaves: list[Leaf],
        length: int,
        positional: int | None = None,
    ) -> None:
        grad, position = side
        for index, (name, _, tensor) in enumerate(self.chosen(call.site, grad, leaves, length, positional)):
            if name not in call.watched and self._framework.can_have_gradient(tensor):
                gradients.watch(tensor, call, name, (position, index))
                if not self._framework.is_recording():
                    call.watched |= {name}

    def chosen(
        self, site: Site, side: str, leaves: list[Leaf], length: int, positional: int | None = None
    ) -> list[Leaf]:
        """Those of the tensors on one side of a module that are asked for."""
        if site.unselective:
            return leaves
        wanted = site.sides.of(side)
        if wanted is None:
            return []
        chosen = selected(wanted, leaves, length, positional)
        if chosen is None and side not in site.mismatched:
            site.mismatched.add(side)
            tensors = side.removesuffix("_grad")
            data_type = "actv" if side == tensors else "actv_grad"
            reason = f"{length} elements, not the {wanted.length} that targets says"
            self._coverage.explain(data_type, f"{site.name}.{tensors}", reason, stage=site.vpp_stage)
            logger.warning(
                "targets: %s of %s has %d elements, not %s: not monitored",
                side,
                _shown(site.name),
                length,
                wanted.length,
            )
        return chosen or []

    def _measure(self, leaves: list[Leaf]) -> list[int]:
        """Read tensors now. One that another module has just returned is read again: the program may have written to
        it since, in ways that leave no trace (`x.data`, a kernel of its own)."""
        return self._recording.observer.measure([tensor for _, _, tensor in leaves]) if leaves else []

    def ref(
        self, call: ModuleCall, is_input: bool, name: str, shape: tuple[int, ...], dtype: str, requires_grad: bool
    ) -> TensorRef:
        """The description of a tensor that is listed now."""
        number = self.clock.next_call_id()
        stage, micro_step = call.site.vpp_stage, call.micro_step
        return self._recording.refs.ref(
            "actv", name, stage, micro_step, number, (number,), shape, dtype, is_input, requires_grad
        )


@define(slots=True, eq=False)
class _Hooked:
    module: Any
    enter: _Enter
    leave: _Leave


def _closed(calls: list[ModuleCall], site: Site) -> ModuleCall | None:
    """Take the innermost open call of a module out, and with it what a raised exception left open in it."""
    for index in range(len(calls) - 1, -1, -1):
        if calls[index].site is site:
            call = calls[index]
            del calls[index:]
            return call
    return None


def _shown(name: str) -> str:
    return name or "(root)"
