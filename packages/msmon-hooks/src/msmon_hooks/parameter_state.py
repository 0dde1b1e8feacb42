"""What an optimizer keeps of one parameter, by the names that rows carry."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

MOMENTS = ("exp_avg", "exp_avg_sq")
"""The first and the second moment of the gradient: data types of their own."""
STATE = "state"
"""The data type of whatever else an optimizer keeps: rows are named `<parameter>.<name in the optimizer's state>`."""

_MOMENTUM = re.compile(r"(?:\w+_)?momentum(?:_buf|_buffer)?(?:_\d+)?|momentum_buf|moments|accum")
_OTHER_MOMENTUM = re.compile(r"(?:^|_)(?:neg|pos|second|slow|prev|max)_")
_FACTOR = re.compile(r"(?:row|col)_var(?:iance)?")
_LISTED = 8


class NotKeptError(ValueError):
    """The optimizer keeps nothing of the kind; the message says what it keeps."""


@frozen(kw_only=True)
class StateLayout:
    """What a state consists of, from step to step the same."""

    keys: tuple[str, ...] = ()
    """What is in the state, by the optimizer's own names; empty: there is no state of the parameter."""
    places: tuple[str, ...] = ()
    """Where it was looked for: `AdamW.state`."""
    given: bool = True
    """Whether there is an optimizer to ask."""


@frozen(kw_only=True, eq=False, slots=True)
class ParameterState:
    """The tensors of a parameter's state as they stand now.

    Names are those of `MOMENTS` where the tensor is that, else the optimizer's own.

    Example:
        >>> state = ParameterState(tensors={"momentum_buffer": 1.0}, layout=StateLayout(keys=("momentum_buffer",)))
        >>> state.momentum, state.get("momentum_buffer"), state.get("exp_avg")
        ('momentum_buffer', 1.0, None)
        >>> state.missing("exp_avg", updated=True)
        'nothing named exp_avg; its state has momentum_buffer'
    """

    tensors: Mapping[str, Any] = field(factory=dict)
    """What can be read where it lies."""
    packed: Mapping[str, Callable[[], Any]] = field(factory=dict)
    """Quantised or wrapped tensors: a function that gives the values, in memory of their own, and raises `ValueError`
    with the reason where it cannot."""
    layout: StateLayout = StateLayout()

    def get(self, name: str) -> Any:
        """The values of one tensor; None where there is none of the name.

        Raises:
            ValueError: they cannot be had; the message says why.
        """
        found = self.tensors.get(name)
        if found is None and name in self.packed:
            return self.packed[name]()
        return found

    @property
    def momentum(self) -> str | None:
        """The name of what the next update will be added to or mixed with; None where that is not clear."""
        if MOMENTS[0] in self.tensors or MOMENTS[0] in self.packed:
            return MOMENTS[0]
        found = self._momenta()
        return found[0] if len(found) == 1 else None

    def _momenta(self) -> list[str]:
        found = [name for name in (*self.tensors, *self.packed) if is_momentum(name)]
        # Parts of the optimizer may have momenta of their own, deeper inside.
        depth = min((name.count(".") for name in found), default=0)
        return [name for name in found if name.count(".") == depth]

    def missing(self, name: str, *, updated: bool) -> str:
        """Why there is no tensor of a name.

        Args:
            name: one of `MOMENTS`, or `"momentum"`.
            updated: whether the parameter should have a state by now.
        """
        keys = self.layout.keys
        if not keys:
            if not updated:
                return "no state before the first update"
            places = " and ".join(self.layout.places)
            if not self.layout.given:
                return "no optimizer was given"
            return f"nothing of it in {places}" if places else "where the optimizer keeps it is not known"
        momenta = self._momenta() if name == "momentum" else []
        if momenta:
            return f"several momenta: {_listed(momenta)}"
        if name in keys:
            return f"its {name} is kept in a form that is not known"
        factors = [key for key in keys if re.fullmatch(rf"{name}_(?:r|c|row|col)s?", key)]
        if name == MOMENTS[1] and not factors:
            factors = [key for key in keys if _FACTOR.fullmatch(key)]
        if factors:
            return f"factored: {_listed(factors)}"
        return f"nothing named {name}; its state has {_listed([key for key in keys if key != 'step'] or keys)}"


def is_momentum(name: str) -> bool:
    """Whether a name that is not `exp_avg` says that the tensor is a momentum.

    Example:
        >>> [is_momentum(name) for name in ("momentum_buffer", "0.nesterov_momentum_2", "second_momentum_buffer")]
        [True, True, False]
    """
    last = name.rpartition(".")[2]
    return _MOMENTUM.fullmatch(last) is not None and _OTHER_MOMENTUM.search(last) is None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")
