"""Optimizer state: the moments of a parameter, under the names that rows carry."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import mindspore

from msmon_hooks.optimizer_group import members
from msmon_hooks.parameter_state import MOMENTS, ParameterState, StateLayout

# The attributes of MindSpore's optimizers that hold a moment of each parameter, in the order of the parameters; and
# the keys under which the optimizers of adapters keep them.
_FIRST = ("exp_avg", "moment1", "moments1")
_SECOND = ("exp_avg_sq", "moment2", "moments2")
_MOMENTA = ("momentum_buf", "moments", "accum", "momentum_buffer")
_NAMES = dict.fromkeys(_FIRST, MOMENTS[0]) | dict.fromkeys(_SECOND, MOMENTS[1]) | {name: name for name in _MOMENTA}
_COUNTERS = ("global_step", "state_step", "step_t")


class Moments:
    """Finds the moments of parameters in an optimizer, or in those of a group.

    Example:
        >>> from mindspore import nn
        >>> dense = nn.Dense(2, 2)
        >>> dict(Moments(nn.Adam(dense.trainable_params())).of(dense.weight).tensors)
        {}
    """

    def __init__(self, optimizer: Any) -> None:
        self._homes = [_Home(one) for one in members(optimizer)]
        places = tuple(dict.fromkeys(home.place for home in self._homes))
        self._nothing = ParameterState(layout=StateLayout(places=places, given=optimizer is not None))

    def of(self, parameter: Any) -> ParameterState:
        """The moments that are kept of `parameter` now; empty before the first update of its optimizer.

        MindSpore makes them, as zeros, with the optimizer; they are no moments of anything before an update.
        """
        home = next((one for one in self._homes if id(parameter) in one.positions), None)
        return self._nothing if home is None else home.state(parameter)

    def step_begins(self, updating: Collection[int] | None) -> None:
        """These parameters are about to be updated (`id`); None: all."""
        for home in self._homes:
            home.steps = home.steps or updating is None or not home.positions.keys().isdisjoint(updating)

    def step_ends(self, *, skipped: bool) -> None:
        """They were, or not."""
        for home in self._homes:
            home.updated = home.updated or (home.steps and not skipped)
            home.steps = False


class _Home:
    """One optimizer, as the place where moments are."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._layouts: dict[tuple[str, ...], StateLayout] = {}
        self.place = type(optimizer).__name__
        self.positions = {id(parameter): index for index, parameter in enumerate(parameters_of(optimizer))}
        self.steps = False
        """Whether it has begun to step in the step in flight."""
        self.updated = False
        """Whether an update was seen."""

    def state(self, parameter: Any) -> ParameterState:
        """What there is of one of its parameters."""
        position = self.positions[id(parameter)]
        states = getattr(self._optimizer, "state", None)
        state = states.get(parameter) if isinstance(states, Mapping) else None
        values = {key: state.get(key) if state else self._attribute(key, position) for key in _NAMES}
        kept = {key: value for key, value in values.items() if isinstance(value, mindspore.Tensor)}
        if kept and not state and not self._was_updated():
            kept = {}
        found: dict[str, Any] = {}
        for key, value in kept.items():
            found.setdefault(_NAMES[key], value)
        return ParameterState(tensors=found, layout=self._layout(tuple(kept)))

    def _layout(self, keys: tuple[str, ...]) -> StateLayout:
        if keys not in self._layouts:
            self._layouts[keys] = StateLayout(keys=keys, places=(self.place,))
        return self._layouts[keys]

    def _attribute(self, name: str, position: int) -> Any:
        values = getattr(self._optimizer, name, None)
        if not isinstance(values, list | tuple) or len(values) <= position:
            return None
        # SGD without momentum makes the buffers all the same, and leaves them alone.
        idle = name == "accum" and not _number(getattr(self._optimizer, "momentum", 1.0))
        return None if idle else values[position]

    def _was_updated(self) -> bool:
        if not self.updated:
            counter = step_counter(self._optimizer)
            # A resumed training goes on with the moments that it has. Read from the device, but only until an update
            # was seen.
            self.updated = counter is not None and _number(counter) > 0
        return self.updated


def parameters_of(optimizer: Any) -> list[Any]:
    """The parameters of an optimizer, in the order of the gradients that it is called with.

    Example:
        >>> from mindspore import nn
        >>> [parameter.name for parameter in parameters_of(nn.SGD(nn.Dense(2, 2).trainable_params()))]
        ['weight', 'bias']
    """
    parameters = getattr(optimizer, "parameters", None)
    if isinstance(parameters, list | tuple):
        return list(parameters)
    return [parameter for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]]


def step_counter(optimizer: Any, parameter: Any = None) -> Any:
    """How many updates an optimizer has made: a tensor, or a number; None where it does not count.

    Args:
        optimizer: the optimizer.
        parameter: the optimizers of adapters count the updates of each parameter.
    """
    counters = (getattr(optimizer, name, None) for name in _COUNTERS)
    counter = next((counter for counter in counters if isinstance(counter, mindspore.Tensor)), None)
    states = getattr(optimizer, "state", None)
    if counter is None and parameter is not None and isinstance(states, Mapping):
        return (states.get(parameter) or {}).get("step")
    return counter


def _number(value: Any) -> float:
    return float(value.asnumpy().reshape(-1)[0]) if isinstance(value, mindspore.Tensor) else float(value)
