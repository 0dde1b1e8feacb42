"""Observes collectives: functions of `mint.distributed` and `comm_func`, and operators."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import mindspore
from mindspore import ops
from mindspore.communication import comm_func

from msmon_hooks import interception
from msmon_hooks.collective_calls import Api, Signature
from msmon_hooks.collective_rows import RECEIVED, SENT, CollectiveRows
from msmon_hooks.mindspore.collectives.calls import IN_PLACE, OPERATORS, RETURNING, CollectiveCall
from msmon_hooks.mindspore.process_groups import group_ranks
from msmon_hooks.registrations import Registrations

_RETURNING = getattr(ops, "communication", comm_func)


class CollectiveHooks(CollectiveRows):
    """What a compiled graph does, also that of `nn.DistributedGradReducer`, is not called from Python: not seen."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._waiting: weakref.WeakKeyDictionary[Any, Callable[[], None]] = weakref.WeakKeyDictionary()

    def attach(self, registrations: Registrations) -> None:
        """Observe every collective that this version of MindSpore has."""
        in_place = _in_place_functions()
        missing = [] if in_place is not None else ["mint.distributed"]
        for name, api in IN_PLACE.items() if in_place is not None else ():
            missing += self._observe(in_place, name, api, registrations)
        for name in RETURNING:
            missing += self._observe(_RETURNING, name, None, registrations)
        for name in OPERATORS:
            operator = getattr(ops, name, None)
            if operator is None:
                missing.append(f"ops.{name}")
            else:
                registrations.patch(operator, "__call__", functools.partial(self._operator, name))
        work = getattr(comm_func, "CommHandle", None)
        if work is not None:
            registrations.patch(work, "wait", self._waiting_for)
        registrations.callback(self._waiting.clear)
        self._recording.coverage.note("cc_distribution: collectives inside of compiled graphs are not seen")
        if missing:
            version = mindspore.__version__
            self._recording.coverage.note(f"cc_distribution: MindSpore {version} does not have {', '.join(missing)}")

    def _observe(self, module: Any, name: str, api: Api | None, registrations: Registrations) -> list[str]:
        function, signature = getattr(module, name, None), None
        if isinstance(function, FunctionType):
            # Another monitor of this process may have it intercepted already.
            written = interception.original(function)
            signature = Signature.of(name, _returning(name, written) if api is None else api, written)
        if function is None or signature is None:
            return [f"{module.__name__.rpartition('.')[2]}.{name}"]

        def around(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            call = self.guard.run(CollectiveCall.of, signature, args, kwargs) if self.wanted else None
            return self._run(call, original, args, kwargs)

        registrations.callback(interception.intercept(function, around))
        return []

    def _operator(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __call__(operator: Any, *args: Any, **kwargs: Any) -> Any:
            def around(bound: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                call = self.guard.run(_call_of_operator, name, operator, args) if self.wanted else None
                return self._run(call, bound, args, kwargs)

            return interception.run_outermost(around, functools.partial(original, operator), args, kwargs)

        return __call__

    def _run(
        self, call: CollectiveCall | None, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        wanted = call is not None and self.guard.run(self._before, call)
        returned = original(*args, **kwargs)
        if wanted and call is not None:
            self.guard.run(self._after, call, returned)
        return returned

    def _before(self, call: CollectiveCall) -> bool:
        reduction = str(call.arguments.get("op") or "").lower()
        if not self.begins(
            call.name, f"group {call.group}", call.all_tensors(), ranks=group_ranks(call.group), reduction=reduction
        ):
            return False
        if self._request.inputs:
            self.read(call.name, SENT, call.sent())
        return True

    def _after(self, call: CollectiveCall, returned: Any) -> None:
        tensors = {0: list(call.tensors_in(returned))} if call.api.returns else call.received()
        if not any(tensors.values()):
            return
        values = returned if isinstance(returned, tuple) else (returned,)
        # A piece of work without a handle of the backend's stands for a call that has already been waited for.
        work = next((value for value in values if getattr(value, "handle", None) is not None), None)

        def arrived() -> None:
            if self.wanted:
                self.read(call.name, RECEIVED, tensors)

        if work is None:
            arrived()
        else:
            self._waiting[work] = arrived

    def _waiting_for(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(work, *args, **kwargs)
            self.guard.run(self._waited, work)
            return result

        return wait

    def _waited(self, work: Any) -> None:
        arrived = self._waiting.pop(work, None)
        if arrived is not None:
            arrived()


def _call_of_operator(name: str, operator: Any, args: tuple[Any, ...]) -> CollectiveCall:
    sent = tuple(str(index) for index in range(len(args)))
    arguments = {**dict(zip(sent, args, strict=True)), "group": getattr(operator, "group", None)}
    positions = {key: int(key) for key in sent}
    return CollectiveCall(name=name, api=Api(sent=sent, returns=True), arguments=arguments, positions=positions)


def _returning(name: str, function: FunctionType) -> Api:
    """What is sent comes first; the result is returned."""
    parameters = list(inspect.signature(function).parameters)
    sends = parameters[:1] if parameters and not name.endswith("recv") and name != "barrier" else []
    return Api(sent=tuple(sends), sender="src" if name in ("broadcast", "scatter_tensor") else "", returns=True)


def _in_place_functions() -> ModuleType | None:
    try:
        from mindspore.mint.distributed import distributed
    except ImportError:
        return None
    return distributed
