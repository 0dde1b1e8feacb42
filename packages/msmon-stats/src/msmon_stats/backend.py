"""Which back end a value belongs to, found by the module of its type so that no framework is imported."""

from __future__ import annotations

import importlib
from typing import Any

_PACKAGES = {"numpy": "msmon_stats.numpy", "torch": "msmon_stats.torch", "mindspore": "msmon_stats.mindspore"}
_found: dict[type, Any] = {}


def backend_of(value: object) -> Any:
    """The back-end module of a value (`msmon_stats.torch` and so on).

    Raises:
        TypeError: the value is no tensor or array of a known framework.
    """
    kind = type(value)
    backend = _found.get(kind)
    if backend is None:
        backend = _found[kind] = _find(kind)
    return backend


def _find(kind: type) -> Any:
    # A subclass that is defined elsewhere (a tensor wrapper in user code) has its framework further up.
    for base in kind.__mro__:
        package = _PACKAGES.get(base.__module__.partition(".")[0])
        if package is not None:
            return importlib.import_module(package)
    raise TypeError(
        f"no statistics of a {kind.__module__}.{kind.__qualname__}: "
        f"pass a tensor or array of {', '.join(sorted(_PACKAGES))} (numpy.asarray makes one of a list)"
    )
