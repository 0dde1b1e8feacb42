"""Imported by every Python process that `msmon run` started, before its program."""

import os
import sys


def _is_here(path: str) -> bool:
    return os.path.abspath(path) == os.path.dirname(os.path.abspath(__file__))


def _run_the_other() -> None:
    """The environment's own `sitecustomize`, which this one hides."""
    sys.path[:] = [path for path in sys.path if not _is_here(path)]
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if own is not None:
            sys.modules["sitecustomize"] = own


def _begin() -> None:
    try:
        from msmon.launching.program import begin
    except ModuleNotFoundError as error:
        if error.name != "msmon":
            raise
        return  # another environment's interpreter: there is no monitor in it
    begin()


try:
    _begin()
finally:
    _run_the_other()
