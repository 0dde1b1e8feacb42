"""What `run.json` says of tensors: their size, and which shard of each a rank holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

STATE = "state"
"""The data type whose rows are called after a parameter and what is kept of it: `fc.weight.momentum_buffer`."""
_CUT_LIKE = {STATE: "exp_avg"}
"""What has a number for each element of a parameter is cut into the same shards as another data type."""

_SIZE = attrs.validators.and_(attrs.validators.instance_of(int), attrs.validators.lt(1 << 63))


@attrs.frozen(kw_only=True)
class ShardEntry:
    """The shard of a tensor on one rank."""

    part: str = attrs.field(validator=attrs.validators.instance_of(str))
    """Equal on ranks that hold the same shard."""
    numel: int = attrs.field(validator=[_SIZE, attrs.validators.ge(0)])


@attrs.frozen(kw_only=True)
class TensorEntry:
    """One tensor."""

    vpp_stage: int = attrs.field(validator=[_SIZE, attrs.validators.ge(0)])
    name: str = attrs.field(validator=attrs.validators.instance_of(str))
    numel: int = attrs.field(validator=[_SIZE, attrs.validators.ge(-1)])
    """Of the whole tensor; -1 where nobody knows which part a rank holds."""
    shards: Mapping[str, ShardEntry]
    """Data type -> the shard on this rank, where the values of the data type are of a shard."""
    fields: Mapping[str, Any]
    """All of the entry."""

    def shard(self, data_type: str) -> ShardEntry | None:
        """The shard on this rank, or None where it holds the whole."""
        return self.shards.get(_CUT_LIKE.get(data_type, data_type))


def parameter_name(name: str, data_type: str, is_known: Callable[[str], bool]) -> str:
    """The name of the parameter that a row is about.

    >>> parameter_name("fc.weight.Q.0", "state", {"fc.weight"}.__contains__)
    'fc.weight'
    """
    while data_type == STATE and "." in name and not is_known(name):
        name = name.rpartition(".")[0]
    return name


def tensor_entries(entries: Any) -> dict[tuple[int, str], TensorEntry]:
    """(virtual stage, name) -> tensor, in the order of the entries.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: they are not what msmon writes.
    """
    found = {}
    for fields in entries:
        shards = {
            data_type: ShardEntry(part=shard["part"], numel=shard["local_numel"])
            for shard in fields.get("shards", ())
            for data_type in shard["data_types"]
        }
        place = fields["vpp_stage"], fields["name"]
        found[place] = TensorEntry(
            vpp_stage=place[0], name=place[1], numel=fields["numel"], shards=shards, fields=fields
        )
    return found
