"""Which tensors of an optimizer's state are the moments of the gradient: by name, for all optimizers in one place."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from msmon_hooks.parameter_state import MOMENTS

Path = tuple[str, ...]
"""The keys that lead to a tensor in a parameter's state; most states have just one level."""

_FIRST = frozenset({"exp_avg", "grad_ma", "grad_avg", "exp_avg_grad", "state1", "m"})
"""Exponential averages of the gradient."""
_SECOND = frozenset({"exp_avg_sq", "variance_ma", "square_avg", "variance", "state2", "v"})
"""Exponential averages of its square. `exp_avg_var` is none: it is taken around the first moment."""
_PAIRED: Mapping[str, re.Pattern[str]] = {
    "state1": re.compile("state2"),
    "state2": re.compile("state1"),
    "m": re.compile("v|v_?mean"),
    "v": re.compile("m"),
}
"""Names that mean it only beside another one: alone, `v` is a velocity and `state1` anything."""
_OF_STATE1 = {"lion": MOMENTS[0], "rmsprop": MOMENTS[1]}
"""What a lone `state1` is, by the optimizer's `optimizer_name`."""
_MODIFIED = re.compile(r"(?:^|_)(?:max|min|neg|prev|last|old|slow|fast|grok|hessian)(?:_|$)")
"""Prefixes that make something else of a moment."""
_NUMBER = re.compile(r"_\d+$")


def moment_paths(
    sizes: Mapping[Path, int], numel: int, *, siblings: Mapping[Path, Collection[str]], kind: str = ""
) -> dict[Path, str]:
    """Which of the tensors are moments: `exp_avg` or `exp_avg_sq` by path.

    What the optimizer itself calls so is it, whatever its size. Another name has to mean it, to belong to one tensor
    only, and that must be as large as the parameter.

    Args:
        sizes: number of elements of each tensor of the state.
        numel: number of elements of the parameter.
        siblings: by path, all names in what holds the tensor.
        kind: the optimizer's `optimizer_name`, where it has one.

    Example:
        >>> sizes = {("momentum_buffer",): 6, ("square_avg",): 6}
        >>> moment_paths(sizes, 6, siblings={})
        {('square_avg',): 'exp_avg_sq'}
    """
    found: dict[Path, str] = {}
    for moment in MOMENTS:
        own = (moment,)
        if own in sizes:
            found[own] = moment
            continue
        same = [
            path
            for path, size in sizes.items()
            if size == numel and _means(path[-1], siblings.get(path, ()), kind) == moment
        ]
        if len(same) == 1:
            found[same[0]] = moment
    return found


def is_no_moment(name: str) -> bool:
    """Whether a tensor of this name counts something, or belongs to another, quantised one.

    Example:
        >>> is_no_moment("step"), is_no_moment("absmax1"), is_no_moment("sum")
        (True, True, False)
    """
    return _NO_MOMENT.fullmatch(_NUMBER.sub("", name)) is not None


_NO_MOMENT = re.compile(r"steps?|mu_product|(?:.*(?:_|:))?(?:qmap|absmax|scale|scales|zero_points?)\d*")


def row_name(path: Path, taken: Collection[str], optimizer: str) -> str:
    """How rows of a tensor are called, behind the parameter's name: keys joined by dots.

    Args:
        path: to the tensor.
        taken: names of other tensors of the parameter.
        optimizer: the class that keeps it, which tells equal names apart.

    Example:
        >>> row_name(("GG", "0"), (), "SOAP"), row_name(("ema",), ("ema",), "Lookahead")
        ('GG.0', 'Lookahead.ema')
    """
    name = ".".join(path)
    return name if name not in taken else f"{optimizer}.{name}"


def _means(name: str, siblings: Collection[str], kind: str) -> str | None:
    if name == "state1" and "state2" not in siblings:
        return _OF_STATE1.get(kind)
    beside = _PAIRED.get(name)
    if beside is not None and not any(beside.fullmatch(one) for one in siblings):
        return None
    name = _NUMBER.sub("", name)
    for moment, names in zip(MOMENTS, (_FIRST, _SECOND), strict=True):
        if name in names:
            return moment
        if name.endswith(f"_{moment}"):
            prefix = name.removesuffix(f"_{moment}")
            return None if _MODIFIED.search(prefix) else moment
    return None
