"""Looking into compiled graphs: which modules are marked, which of their calls are seen, what becomes of the rows."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from msmon_hooks.call_hooks import AfterCall, BeforeCall, CallHooks
from msmon_hooks.guard import logger
from msmon_hooks.modules import ModuleHooks
from msmon_hooks.recording import Recording
from msmon_hooks.registrations import Registrations
from msmon_hooks.torch.compiled import interfaces
from msmon_hooks.torch.compiled.compiler import COMPILER
from msmon_hooks.torch.compiled.graphs import listen, listen_no_more
from msmon_hooks.torch.compiled.leaves import Leaf
from msmon_hooks.torch.compiled.live import LiveMarks
from msmon_hooks.torch.compiled.marked_modules import marks_of, put_marks, unmark
from msmon_hooks.torch.compiled.rows import RowsInside
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
        self._live = LiveMarks(self.rows)

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
            COMPILER.enter(self)
            self._registrations.callback(lambda: COMPILER.leave(self))
            switches = self._recording.clock.switches
            switches.append(COMPILER.refresh)
            self._registrations.callback(lambda: switches.remove(COMPILER.refresh))
            listen(self.rows)
            self._registrations.callback(lambda: listen_no_more(self.rows))
        fresh = [self._mark(key, module) for key, module in modules.items()]
        self.identity = self._identify()
        COMPILER.refresh()
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
            unmark(inner)
        else:
            self._marked[key] = inner
            fresh = marks_of(inner) != wanted
            if fresh:
                unmark(inner)
                put_marks(inner, *wanted)
                reference = weakref.ref(inner)
                self._lasting.callback(lambda: unmark(reference()))
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
        self._live.forget()
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

    def cannot_read(self, leaf: Leaf) -> None:
        """A tensor inside of a graph has no rows."""
        self.rows.cannot_read(leaf)

    def backward_is_compiled(self) -> None:
        """The backward that begins is compiled as a whole."""
        self.rows.backward_is_compiled()

    def look(self, tensor: Any, text: str) -> bool:
        """A mark is run that a backend has left in its graph; whether it is one of this monitor."""
        return self._live.look(tensor, text)

    def enters(self, key: tuple[int, str]) -> None:
        """A module is called where hooks see it."""
        framework = self._recording.framework
        if not self._open.modules and not framework.in_backward() and self._recording.clock.sampled:
            beside = not self._forwards.recording(key[0])
            if beside is not self._open.beside:
                self._open.beside = beside
                COMPILER.refresh()
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
            COMPILER.refresh()


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
