"""Looking into compiled graphs: everything that is put onto the model and into the compiler for it."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from torch import fx, nn

from msmon_hooks.call_hooks import AfterCall, BeforeCall, CallHooks
from msmon_hooks.guard import Guarded, logger
from msmon_hooks.modules import ModuleHooks
from msmon_hooks.recording import Recording
from msmon_hooks.registrations import Registrations
from msmon_hooks.torch.call_hooks import hook_functions
from msmon_hooks.torch.compiled import interfaces
from msmon_hooks.torch.compiled.gate import GATE
from msmon_hooks.torch.compiled.graphs import listen, listen_no_more
from msmon_hooks.torch.compiled.live import LiveMarks
from msmon_hooks.torch.compiled.marks import MarkInputs, MarkOutputs
from msmon_hooks.torch.compiled.operator import MARK, NOTE, when_run
from msmon_hooks.torch.compiled.rows import RowsInside
from msmon_hooks.torch.compiled.stripping import strip
from msmon_hooks.torch.compiled.traced import place_marks, take_out
from msmon_hooks.torch.compiled.trial import objection
from msmon_hooks.training_forwards import TrainingForwards

AGAIN = (
    "inside_compiled: what torch.compile has compiled so far has no marks, so it is compiled once more at its next call"
)


class InsideCompiled:
    """Reads the tensors of modules that run inside of compiled graphs.

    Args:
        recording: the request in force.
        forwards: says which forwards belong to the training.
        call_hooks: hooks on calls of modules where they can be seen.
        activations: reads those modules.
        lasting: owns the marks. They stay on while nothing is read: what is compiled meanwhile would be used later.
        attach: `msmon_hooks.torch.attach`, for a trial.
    """

    def __init__(
        self,
        recording: Recording,
        forwards: TrainingForwards,
        call_hooks: CallHooks,
        activations: ModuleHooks,
        lasting: Registrations,
        attach: Callable[..., Any],
    ) -> None:
        self._attach = attach
        self.guard = recording.guards("activations inside of compiled graphs")
        self.recompute = recording.request.inside_compiled == "all"
        self._recording = recording
        self._forwards = forwards
        self._call_hooks = call_hooks
        self._activations = activations
        self._refused = ""
        self._open = _Open()
        self._told = 0
        self._said: set[str] = set()
        self.identity = ""
        """What is marked, in a few letters."""
        self._lasting = lasting
        self._marked: dict[tuple[int, str], nn.Module] = {}
        self._entries: dict[tuple[int, str], tuple[nn.Module, _Enters, _Leaves]] = {}
        self._registrations = Registrations()
        self.rows = RowsInside(
            recording,
            forwards,
            activations,
            backward_node=interfaces.backward_node,
            next_node=interfaces.next_node,
            entry=lambda: self._open.modules[-1] if self._open.modules else None,
        )
        self.live = LiveMarks(self.rows)

    def attach(self, modules: Mapping[tuple[int, str], nn.Module]) -> None:
        """Mark the modules that are asked for. Called again: what has changed since."""
        if self._refused:
            return
        first = not len(self._registrations)
        if first:
            self._refused = objection(self._attach)
            if self._refused:
                self.note(f"inside_compiled is off: {self._refused}")
                return
            _COMPILER.enter(self)
            self._registrations.callback(lambda: _COMPILER.leave(self))
            switches = self._recording.clock.switches
            switches.append(_COMPILER.refresh)
            self._registrations.callback(lambda: switches.remove(_COMPILER.refresh))
            listen(self.rows)
            self._registrations.callback(lambda: listen_no_more(self.rows))
        fresh = [self._mark(key, module) for key, module in modules.items()]
        self.identity = self._identify()
        _COMPILER.refresh()
        if any(fresh) and interfaces.has_compiled():
            interfaces.forget_compiled()
            logger.info(AGAIN)
            self._recording.coverage.note(AGAIN)

    def _mark(self, key: tuple[int, str], module: nn.Module) -> bool:
        """Mark a module if it is asked for; whether it had no such marks before."""
        inner = getattr(module, "_orig_mod", module)
        wanted = (f"{key[0]}:{key[1]}", self._activations.gradients is not None)
        is_called = self._recording.framework.is_called(module)
        fresh = False
        if not is_called or self._recording.request.targets.module(*key) is None:
            _unmark(inner)
        else:
            self._marked[key] = inner
            known = _marks.get(inner)
            fresh = known is None or known[0] != wanted
            if fresh:
                _unmark(inner)
                _put_marks(inner, *wanted)
                reference = weakref.ref(inner)
                self._lasting.callback(lambda: _unmark(reference()))
        if is_called and (key not in self._entries or self._entries[key][0] is not module):
            self._entries[key] = (module, _Enters(self, key), _Leaves(self, key))
            for hook in self._entries[key][1:]:
                self._call_hooks.add(module, hook)
        return fresh

    def close(self) -> None:
        """Take everything off; harmless when called again."""
        self._registrations.close()
        self._marked.clear()
        self._entries.clear()
        self.rows.forget()

    def forget(self) -> None:
        """Of the step in flight nothing more will be read."""
        self.rows.forget()
        self.live.forget()
        self._open.modules.clear()

    def step_ends(self) -> None:
        """The step is over."""
        self.forget()
        tell = self._recording.request.on_inside
        if tell is not None and len(self.rows.how) > self._told:
            self._told = len(self.rows.how)
            found: dict[str, dict[str, list[str]]] = {}
            for (data_type, stage, name), how in sorted(self.rows.how.items()):
                found.setdefault(how, {}).setdefault(data_type, []).append(f"{stage}:{name}" if stage else name)
            tell(found)

    def _identify(self) -> str:
        names = sorted(f"{stage}:{name}" for stage, name in self._marked)
        text = repr((names, self._activations.gradients is not None, self.recompute))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def wanted(self) -> bool:
        """Whether graphs that are compiled or looked for now should have marks."""
        return self._recording.clock.sampled and self.guard.enabled and not self._open.beside

    def entry(self) -> str | None:
        """Stage and name of the module whose call has led here."""
        return "{}:{}".format(*self._open.modules[-1]) if self._open.modules else None

    def note(self, text: str) -> None:
        """Say something of a graph, once."""
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)
            self._recording.coverage.note(text)

    def enters(self, key: tuple[int, str]) -> None:
        """A module is called where hooks see it."""
        framework = self._recording.framework
        if not self._open.modules and not framework.in_backward() and self._recording.clock.sampled:
            beside = not self._forwards.recording(key[0])
            if beside is not self._open.beside:
                self._open.beside = beside
                _COMPILER.refresh()
        self._open.modules.append(key)

    def leaves(self, key: tuple[int, str]) -> None:
        """It has ended."""
        found = self._open.modules
        for index in range(len(found) - 1, -1, -1):
            if found[index] == key:
                del found[index:]
                break
        if not found and self._open.beside:
            self._open.beside = False
            _COMPILER.refresh()


_marks: weakref.WeakKeyDictionary[nn.Module, tuple[tuple[str, bool], Registrations]] = weakref.WeakKeyDictionary()
"""Name in marks and whether gradients are marked, and what takes the marks off."""


def _put_marks(module: nn.Module, name: str, gradients: bool) -> None:
    owned = Registrations()
    owned.add(module.register_forward_pre_hook(MarkInputs(name, gradients=gradients), with_kwargs=True))
    owned.add(module.register_forward_hook(MarkOutputs(name, gradients=gradients), with_kwargs=True))
    _marks[module] = ((name, gradients), owned)


def _unmark(module: nn.Module | None) -> None:
    known = None if module is None else _marks.pop(module, None)
    if known is not None:
        known[1].close()


class _Open(threading.local):
    """Modules whose calls have begun and not ended in one thread."""

    def __init__(self) -> None:
        self.modules: list[tuple[int, str]] = []
        self.beside = False
        """They are no part of the training."""


class _Enters(BeforeCall):
    def __init__(self, owner: InsideCompiled, key: tuple[int, str]) -> None:
        super().__init__(owner.guard)
        self.owner = owner
        self.key = key

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.owner.enters(self.key)


class _Leaves(AfterCall):
    def __init__(self, owner: InsideCompiled, key: tuple[int, str]) -> None:
        super().__init__(owner.guard)
        self.owner = owner
        self.key = key

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.owner.leaves(self.key)


class _Compiler:
    """What is changed of the compiler while anybody looks into graphs."""

    def __init__(self) -> None:
        self._users: list[InsideCompiled] = []
        self._registrations = Registrations()
        self._part = Guarded("graphs of torch.compile")

    def enter(self, user: InsideCompiled) -> None:
        self._users.append(user)
        if len(self._users) > 1:
            return
        for undo in (
            interfaces.skip_as_frame(MarkInputs.__call__, MarkOutputs.__call__, *hook_functions()),
            interfaces.see_graphs(self._traced, self._failed),
            interfaces.strip_joint_graphs(self._strip, self._identity),
            interfaces.see_values((MARK, NOTE)),
            interfaces.before_code(self._place),
        ):
            self._registrations.callback(undo)
        when_run(self._look)

    def leave(self, user: InsideCompiled) -> None:
        self._users.remove(user)
        self.refresh()
        if not self._users:
            self._registrations.close()

    def _identity(self) -> str:
        return "msmon-1" + ("+" if any(user.recompute for user in self._users) else "")

    def refresh(self) -> None:
        """Open or shut the gate."""
        users = [user for user in self._users if user.guard.enabled]
        is_open = any(user.wanted for user in users)
        GATE.marks = "-".join(user.identity for user in users) if is_open else ""

    def _traced(self, graph_module: fx.GraphModule, backend: str, options: Any) -> bool:
        try:
            reason = _objection_to(backend, options)
            wrapped = [] if reason else place_marks(graph_module, self._entry())
        except Exception as error:
            self._fail(error)
            reason, wrapped = "", []
        if not self._users or reason:
            take_out(graph_module)
        for user in self._users:
            if reason:
                user.note(reason)
            for leaf in wrapped:
                user.rows.cannot_read(leaf)
        return bool(self._users) and not reason and bool(GATE.marks)

    def _failed(self, graph_module: fx.GraphModule, error: Exception) -> None:
        take_out(graph_module)
        self._fail(error)

    def _entry(self) -> str | None:
        return next((entry for user in self._users if (entry := user.entry()) is not None), None)

    def _strip(self, graph: fx.Graph) -> None:
        try:
            strip(graph)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        for user in self._users:
            user.guard.fail(error)
        self.refresh()

    def _look(self, tensor: Any, text: str) -> None:
        for user in self._users:
            if user.wanted and user.live.look(tensor, text):
                return

    def _place(self, scheduler: Any, graph: Any) -> None:
        from msmon_hooks.torch.compiled.placing import place

        try:
            place(scheduler, graph, recompute=any(user.recompute for user in self._users))
        except Exception as error:
            self._fail(error)


def _objection_to(backend: str, options: Any) -> str:
    """Why nothing of a graph is read, or nothing."""
    if backend not in interfaces.BACKENDS:
        return (
            f"inside_compiled: of graphs of the backend {backend} only the entries are recorded; graphs of "
            f"{', '.join(interfaces.BACKENDS)} can be looked into"
        )
    if interfaces.PASS in options:
        return (
            f"inside_compiled: torch.compile was given {interfaces.PASS} in its options, which takes the place of what "
            f"is needed here, so only the entries are recorded; set torch._inductor.config.{interfaces.PASS} before "
            "set_monitor"
        )
    return ""


_COMPILER = _Compiler()
