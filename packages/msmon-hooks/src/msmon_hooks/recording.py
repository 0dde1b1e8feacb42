"""What everything that reads has in common."""

from __future__ import annotations

from attrs import field, frozen

from msmon_hooks.clock import Clock
from msmon_hooks.coverage import Coverage
from msmon_hooks.events import Observer
from msmon_hooks.framework import Framework
from msmon_hooks.guard import Guards
from msmon_hooks.loss_scale import LossScale
from msmon_hooks.ref_cache import RefCache
from msmon_hooks.request import Request


@frozen(kw_only=True, eq=False)
class Recording:
    """One request in force: what is to be read, how, and who is told of it. Hooks hold it; it leads to no model."""

    request: Request
    framework: Framework
    clock: Clock
    observer: Observer
    coverage: Coverage
    loss_scale: LossScale
    guards: Guards = field()
    """What fails alone, by name."""
    refs: RefCache = field(factory=RefCache)

    @guards.default
    def _make_guards(self) -> Guards:
        return Guards(self.coverage.switched_off)
