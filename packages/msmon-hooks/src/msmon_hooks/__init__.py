"""Tells an observer: this tensor, now. Hooks for modules, parameters and optimizers; computes nothing.

The framework halves live in `msmon_hooks.torch` and `msmon_hooks.mindspore`; what is imported
here knows neither.
"""

from msmon_hooks.clock import Clock, Schedule
from msmon_hooks.coverage import CAPTURED, Coverage
from msmon_hooks.data_types import ADAM_HISTOGRAM, DATA_TYPES, PHASES, DataType
from msmon_hooks.events import Observer, Shard, StepEnd, TensorRef
from msmon_hooks.guard import Guarded
from msmon_hooks.hooks import Hook
from msmon_hooks.l2_features import Feature
from msmon_hooks.registrations import Registrations
from msmon_hooks.request import CollectiveRequest, Request
from msmon_hooks.short_names import ShortNames
from msmon_hooks.targets import Elements, Sides, Targets

__version__ = "0.1.0"

__all__ = [
    "ADAM_HISTOGRAM",
    "CAPTURED",
    "DATA_TYPES",
    "PHASES",
    "Clock",
    "CollectiveRequest",
    "Coverage",
    "DataType",
    "Elements",
    "Feature",
    "Guarded",
    "Hook",
    "Observer",
    "Registrations",
    "Request",
    "Schedule",
    "Shard",
    "ShortNames",
    "Sides",
    "StepEnd",
    "Targets",
    "TensorRef",
    "__version__",
]
