"""Functions of other people, observed under whatever names they are known.

A function that is replaced in its module stays what it was for everybody who imported it before, and for code that
compares it: `batch_isend_irecv` asks `op is isend`. So not the name is bound to something else; the function
object gets another body for a while, and keeps its identity.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from msmon_hooks.registrations import Registrations

Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""`around(original, args, kwargs)` calls the original and returns what the caller gets."""

_PLACE = "the redirection goes here"
_in_call = threading.local()


def _is_compiling() -> bool:
    """Whether torch.compile is tracing; it must not find the redirection."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    return compiler is not None and bool(getattr(compiler, "is_compiling", lambda: False)())


def run_outermost(around: Around, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `around`, or, inside of an observed call, the original alone: what the program called is what counts."""
    if getattr(_in_call, "active", False):
        return original(*args, **kwargs)
    _in_call.active = True
    try:
        return around(original, args, kwargs)
    finally:
        _in_call.active = False


class _Redirection:
    """The new body of one function."""

    def __init__(self, function: FunctionType, nested: bool) -> None:
        self.function = function
        self.nested = nested
        self.code = function.__code__
        self.defaults = function.__defaults__
        self.listeners: list[Around] = []
        self.original = FunctionType(
            self.code, function.__globals__, function.__name__, self.defaults, function.__closure__
        )
        self.original.__kwdefaults__ = function.__kwdefaults__
        self.original.__dict__.update(function.__dict__)
        self.body = _body(self.code, self.call)
        function.__code__ = self.body
        # They belong to parameters that the new body does not have; inspect.signature would stumble over them.
        function.__defaults__ = None

    def call(self, *args: Any, **kwargs: Any) -> Any:
        # One function of torch calls another: what the program called is what counts.
        outer = getattr(_in_call, "active", False)
        if (outer and not self.nested) or _is_compiling():
            return self.original(*args, **kwargs)
        _in_call.active = True
        try:
            inner: Callable[..., Any] = self.original
            for around in self.listeners:
                inner = _bound(around, inner)
            return inner(*args, **kwargs)
        finally:
            _in_call.active = outer

    def restore(self) -> None:
        if self.function.__code__ is self.body:
            self.function.__defaults__ = self.defaults
            self.function.__code__ = self.code


def _bound(around: Around, inner: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: around(inner, args, kwargs)


def _body(code: CodeType, target: Callable[..., Any]) -> CodeType:
    """Code that calls `target`; it takes the place of `code`, so it must close over as many variables."""
    free = "".join(f"{name}, " for name in code.co_freevars)
    lines = [
        f"def enclose({free}):",
        "    def redirected(*args, **kwargs):",
        f"        target = {_PLACE!r}",
        "        return target(*args, **kwargs)",
        f"        {free or '()'}",
        "    return redirected",
    ]
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)
    template: CodeType = scope["enclose"](*code.co_freevars).__code__
    return template.replace(
        co_consts=tuple(target if constant == _PLACE else constant for constant in template.co_consts),
        co_filename=code.co_filename,
        co_name=code.co_name,
        co_firstlineno=code.co_firstlineno,
    )


_redirections: dict[FunctionType, _Redirection] = {}
_lock = threading.Lock()


def original(function: FunctionType) -> FunctionType:
    """The function with the body that its author wrote, for whoever asks for its signature while it is intercepted."""
    redirection = _redirections.get(function)
    return function if redirection is None else redirection.original


def intercept(function: FunctionType, around: Around, *, nested: bool = False) -> Callable[[], None]:
    """Have calls of `function` go through `around` until the returned function is called.

    Several may listen; the function is itself again when the last of them has gone. Calls that `function` makes of
    other intercepted functions are not observed unless those are `nested`, nor is what `torch.compile` traces.

    Example:
        >>> def add(a, b=1): return a + b
        >>> also_add = add
        >>> undo = intercept(add, lambda original, args, kwargs: 10 * original(*args, **kwargs))
        >>> add(1), also_add(1, b=2)
        (20, 30)
        >>> undo()
        >>> add(1)
        2
    """
    with _lock:
        redirection = _redirections.get(function)
        if redirection is None:
            redirection = _redirections[function] = _Redirection(function, nested)
        redirection.listeners.append(around)

    def undo() -> None:
        with _lock:
            if around in redirection.listeners:
                redirection.listeners.remove(around)
            if not redirection.listeners and _redirections.get(function) is redirection:
                redirection.restore()
                del _redirections[function]

    return undo


def call_after(function: Any, then: Callable[[], None], registrations: Registrations) -> None:
    """Call `then` after each call of `function` that has not raised, until the registrations are closed. What is no
    function written in Python is left alone."""

    def around(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = original(*args, **kwargs)
        then()
        return result

    if isinstance(function, FunctionType):
        registrations.callback(intercept(function, around))
