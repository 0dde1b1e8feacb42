"""How sharply attention looks, from queries and keys, in memory linear in the length of the sequence."""

from __future__ import annotations

import math
from typing import Any

from msmon_stats.backend import backend_of
from msmon_stats.features.math import Math

# Scores that are held at a time: enough rows to keep a device busy, few enough to be small.
_SCORES = 1 << 21
LAYOUTS = ("s,b,h,d", "b,s,h,d")


def attention_features(query: Any, key: Any, layout: str = "s,b,h,d") -> Any:
    """Entropy and largest weight of causal attention, of batch 0 and head 0.

    The weights are `p = softmax(q k^T / sqrt(d))` over the keys up to the query's own position; with more keys than
    queries (a cache) the last query sees all keys.

    Args:
        query: 4-D in `layout`; computed in float32 at least.
        key: 4-D in `layout`, with the same d. It may have fewer heads.
        layout: one of `LAYOUTS`; s sequence, b batch, h head, d head size.

    Returns:
        float64 `[2]` on the device: the mean over queries of `-sum(p log p)` (in nats, 0 for attention to one key),
        and the mean over queries of the largest p.

    Raises:
        ValueError: another layout, tensors that are not 4-D, of different d, or without elements.

    >>> import numpy as np
    >>> zeros = np.zeros((2, 1, 1, 4))
    >>> attention_features(zeros, zeros).round(4).tolist()
    [0.3466, 0.75]
    """
    xp: Math = backend_of(query).MATH
    if layout not in LAYOUTS:
        raise ValueError(f"layout {layout!r} is not one of {', '.join(map(repr, LAYOUTS))}")
    query, key = xp.real(query), xp.real(key)
    for name, tensor in (("query", query), ("key", key)):
        if len(tensor.shape) != 4 or 0 in tuple(tensor.shape):
            raise ValueError(f"{name} must be 4-D ({layout}) with elements, not of shape {tuple(tensor.shape)}")
    if query.shape[3] != key.shape[3]:
        raise ValueError(f"query {tuple(query.shape)} and key {tuple(key.shape)} differ in their last axis")
    with xp.quiet(query):
        q, k = (tensor[:, 0, 0] if layout == "s,b,h,d" else tensor[0, :, 0] for tensor in (query, key))
        return _features(xp, xp.single(q) / math.sqrt(q.shape[1]), xp.single(k))


def _features(xp: Math, query: Any, key: Any) -> Any:
    queries, keys = query.shape[0], key.shape[0]
    ahead = max(0, keys - queries)
    rows = max(1, _SCORES // keys)
    entropy: Any = 0.0
    largest: Any = 0.0
    for start in range(0, queries, rows):
        stop = min(start + rows, queries)
        seen = min(keys, stop + ahead)
        scores = query[start:stop] @ key[:seen].T
        last = xp.arange(stop - start, query) + (start + ahead)
        visible = xp.arange(seen, query)[None, :] <= last[:, None]
        scores = xp.where(visible, scores, -math.inf)
        part = entropy_and_largest(xp, scores)
        entropy, largest = entropy + xp.sum(part[0]), largest + xp.sum(part[1])
    return xp.stack([entropy / queries, largest / queries])


def entropy_and_largest(xp: Math, scores: Any) -> tuple[Any, Any]:
    """Of each row of scores `[n, m]`: the entropy of its softmax and the largest weight, float64 `[n]`.

    With `z = sum(exp(s - top))` the entropy is `log z - sum(exp(s - top) (s - top)) / z`; a score of -inf has the
    weight 0 and adds nothing.
    """
    shifted = scores - xp.largest(scores, -1)[..., None]
    weights = xp.exp(shifted)
    total = xp.wide(xp.sum(weights, -1))
    weighted = xp.wide(xp.sum(weights * xp.where(weights > 0, shifted, 0.0), -1))
    return xp.log(total) - weighted / total, 1.0 / total
