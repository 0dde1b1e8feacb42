"""What `run.json` says of tensors: their size, and which shard of each a rank holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class ShardEntry:
    """The shard of a tensor on one rank."""

    part: str
    """Equal on ranks that hold the same shard."""
    numel: int


@attrs.frozen(kw_only=True)
class TensorEntry:
    """One tensor."""

    numel: int
    """Of the whole tensor."""
    shards: Mapping[str, ShardEntry]
    """Data type -> the shard on this rank, where the values of the data type are of a shard."""
    fields: Mapping[str, Any]
    """All of the entry."""


def tensor_entries(entries: Any) -> dict[tuple[int, str], TensorEntry]:
    """(virtual stage, name) -> tensor, in the order of the entries.

    Raises:
        AttributeError, KeyError, TypeError: they are not what msmon writes.
    """
    found = {}
    for fields in entries:
        shards: dict[str, ShardEntry] = {}
        for shard in fields.get("shards", ()):
            entry = ShardEntry(part=_of(str, shard, "part"), numel=_of(int, shard, "local_numel"))
            shards |= dict.fromkeys(_of(list, shard, "data_types"), entry)
        place = _of(int, fields, "vpp_stage"), _of(str, fields, "name")
        found[place] = TensorEntry(numel=_of(int, fields, "numel"), shards=shards, fields=fields)
    return found


def _of(kind: type, fields: Mapping[str, Any], name: str) -> Any:
    value = fields[name]
    if not isinstance(value, kind) or (isinstance(value, int) and not 0 <= value < 1 << 63):
        raise TypeError(f"{name} is {value!r:.80}")
    return value
