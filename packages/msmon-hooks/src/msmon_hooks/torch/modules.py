"""Forward hooks on modules: activations, and the calls that their gradients belong to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from attrs import define, field
from torch import nn

from msmon_hooks._events import Observer, TensorRef
from msmon_hooks.clock import Clock
from msmon_hooks.coverage import Coverage
from msmon_hooks.guard import Part
from msmon_hooks.names import Path, leaf_name, plain_name, tensor_leaves
from msmon_hooks.registrations import Registrations
from msmon_hooks.targets import Target, Targets
from msmon_hooks.torch.activation_gradients import ActivationGradients
from msmon_hooks.torch.hooks import Hook
from msmon_hooks.torch.measured import Measured
from msmon_hooks.torch.parameters import is_tensor
from msmon_hooks.torch.wrappers import wrapper_prefix


def in_backward() -> bool:
    """Whether autograd is running a backward in this thread: a forward then is a recomputation (checkpointing)."""
    current = getattr(torch._C, "_current_graph_task_id", None)
    return current is not None and current() != -1


@define(slots=True, eq=False)
class Site:
    """One monitored module, and what is remembered of it between calls."""

    name: str
    vpp_stage: int
    target: Target
    plain_input: bool | None = None
    """Whether positional input 0 was the only tensor at the first recorded call, and so has no suffix."""
    micro_step: tuple[int, int] = (-1, -1)
    calls: int = 0
    """Calls in :attr:`micro_step`."""
    open: list[Call] = field(factory=list)
    """Calls that have begun and not ended, innermost last."""
    unhooked: list[Call] = field(factory=list)
    """Calls whose forward built no graph (reentrant checkpointing): the recomputation does."""
    warned: bool = False
    called: bool = False


@define(slots=True, eq=False)
class Call:
    """One call of a module in one micro-step."""

    site: Site
    step: int
    micro_step: int
    forward: int
    base: str
    """Name of the module, with ``@1`` and so on from the second call in a micro-step."""
    end: int = -1
    """Position in the order in which modules end their forward; -1 while the call is open."""
    inputs: list[tuple[str, torch.Size, torch.dtype, bool]] = field(factory=list)
    handles: list[int] = field(factory=list)
    graph: bool = False
    """Whether a tensor of this call takes part in differentiation."""


class _Enter(Hook):
    def __init__(self, owner: ModuleHooks, site: Site) -> None:
        self.owner = owner
        self.site = site

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.owner.clock.sampled and self.owner.part.enabled:
            self.owner.part.run(self.owner.enter, self.site, args, kwargs)


class _Leave(Hook):
    def __init__(self, owner: ModuleHooks, site: Site) -> None:
        self.owner = owner
        self.site = site

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.owner.clock.sampled and self.owner.part.enabled:
            self.owner.part.run(self.owner.leave, self.site, output)


class ModuleHooks:
    """Reads the inputs and outputs of modules, and has the gradients of both read in backward.

    Inputs are read before the module runs, since it may change them in place; they are listed when it has ended.
    Gradients come from tensor hooks that are set here: unlike backward hooks of modules these add no node to the
    graph, so in-place operations and the order of summation stay what they were.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        observer: Observer,
        part: Part,
        coverage: Coverage,
        training: TrainingForwards,
        gradients: ActivationGradients | None,
        forward: bool = True,
    ) -> None:
        self.clock = clock
        self.part = part
        self._observer = observer
        self._coverage = coverage
        self._training = training
        self._gradients = gradients
        self._forward = forward
        self._ended = 0
        self._measured = Measured()
        self._data_type = "actv" if forward else "actv_grad"

    def attach(self, models: Sequence[nn.Module], targets: Targets, registrations: Registrations) -> None:
        """Hook every module that ``targets`` asks for."""
        for stage, model in enumerate(models):
            for name, module in named_modules(model):
                target = targets.module(stage, name)
                # Containers such as ModuleList are never called.
                if target is None or type(module).forward is nn.Module.forward:
                    continue
                site = Site(name, stage, target)
                self._coverage.expect(self._data_type, _shown(name))
                registrations.add(module.register_forward_pre_hook(_Enter(self, site), with_kwargs=True))
                registrations.add(module.register_forward_hook(_Leave(self, site), with_kwargs=True))
        registrations.callback(self.step_ends)

    def step_ends(self) -> None:
        """Forget what was read in the step."""
        self._ended = 0
        self._measured.clear()
        if self._gradients is not None:
            self._gradients.step_ends()

    def enter(self, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is about to run."""
        if in_backward():
            self._enter_again(site, args, kwargs)
            return
        if not self._training.recording(site.vpp_stage):
            return
        call = self._begin(site)
        leaves = list(_input_leaves(site, args, kwargs))
        if self._forward:
            chosen = list(self._chosen(site, "input", args, leaves))
            call.inputs = [(name, t.shape, t.dtype, t.requires_grad) for name, _, t in chosen]
            call.handles = self._read([t for _, _, t in chosen])
        self._hook(call, "input", args, leaves)

    def leave(self, site: Site, output: Any) -> None:
        """A module has run."""
        if not site.open or (not in_backward() and not self._training.recording(site.vpp_stage)):
            return
        call = site.open.pop()
        leaves = [(leaf_name(f"{call.base}.output", path), first, t) for path, first, t in _output_leaves(output)]
        if call.end < 0:
            call.end = self._ended
            self._ended += 1
            if self._forward:
                chosen = list(self._chosen(site, "output", output, leaves))
                outputs = [(name, t.shape, t.dtype, t.requires_grad) for name, _, t in chosen]
                handles = self._read([t for _, _, t in chosen])
                refs = [self._ref(call, True, *one) for one in call.inputs]
                refs += [self._ref(call, False, *one) for one in outputs]
                if not refs:
                    self._coverage.expect("actv", _shown(site.name), "no tensor among its inputs and outputs")
                self._observer.record(refs, call.handles + handles)
        self._hook(call, "output", output, leaves)
        if not call.graph and self._gradients is not None and not torch.is_grad_enabled():
            site.unhooked.append(call)

    def _begin(self, site: Site) -> Call:
        now = (self.clock.step, self.clock.micro_step)
        if site.micro_step != now:
            if site.micro_step[0] != now[0]:
                site.unhooked.clear()
            site.micro_step, site.calls = now, 0
        # A forward that raised left its calls open.
        while site.open and site.open[-1].forward != self._training.count:
            site.open.pop()
        base = site.name if site.calls == 0 else f"{site.name}@{site.calls}"
        site.calls += 1
        if not site.called:
            site.called = True
            self._coverage.withdraw(self._data_type, _shown(site.name))
        call = Call(site, *now, forward=self._training.count, base=base)
        site.open.append(call)
        return call

    def _enter_again(self, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A recomputation: the activations were read, but where the first run built no graph, this one does."""
        pending = [call for call in site.unhooked if call.step == self.clock.step]
        if self._gradients is None or not pending or not torch.is_grad_enabled():
            return
        # Checkpointed segments are recomputed last one first, within the earliest micro-step still to come.
        earliest = min(call.micro_step for call in pending)
        call = [call for call in pending if call.micro_step == earliest][-1]
        site.unhooked.remove(call)
        site.open.append(call)
        self._hook(call, "input", args, list(_input_leaves(site, args, kwargs)))

    def _hook(self, call: Call, slot: str, value: Any, leaves: list[tuple[str, str, torch.Tensor]]) -> None:
        if self._gradients is None:
            return
        for index, (name, _, tensor) in enumerate(self._chosen(call.site, f"{slot}_grad", value, leaves)):
            if tensor.requires_grad:
                call.graph = True
                self._gradients.watch(tensor, call, name, (slot == "output", index))

    def _chosen(
        self, site: Site, slot: str, value: Any, leaves: list[tuple[str, str, torch.Tensor]]
    ) -> Iterator[tuple[str, str, torch.Tensor]]:
        selector = site.target.selector(slot)
        if selector is None:
            return
        length = len(value) if isinstance(value, tuple | list) else 1
        if selector.length is not None and selector.length != length:
            if not site.warned:
                site.warned = True
                self._coverage.note(
                    f"{site.name}: targets says {slot} has {selector.length} elements, it has {length}: not monitored"
                )
            return
        for leaf in leaves:
            if selector.admits(leaf[1]):
                yield leaf

    def _read(self, tensors: list[torch.Tensor]) -> list[int]:
        handles = [self._measured.get(tensor) for tensor in tensors]
        unread = [index for index, handle in enumerate(handles) if handle is None]
        if unread:
            for index, handle in zip(unread, self._observer.measure([tensors[i] for i in unread]), strict=True):
                handles[index] = handle
                self._measured.put(tensors[index], handle)
        return [handle if handle is not None else -1 for handle in handles]

    def _ref(
        self, call: Call, is_input: bool, name: str, shape: torch.Size, dtype: torch.dtype, requires_grad: bool
    ) -> TensorRef:
        number = self.clock.next_call_id()
        return TensorRef(
            data_type="actv",
            name=name,
            vpp_stage=call.site.vpp_stage,
            micro_step=call.micro_step,
            call_id=number,
            order=(number,),
            shape=tuple(shape),
            dtype=str(dtype),
            is_input=is_input,
            requires_grad=requires_grad,
        )


class TrainingForwards:
    """Tells the clock when a training forward of the root begins, and the hooks whether one is running.

    An evaluation between two steps (``model.eval()`` or ``torch.no_grad()``) is not part of the training.
    """

    def __init__(self, clock: Clock, part: Part) -> None:
        self.count = 0
        """Training forwards so far, over all steps."""
        self._clock = clock
        self._part = part
        self._roots: list[nn.Module] = []
        self._inside: list[bool | None] = []

    def attach(self, models: Sequence[nn.Module], registrations: Registrations) -> None:
        """Hook the roots; the first of several chunks counts the micro-steps."""
        self._roots = list(models)
        self._inside = [None for _ in models]
        for stage, model in enumerate(models):
            registrations.add(model.register_forward_pre_hook(_RootEnters(self, stage), with_kwargs=True))
        registrations.callback(self._roots.clear)

    def attach_ends(self, registrations: Registrations) -> None:
        """Hook the end of the roots; call it after all other forward hooks were set, so that it runs last."""
        for stage, model in enumerate(self._roots):
            registrations.add(model.register_forward_hook(_RootLeaves(self, stage)))

    def enter(self, stage: int) -> None:
        """A forward of a root begins."""
        if in_backward():
            return
        training = self._training(stage)
        self._inside[stage] = training
        if training:
            self.count += 1
            if stage == 0:
                self._clock.forward_begins()

    def leave(self, stage: int) -> None:
        """A forward of a root has ended."""
        if not in_backward():
            self._inside[stage] = None

    def recording(self, stage: int) -> bool:
        """Whether a module that runs now belongs to the training.

        Inside a training forward all modules do, also those that run under ``no_grad`` (reentrant checkpointing,
        frozen towers) or in evaluation mode (frozen BatchNorm). A module that is called on its own does when
        gradients are enabled and its root is in training mode.
        """
        inside = self._inside[stage]
        return inside if inside is not None else self._training(stage)

    def _training(self, stage: int) -> bool:
        return bool(self._roots) and self._roots[stage].training and torch.is_grad_enabled()


class _RootEnters(Hook):
    def __init__(self, owner: TrainingForwards, stage: int) -> None:
        self.owner = owner
        self.stage = stage

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.owner._part.run(self.owner.enter, self.stage)


class _RootLeaves(Hook):
    def __init__(self, owner: TrainingForwards, stage: int) -> None:
        self.owner = owner
        self.stage = stage

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        self.owner._part.run(self.owner.leave, self.stage)


def _shown(name: str) -> str:
    return name or "(root)"


def named_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Modules by plain name; of a wrapper and what it wraps, which share a name, the inner one."""
    prefix = wrapper_prefix(model)
    return list({plain_name(name, prefix): module for name, module in model.named_modules()}.items())


def _input_leaves(site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, str, torch.Tensor]]:
    leaves = [*tensor_leaves(args, is_tensor), *tensor_leaves(kwargs, is_tensor)]
    if site.plain_input is None and leaves:
        site.plain_input = len(leaves) == 1 and leaves[0][0] == ("0",)
    calls = max(site.calls - 1, 0)
    base = (site.name if calls == 0 else f"{site.name}@{calls}") + ".input"
    for path, tensor in leaves:
        plain = site.plain_input and path == ("0",)
        yield (base if plain else leaf_name(base, path)), path[0], tensor


def _output_leaves(output: Any) -> Iterator[tuple[Path, str, torch.Tensor]]:
    leaves = list(tensor_leaves(output, is_tensor))
    if isinstance(output, tuple | list) and len(output) == 1 and [path for path, _ in leaves] == [("0",)]:
        leaves = [((), leaves[0][1])]
    for path, tensor in leaves:
        yield path, path[0] if path else "0", tensor
