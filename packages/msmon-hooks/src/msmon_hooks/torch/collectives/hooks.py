"""Reads the tensors of collectives, and says in the first step which collectives there are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType, FunctionType
from typing import Any

import torch
from torch import distributed

from msmon_hooks._events import Observer, TensorRef
from msmon_hooks.clock import Clock
from msmon_hooks.coverage import Coverage
from msmon_hooks.guard import Part, logger
from msmon_hooks.registrations import Registrations
from msmon_hooks.request import CollectiveRequest
from msmon_hooks.torch.collectives.calls import (
    COLLECTIVES,
    FUNCTIONAL,
    RECEIVED,
    SENT,
    Api,
    Call,
    Signature,
    Tensors,
    describe_group,
)
from msmon_hooks.torch.collectives.interception import intercept
from msmon_hooks.torch.collectives.waiting import Coalescing, after, waits

_FRAMES = 12
"""How many frames of the stack are shown."""


class CollectiveHooks:
    """Rows ``<function>.pre_<argument>`` and ``<function>.post_<argument>``; all calls of a step make one row."""

    def __init__(
        self, request: CollectiveRequest, *, clock: Clock, observer: Observer, part: Part, coverage: Coverage
    ) -> None:
        self._request = request
        self._clock = clock
        self._observer = observer
        self.part = part
        self._coverage = coverage
        self._coalescing = Coalescing()
        self._verdicts: dict[str, bool] = {}
        self._seen: dict[tuple[Any, ...], int] = {}
        """Description of a call -> how often it came in the first step."""
        self._logged = False
        self._order: dict[str, int] = {}

    def attach(self, registrations: Registrations) -> None:
        """Observe every collective that this version of torch has."""
        if not distributed.is_available():
            self._coverage.note("cc_distribution: this build of torch has no torch.distributed")
            return
        waits.install()
        registrations.callback(waits.remove)
        from torch.distributed import _functional_collectives

        missing = self._observe_all(distributed.distributed_c10d, COLLECTIVES, registrations)
        missing += self._observe_all(_functional_collectives, FUNCTIONAL, registrations)
        manager = getattr(distributed.distributed_c10d, "_coalescing_manager", None)
        if isinstance(manager, FunctionType):
            registrations.callback(intercept(manager, self._coalesce))
        else:
            missing.append("_coalescing_manager")
        if missing:
            self._coverage.note(f"cc_distribution: torch {torch.__version__} does not have {', '.join(missing)}")

    def _observe_all(self, module: Any, apis: Mapping[str, Api], registrations: Registrations) -> list[str]:
        missing = []
        for name, api in apis.items():
            function = getattr(module, name, None)
            signature = Signature.of(name, api, function) if isinstance(function, FunctionType) else None
            if isinstance(function, FunctionType) and signature is not None:
                registrations.callback(intercept(function, _Observed(self, signature)))
            else:
                missing.append(f"{module.__name__.rpartition('.')[2]}.{name}")
        return missing

    def _coalesce(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        block = original(*args, **kwargs)
        return self._coalescing.around(block) if self.wanted else block

    @property
    def wanted(self) -> bool:
        """Whether the step in flight is recorded."""
        return self._clock.sampled and self.part.enabled

    def before(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """A collective is about to run; returns it if its result is to be read."""
        call = signature.bind(args, kwargs)
        if call is None:
            return None
        stack = _stack() if self._request.log_only or not self._logged else []
        if not self._wants(stack):
            return None
        if not self._logged:
            self._count(call, stack)
        if self._request.log_only:
            return None
        if self._request.inputs:
            self.read(call, SENT, call.sent())
        return call

    def after(self, call: Call, returned: Any) -> None:
        """A collective has returned; what has arrived is read when it has been waited for."""
        for waitable, tensors in call.arrivals(returned):
            if self._coalescing.pending is None:
                after(waitable, _Arrived(self, call, tensors))
            else:
                self._coalescing.pending.append(_Arrived(self, call, tensors))

    def _wants(self, stack: list[str]) -> bool:
        for line in stack or _stack():
            if line not in self._verdicts:
                self._verdicts[line] = self._request.wants(line)
            if self._verdicts[line]:
                return True
        return False

    def read(self, call: Call, side: str, tensors: Tensors) -> None:
        """Read the tensors of one side of a call."""
        for argument, values in tensors.items():
            name = f"{call.signature.name}.{side}_{argument}"
            values = [_waited(value) for value in values]
            number = self._clock.next_call_id()
            # Behind everything else that "other" holds, in the order in which they were first seen.
            order = (sys.maxsize, self._order.setdefault(name, len(self._order)))
            refs = [
                TensorRef(
                    data_type="other",
                    name=name,
                    vpp_stage=0,
                    micro_step=None,
                    call_id=number,
                    order=order,
                    shape=tuple(value.shape),
                    dtype=str(value.dtype),
                    merges=True,
                )
                for value in values
            ]
            self._observer.record(refs, self._observer.measure(values))

    def _count(self, call: Call, stack: list[str]) -> None:
        dtypes = sorted({str(tensor.dtype) for tensor in call.all_tensors()})
        shown = tuple(stack[:_FRAMES]) if self._request.log_only else tuple(stack[:1])
        key = (call.signature.name, ", ".join(dtypes) or "no tensor", describe_group(call.group), shown)
        self._seen[key] = self._seen.get(key, 0) + 1

    def step_ends(self) -> Callable[[], None] | None:
        """After the first step: something to call that says which calls there were."""
        waits.forget_results()
        if self._logged or not self.wanted:
            return None
        self._logged = True
        lines = [f"collectives of step {self._clock.step}: {len(self._seen)} different calls"]
        for (name, dtypes, group, stack), count in self._seen.items():
            lines.append(f"  {name} x{count}, {dtypes}, {group}, from " + "\n      from ".join(stack))
        self._seen.clear()
        return lambda: logger.warning("%s", "\n".join(lines))


class _Arrived:
    """Reads tensors that a collective has filled."""

    def __init__(self, hooks: CollectiveHooks, call: Call, tensors: Tensors) -> None:
        self.hooks = hooks
        self.call = call
        self.tensors = tensors

    def __call__(self) -> None:
        if self.hooks.wanted:
            self.hooks.part.run(self.hooks.read, self.call, RECEIVED, self.tensors)


class _Observed:
    """What stands around one function."""

    def __init__(self, hooks: CollectiveHooks, signature: Signature) -> None:
        self.hooks = hooks
        self.signature = signature

    def __call__(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hooks = self.hooks
        call = hooks.part.run(hooks.before, self.signature, args, kwargs) if hooks.wanted else None
        returned = original(*args, **kwargs)
        if call is not None:
            hooks.part.run(hooks.after, call, returned)
        return returned


def _waited(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor inside the result of a functional collective; torch waits for it before it is used anyhow."""
    wait = getattr(tensor, "trigger_wait", None)
    return wait() if wait is not None else tensor


def _stack() -> list[str]:
    """``file[line]`` of the callers, innermost first, without the monitor's own and torch's wrappers of functions."""
    lines = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if "msmon_hooks" not in name and not name.endswith("c10d_logger.py"):
            lines.append(f"{name}[{frame.f_lineno}]")
        frame = frame.f_back
    return lines
