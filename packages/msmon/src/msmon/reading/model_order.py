"""Tensors in the order of the model, grouped by layer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from msmon.reading.index import Index, Ints, TensorKey
from msmon.reading.run import Run

#: Data types whose files go through the model backwards.
BACKWARD = frozenset({"actv_grad", "grad_unreduced"})

#: The group of tensors that belong to the model as a whole.
WHOLE_MODEL = "(whole model)"

_ACTIVATION = re.compile(r"\.?(?:input|output)(?:_[^.]*)?$")


def model_order(run: Run, indices: Mapping[str, Index]) -> dict[TensorKey, int]:
    """A position for every tensor of the run, so that sorting by it gives the order of the model.

    Parameters stand as in `run.json`, which has the order of `named_parameters()`; activations in the order in which
    the forward ended; what only a backward names, in the reverse of that. Virtual stages come before pipeline stages,
    since the layers of a pipeline go through all of its stages once for each virtual stage.
    """
    seen: dict[TensorKey, None] = {}
    for rank in run.ranks.values():
        seen.update((TensorKey(rank.pp_stage, *place), None) for place in rank.tensors or ())
    for data_type in sorted(indices, key=lambda data_type: data_type in BACKWARD):
        keys = indices[data_type].tensors()[0]
        seen.update(dict.fromkeys(reversed(keys) if data_type in BACKWARD else keys))
    keys = sorted(seen, key=lambda key: (key.vpp_stage, key.pp_stage))
    return {key: position for position, key in enumerate(keys)}


def layers_of(keys: Sequence[TensorKey]) -> list[str]:
    """For each tensor the layer that it belongs to.

    A layer is a name up to its first number (`blocks.3` of `blocks.3.mlp.fc.weight`), after what all names have in
    common; a tensor of no numbered layer belongs to its module.

    >>> keys = [TensorKey(0, 0, n) for n in ("emb.weight", "blocks.3.mlp.fc.weight", "blocks.3.output", ".input")]
    >>> layers_of(keys)
    ['emb', 'blocks.3', 'blocks.3', '(whole model)']
    """
    paths = {name: _module_path(name) for name in dict.fromkeys(key.name for key in keys)}
    numbered = [path for path in paths.values() if any(part.isdigit() for part in path)]
    common = _common_length(numbered)
    layers = {name: _layer(path, common) for name, path in paths.items()}
    several = len({(key.vpp_stage, key.pp_stage) for key in keys}) > 1
    return [key.stage() + layers[key.name] if several else layers[key.name] for key in keys]


def layer_sequence(keys: Sequence[TensorKey], layers: Sequence[str], order: Mapping[TensorKey, int]) -> Ints:
    """The numbers of the tensors in the order of the model, each layer in one piece."""
    layer_first: dict[str, int] = {}
    for key, layer in zip(keys, layers, strict=True):
        layer_first[layer] = min(order[key], layer_first.get(layer, order[key]))
    ranked = sorted(range(len(keys)), key=lambda at: (layer_first[layers[at]], order[keys[at]]))
    return np.array(ranked, dtype=np.int64)


def _module_path(name: str) -> list[str]:
    stripped = _ACTIVATION.sub("", name)
    # "fc@1" is the second call of module fc.
    parts = [part.partition("@")[0] for part in stripped.split(".")] if stripped else []
    return parts if stripped != name else parts[:-1]


def _common_length(paths: Sequence[list[str]]) -> int:
    if len(paths) < 2:
        return 0
    shortest, longest = min(paths), max(paths)
    length = 0
    while length < min(len(shortest), len(longest)) and shortest[length] == longest[length]:
        length += 1
    # If all belong to one numbered layer that number is still what tells layers apart.
    return length if any(part.isdigit() for path in paths for part in path[length:]) else 0


def _layer(path: Sequence[str], common: int) -> str:
    for at, part in enumerate(path):
        if at >= common and part.isdigit():
            return ".".join(path[: at + 1])
    return ".".join(path) or WHOLE_MODEL
