"""Optimizer state: what is kept of a parameter, whichever optimizer keeps it, under the names that rows carry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from attrs import frozen
from torch import nn

from msmon_hooks.parameter_state import ParameterState, StateLayout
from msmon_hooks.torch.nested_optimizers import nested_optimizers, optimizers_in_hooks, state_of
from msmon_hooks.torch.state_tensors import StateTensor, is_flat, names_of, state_keys, tensors_of

_PLAIN = (torch.Tensor, nn.Parameter)
_FEW = 8


class StateReader:
    """Finds the state of parameters in an optimizer, and in those inside of it.

    What the keys of a state mean is decided once for each parameter, and again when they are others.

    Example:
        >>> weight = nn.Parameter(torch.ones(2)); adam = torch.optim.Adam([weight], amsgrad=True)
        >>> reader = StateReader(adam); dict(reader.of(weight).tensors)
        {}
        >>> weight.grad = torch.ones(2); adam.step()
        >>> list(reader.of(weight).tensors)
        ['exp_avg', 'exp_avg_sq', 'max_exp_avg_sq']
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._plans: dict[int, _Plan] = {}
        self._misses = 0
        self._find_homes()

    def of(self, parameter: torch.Tensor) -> ParameterState:
        """What there is of the parameter now. Nothing is copied, and nothing is added to the optimizer."""
        plan = self._plans.get(id(parameter))
        found = None if plan is None else plan.read(parameter)
        if found is None:
            self._plans.pop(id(parameter), None)
            states = self._states(parameter)
            if states:
                plan = self._plans[id(parameter)] = _Plan(states, self._others(states), parameter)
                found = plan.read(parameter)
        return self._nothing if found is None else found

    def _states(self, parameter: torch.Tensor) -> list[_State]:
        found = list(_states_in(self._homes, parameter))
        if not found:
            # Wrappers may make their inner optimizers late: looked for again, ever more rarely.
            self._misses += 1
            if self._misses & (self._misses - 1) == 0:
                self._find_homes()
            found = list(_states_in([*self._homes, *optimizers_in_hooks(parameter)], parameter))
        return found

    def _others(self, states: Sequence[_State]) -> list[Any]:
        """The optimizers that may come to have a state of the parameter, too, as the inner one of a wrapper that has
        its own from the beginning. Where each parameter has an optimizer, these are too many to be asked each time."""
        homes = {id(one.home) for one in states}
        return [one for one in self._homes if id(one) not in homes] if len(self._homes) <= _FEW else []

    def _find_homes(self) -> None:
        self._homes = [one for one in nested_optimizers(self._optimizer) if state_of(one) is not None]
        places = (f"{type(one).__name__}.state" for one in self._homes)
        self._nothing = ParameterState(
            layout=StateLayout(places=tuple(dict.fromkeys(places)), given=self._optimizer is not None)
        )


@frozen(kw_only=True, eq=False, slots=True)
class _State:
    """A parameter's state in one optimizer."""

    home: Any
    content: Mapping[Any, Any]


def _state_in(home: Any, parameter: torch.Tensor) -> Mapping[Any, Any] | None:
    # A look-up in a defaultdict would create an entry and so change the optimizer.
    states = state_of(home)
    content = None if states is None else states.get(parameter)
    return content if type(content) is dict or isinstance(content, Mapping) else None


def _states_in(homes: Iterable[Any], parameter: torch.Tensor) -> Iterator[_State]:
    seen: set[int] = set()
    for home in homes:
        content = _state_in(home, parameter)
        # Wrappers may share the state of what they wrap.
        if content is not None and id(content) not in seen:
            seen.add(id(content))
            yield _State(home=home, content=content)


def _named(states: Iterable[_State], parameter: torch.Tensor) -> Iterator[tuple[int, StateTensor, str]]:
    """Number of the state, tensor and name of everything that has a row."""
    taken: set[str] = set()
    for number, state in enumerate(states):
        tensors = tensors_of(state.content, parameter)
        for tensor, name in zip(tensors, names_of(tensors, parameter, taken, state.home), strict=True):
            yield number, tensor, name


class _Plan:
    """What of a parameter's state is read, and how it is called. Holds no tensor."""

    def __init__(self, states: Sequence[_State], others: Sequence[Any], parameter: torch.Tensor) -> None:
        self._others = others
        self._homes = [(one.home, tuple(one.content)) for one in states]
        self._layout = StateLayout(
            keys=tuple(chain.from_iterable(state_keys(one.content) for one in states)),
            places=tuple(f"{type(one.home).__name__}.state" for one in states),
        )
        named = list(_named(states, parameter))
        # Tensors that lie deeper, or have to be unpacked, are looked for each time.
        flat = all(is_flat(one.content) for one in states) and not any(one.is_packed for _, one, _ in named)
        # Number of the state, key in it, name.
        self._entries = [(number, one.key, name) for number, one, name in named] if flat else None
        self._unset = [(n, key) for n, one in enumerate(states) for key, value in one.content.items() if value is None]

    def read(self, parameter: torch.Tensor) -> ParameterState | None:
        """The tensors as they stand now; None where the state consists of other things than before."""
        contents: list[Mapping[Any, Any]] = []
        for home, keys in self._homes:
            content = _state_in(home, parameter)
            if content is None or tuple(content) != keys:
                return None
            contents.append(content)
        for home in self._others:
            other = _state_in(home, parameter)
            # Wrappers may share the state of what they wrap.
            if other is not None and not any(other is content for content in contents):
                return None
        if self._entries is None:
            return self._read_deep(contents, parameter)
        for number, key in self._unset:
            if contents[number][key] is not None:
                return None
        tensors = {}
        for number, key, name in self._entries:
            value = tensors[name] = contents[number][key]
            if type(value) not in _PLAIN and not hasattr(value, "_local_tensor"):
                return None
        return ParameterState(tensors=tensors, layout=self._layout)

    def _read_deep(self, contents: Sequence[Mapping[Any, Any]], parameter: torch.Tensor) -> ParameterState:
        states = [_State(home=home, content=one) for (home, _), one in zip(self._homes, contents, strict=True)]
        tensors: dict[str, torch.Tensor] = {}
        packed: dict[str, Callable[[], torch.Tensor]] = {}
        for _, one, name in _named(states, parameter):
            if one.is_packed:
                packed[name] = one.values
            else:
                tensors[name] = one.tensor
        return ParameterState(tensors=tensors, packed=packed, layout=self._layout)
