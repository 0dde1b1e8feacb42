"""Tells an observer: this tensor, now. Hooks for modules, parameters and optimizers; computes nothing.

The framework halves live in :mod:`msmon_hooks.torch` and :mod:`msmon_hooks.mindspore`; what is imported
here knows neither.
"""

from msmon_hooks._events import DATA_TYPES, Observer, Shard, StepEnd, TensorRef
from msmon_hooks.clock import Clock, Schedule
from msmon_hooks.coverage import Coverage
from msmon_hooks.guard import Part
from msmon_hooks.registrations import Registrations
from msmon_hooks.targets import Selector, Target, Targets

__version__ = "0.1.0"

__all__ = [
    "DATA_TYPES",
    "Clock",
    "Coverage",
    "Observer",
    "Part",
    "Registrations",
    "Schedule",
    "Selector",
    "Shard",
    "StepEnd",
    "Target",
    "Targets",
    "TensorRef",
    "__version__",
]
