"""Calls of collectives: which arguments are sent from this rank, and which are filled on it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from attrs import field, frozen

C = TypeVar("C", bound="CollectiveCall")

Tensors = dict[int, list[Any]]
"""Position of the argument -> its tensors."""


@frozen(kw_only=True)
class Api:
    """One function that communicates."""

    sent: tuple[str, ...] = ()
    """Parameters whose values go out."""
    received: tuple[str, ...] = ()
    """Parameters that hold the result afterwards; before the call they may hold anything."""
    sender: str = ""
    """Parameter that names the only rank that sends (`src`)."""
    receiver: str = ""
    """Parameter that names the only rank on which there is a result (`dst`)."""
    returns: bool = False
    """The result is what the function returns."""


@frozen(kw_only=True)
class Signature:
    """How to find the arguments of one function."""

    name: str
    api: Api
    parameters: inspect.Signature
    positions: dict[str, int] = field(factory=dict)

    @classmethod
    def of(cls, name: str, api: Api, function: Callable[..., Any]) -> Signature | None:
        """None where the function does not have the parameters that this version of msmon knows.

        Example:
            >>> def send(tensor, dst=0): ...
            >>> signature = Signature.of("send", Api(sent=("tensor",), receiver="dst"), send)
            >>> signature.positions, signature.arguments((7,), {})
            ({'tensor': 0, 'dst': 1}, {'tensor': 7, 'dst': 0})
            >>> signature.arguments((7, 0, 1), {}) is None
            True
        """
        parameters = inspect.signature(function)
        positions = {parameter: index for index, parameter in enumerate(parameters.parameters)}
        if not {*api.sent, *api.received} <= {*positions}:
            return None
        return cls(name=name, api=api, parameters=parameters, positions=positions)

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """Parameter to argument, or None where the arguments do not fit; the function will say so."""
        try:
            bound = self.parameters.bind(*args, **kwargs)
        except TypeError:
            return None
        bound.apply_defaults()
        return dict(bound.arguments)


@frozen(kw_only=True)
class CollectiveCall:
    """One call of a collective on this rank. A framework says what a tensor is, and who this rank is."""

    name: str
    """Of the function."""
    api: Api
    arguments: Mapping[str, Any]
    positions: Mapping[str, int] = field(factory=dict)

    @classmethod
    def of(cls: type[C], signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> C | None:
        """The call, or None where the arguments do not fit (the function will say so) or this rank takes no part."""
        arguments = signature.arguments(args, kwargs)
        if arguments is None:
            return None
        call = cls(name=signature.name, api=signature.api, arguments=arguments, positions=signature.positions)
        return call if call.takes_part else None

    @property
    def takes_part(self) -> bool:
        """Whether anything is sent or filled on this rank."""
        return True

    @staticmethod
    def is_tensor(value: object) -> bool:
        """Whether an argument is a tensor."""
        raise NotImplementedError

    def is_root(self, parameter: str) -> bool:
        """Whether this rank is the one that a parameter names; also where there is no such parameter (`""`)."""
        raise NotImplementedError

    def sent(self) -> Tensors:
        """The tensors that go out from this rank."""
        return self._of(self.api.sent) if self.is_root(self.api.sender) else {}

    def received(self) -> Tensors:
        """The tensors that are filled on this rank."""
        return self._of(self.api.received) if self.is_root(self.api.receiver) else {}

    def all_tensors(self) -> Iterator[Any]:
        """Everything that is sent or filled, for descriptions."""
        for value in self.arguments.values():
            yield from self.tensors_in(value)

    @classmethod
    def tensors_in(cls, value: Any) -> Iterator[Any]:
        """The tensors of an argument: itself, or those in (nested) lists."""
        if cls.is_tensor(value):
            yield value
        elif isinstance(value, list | tuple):
            for item in value:
                yield from cls.tensors_in(item)

    def _of(self, parameters: tuple[str, ...]) -> Tensors:
        found = {self.positions[name]: list(self.tensors_in(self.arguments.get(name))) for name in parameters}
        return {position: tensors for position, tensors in found.items() if tensors}
