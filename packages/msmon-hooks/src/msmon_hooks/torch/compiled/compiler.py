"""What is changed of the compiler while anybody looks into its graphs."""

from __future__ import annotations

from typing import Any, Protocol

from torch import fx

from msmon_hooks import __version__
from msmon_hooks.guard import Guarded
from msmon_hooks.hooks import Hook
from msmon_hooks.registrations import Registrations
from msmon_hooks.torch.call_hooks import hook_functions
from msmon_hooks.torch.compiled import interfaces
from msmon_hooks.torch.compiled.gate import GATE
from msmon_hooks.torch.compiled.leaves import Leaf
from msmon_hooks.torch.compiled.marks import MarkInputs, MarkOutputs
from msmon_hooks.torch.compiled.operator import MARK, NOTE, when_run
from msmon_hooks.torch.compiled.stripping import strip
from msmon_hooks.torch.compiled.traced import Traced, place_marks, take_out

_OBJECT = (
    "inside_compiled: objects of the class {} are not looked into inside of graphs, so tensors in them have no rows "
    "there; those in tuples, lists, dictionaries and dataclasses have"
)


class User(Protocol):
    """Who looks into graphs."""

    guard: Guarded
    recompute: bool
    """Whether values that are in no memory are computed again."""
    identity: str
    """What is marked, in a few letters."""

    @property
    def wanted(self) -> bool:
        """Whether graphs that are compiled or looked for now should have marks."""

    def entry(self) -> str | None:
        """Stage and name of the module whose call has led here."""

    def note(self, text: str) -> None:
        """Something is to be said of a graph."""

    def cannot_read(self, leaf: Leaf) -> None:
        """A tensor inside of a graph has no rows."""

    def backward_is_compiled(self) -> None:
        """The backward that begins is compiled as a whole."""

    def look(self, tensor: Any, text: str) -> bool:
        """A mark is run that a backend has left in its graph; whether it is one of this user."""


class Compiler:
    """Its users, and what is changed for them."""

    def __init__(self) -> None:
        self._users: list[User] = []
        self._registrations = Registrations()

    def enter(self, user: User) -> None:
        """Somebody begins to look; for the first the compiler is changed."""
        self._users.append(user)
        if len(self._users) > 1:
            return
        for undo in (
            interfaces.skip_as_frame(MarkInputs.__call__, MarkOutputs.__call__, *hook_functions()),
            interfaces.disregard_hooks(lambda hook: isinstance(hook, Hook | MarkInputs | MarkOutputs)),
            interfaces.look_at_no_arguments(),
            interfaces.see_graphs(self._traced, self._failed),
            interfaces.see_compiled_backwards(self._backward_is_compiled),
            interfaces.strip_joint_graphs(self._strip, self._identity),
            interfaces.see_values((MARK, NOTE)),
            interfaces.before_code(self._place),
        ):
            self._registrations.callback(undo)
        when_run(self._look)

    def leave(self, user: User) -> None:
        """The opposite of `enter`."""
        self._users.remove(user)
        self.refresh()
        if not self._users:
            self._registrations.close()

    def _identity(self) -> str:
        return f"msmon-{__version__}" + ("+" if any(user.recompute for user in self._users) else "")

    def refresh(self) -> None:
        """Open or shut the gate."""
        users = [user for user in self._users if user.guard.enabled]
        is_open = any(user.wanted for user in users)
        GATE.marks = "-".join(user.identity for user in users) if is_open else ""

    def _traced(self, graph_module: fx.GraphModule, backend: str, options: Any) -> bool:
        found, reason, done = Traced(), _objection_to(backend, options), False
        try:
            if self._users and not reason:
                found = place_marks(graph_module, self._entry())
                done = True
        except Exception as error:
            self._fail(error)
        if not done:
            take_out(graph_module)
        for user in self._users:
            if reason:
                user.note(reason)
            for leaf in found.wrapped:
                user.cannot_read(leaf)
            for name in found.objects:
                user.note(_OBJECT.format(name))
        return done and bool(GATE.marks)

    def _failed(self, graph_module: fx.GraphModule, error: Exception) -> None:
        take_out(graph_module)
        self._fail(error)

    def _backward_is_compiled(self) -> None:
        for user in self._users:
            user.guard.run(user.backward_is_compiled)

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
            if user.wanted and user.look(tensor, text):
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


COMPILER = Compiler()
"""Of this process."""
