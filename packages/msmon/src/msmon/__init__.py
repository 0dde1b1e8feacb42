"""A training-state monitor for PyTorch and MindSpore that is cheap enough to leave on.

>>> from msmon import TrainerMon  # doctest: +SKIP

`TrainerMon` is the class of the framework that the program has imported (PyTorch first), or else of the installed one.
`import msmon` itself imports no framework.
"""

from typing import Any

__version__ = "0.1.0"

__all__ = ["TrainerMon", "csv2tensorboard_by_step", "verify"]


def __getattr__(name: str) -> Any:
    # Not kept in the module: which framework is meant may change when the program imports one.
    if name == "TrainerMon":
        from msmon.framework import trainer_mon_class

        return trainer_mon_class()
    if name == "csv2tensorboard_by_step":
        from msmon_io import csv2tensorboard_by_step

        return csv2tensorboard_by_step
    if name == "verify":
        from msmon.verifying import verify

        return verify
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
