"""Calls back when the program has imported a module, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def when_imported(name: str, callback: Callable[[ModuleType], None]) -> None:
    """Call `callback` with the module once, right after its code has run; now, where it is imported already.

    Example:
        >>> import json
        >>> when_imported("json", lambda module: print(module.__name__))
        json
    """
    module = sys.modules.get(name)
    if module is not None:
        callback(module)
        return
    finder = next((one for one in sys.meta_path if isinstance(one, _Finder)), None)
    if finder is None:
        finder = _Finder()
        sys.meta_path.insert(0, finder)
    finder.waiting.setdefault(name, []).append(callback)


class _Finder(MetaPathFinder):
    """Finds nothing itself: it has the others find, and wraps their loader."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[ModuleType], None]]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.waiting:
            return None
        others = [one for one in sys.meta_path if one is not self]
        specs = (one.find_spec(fullname, path, target) for one in others if hasattr(one, "find_spec"))
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.waiting)
        return spec


class _Loader(Loader):
    """The module's own loader, and the callbacks after it.

    They wait until the module is loaded: programs also ask whether a module can be found, and import it later or never.
    """

    def __init__(self, loader: Any, waiting: dict[str, list[Callable[[ModuleType], None]]]) -> None:
        self._loader = loader
        self._waiting = waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        # The module looks as if the others had found it alone.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        for callback in self._waiting.pop(module.__name__, ()):
            callback(module)
