"""Modules that were not called: used in another way, or a hook that did not fire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msmon_hooks.parameters import Weight

Key = tuple[int, str]
"""Stage and plain name."""

_USED = "never called as a module: other code uses its parameters, which have gradients"
_INSIDE = "never called as a module: what is in it is"
_FROZEN = "never called as a module: whether other code uses its parameters, all frozen, cannot be seen"
_EMPTY = "never called as a module: it has no parameters"


def uses_of(
    uncalled: Iterable[Key], called: Iterable[Key], weights: Sequence[Weight], has_gradient: Callable[[Weight], bool]
) -> Mapping[Key, str]:
    """Of modules that no call was seen of: what is known of their use. Those that should have been called are left out.

    Args:
        uncalled: the modules in question.
        called: modules of which calls were seen.
        weights: all parameters, under plain names.
        has_gradient: whether a parameter has a gradient in this step.

    Example:
        >>> dict(uses_of([(0, "model"), (0, "drop")], [(0, "model.fc")], [], lambda weight: True))  # doctest: +ELLIPSIS
        {(0, 'model'): 'never called ... what is in it is', (0, 'drop'): 'never called ... it has no parameters'}
    """
    around = {(stage, name[:end]) for stage, name in called for end in _ends(name)}
    own: dict[Key, list[Weight]] = {}
    inside: set[Key] = set()
    for weight in weights:
        for name in (weight.name, *weight.aliases):
            own.setdefault((weight.vpp_stage, name.rpartition(".")[0]), []).append(weight)
            inside.update((weight.vpp_stage, name[:end]) for end in _ends(name))
    found = {}
    for key in uncalled:
        parameters = own.get(key, [])
        if key in around:
            found[key] = _INSIDE
        elif any(weight.parameter.requires_grad and has_gradient(weight) for weight in parameters):
            found[key] = _USED
        elif parameters and not any(weight.parameter.requires_grad for weight in parameters):
            found[key] = _FROZEN
        elif key not in inside:
            found[key] = _EMPTY
    return found


def _ends(name: str) -> list[int]:
    """Where the names of the modules around this one end; the root has the empty name."""
    return [0, *(at for at, letter in enumerate(name) if letter == ".")] if name else []
