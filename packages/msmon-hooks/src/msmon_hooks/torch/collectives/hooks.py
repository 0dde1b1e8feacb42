"""Reads the tensors of collectives, and says in the first step which collectives there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch import distributed

from msmon_hooks import interception
from msmon_hooks.collective_calls import Api, Signature, Tensors
from msmon_hooks.collective_rows import RECEIVED, SENT, CollectiveRows
from msmon_hooks.registrations import Registrations
from msmon_hooks.torch.collectives.calls import (
    COLLECTIVES,
    FUNCTIONAL,
    CollectiveCall,
    describe_group,
    ranks_of_group,
)
from msmon_hooks.torch.collectives.waiting import Coalescing, after, waits


class CollectiveHooks(CollectiveRows):
    """Observes the collectives of `torch.distributed`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._coalescing = Coalescing()

    def attach(self, registrations: Registrations) -> None:
        """Observe every collective that this version of torch has."""
        if not distributed.is_available():
            text = "cc_distribution: this build of torch has no torch.distributed"
            self._recording.coverage.note(text, ("other",))
            return
        waits.install()
        registrations.callback(waits.remove)
        from torch.distributed import _functional_collectives

        missing = self._observe_all(distributed.distributed_c10d, COLLECTIVES, registrations)
        missing += self._observe_all(_functional_collectives, FUNCTIONAL, registrations)
        manager = getattr(distributed.distributed_c10d, "_coalescing_manager", None)
        if isinstance(manager, FunctionType):
            registrations.callback(interception.intercept(manager, self._coalesce))
        else:
            missing.append("_coalescing_manager")
        if missing:
            text = f"cc_distribution: torch {torch.__version__} does not have {', '.join(missing)}"
            self._recording.coverage.note(text)

    def _observe_all(self, module: Any, apis: Mapping[str, Api], registrations: Registrations) -> list[str]:
        missing = []
        for name, api in apis.items():
            function, signature = getattr(module, name, None), None
            if isinstance(function, FunctionType):
                # Another monitor of this process may have it intercepted already.
                signature = Signature.of(name, api, interception.original(function))
            if function is not None and signature is not None:
                registrations.callback(interception.intercept(function, _Observed(self, signature)))
            else:
                missing.append(f"{module.__name__.rpartition('.')[2]}.{name}")
        return missing

    def _coalesce(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        block = original(*args, **kwargs)
        return self._coalescing.around(block, self.guard) if self.wanted else block

    def before(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CollectiveCall | None:
        """A collective is about to run; returns it if its result is to be read."""
        call = CollectiveCall.of(signature, args, kwargs)
        if call is None:
            return None
        group, ranks = describe_group(call.group), ranks_of_group(call.group)
        if not self.begins(signature.name, group, call.all_tensors(), ranks=ranks, reduction=call.reduction):
            return None
        if self._request.inputs:
            self.read_call(call, SENT, call.sent())
        return call

    def after(self, call: CollectiveCall, returned: Any) -> None:
        """A collective has returned; what has arrived is read when it has been waited for."""
        for waitable, tensors in call.arrivals(returned):
            if self._coalescing.pending is None:
                after(waitable, _Arrived(self, call, tensors))
            else:
                self._coalescing.pending.append(_Arrived(self, call, tensors))

    def read_call(self, call: CollectiveCall, side: str, tensors: Tensors) -> None:
        """Read the tensors of one side of a call."""
        ready = {argument: [_waited(value) for value in values] for argument, values in tensors.items()}
        self.read(call.name, side, ready)

    def step_ends(self) -> Callable[[], None] | None:
        """After the first step: something to call that says which calls there were."""
        waits.forget_results()
        return super().step_ends()


class _Arrived:
    """Reads tensors that a collective has filled."""

    def __init__(self, hooks: CollectiveHooks, call: CollectiveCall, tensors: Tensors) -> None:
        self.hooks = hooks
        self.call = call
        self.tensors = tensors

    def __call__(self) -> None:
        if self.hooks.wanted:
            self.hooks.guard.run(self.hooks.read_call, self.call, RECEIVED, self.tensors)


class _Observed:
    """What stands around one function."""

    def __init__(self, hooks: CollectiveHooks, signature: Signature) -> None:
        self.hooks = hooks
        self.signature = signature

    def __call__(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hooks = self.hooks
        call = hooks.guard.run(hooks.before, self.signature, args, kwargs) if hooks.wanted else None
        returned = original(*args, **kwargs)
        if call is not None:
            hooks.guard.run(hooks.after, call, returned)
        return returned


def _waited(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor inside the result of a functional collective; torch waits for it before it is used anyhow."""
    wait = getattr(tensor, "trigger_wait", None)
    return wait() if wait is not None else tensor
