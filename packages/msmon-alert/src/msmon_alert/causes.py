"""Where it started and how it spread, from anomalies in the order of events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from msmon_alert.record import Record
from msmon_alert.table import parts
from msmon_alert.tag import Tag


@attrs.frozen(kw_only=True)
class Group:
    """All anomalies of one tensor: its ranks, micro-steps, steps and rules together."""

    module: str
    tensor: str
    """What it is of the module: "weight", "output", "gradient of input"."""
    first: Record
    """The earliest of its anomalies."""
    ranks: tuple[int, ...]
    """In the order in which they had it."""
    count: int


def group_by_tensor(records: Iterable[Record]) -> list[Group]:
    """Groups anomalies, which are in the order of events, by tensor; the groups are in the order of their first."""
    found: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        tag = Tag.parse(str(record["tag_name"]))
        found.setdefault((tag.vpp_stage, tag.module, tag.tensor), []).append(record)
    return [
        Group(
            module=module,
            tensor=tensor,
            first=members[0],
            ranks=tuple(dict.fromkeys(record["rank"] for record in members)),
            count=len(members),
        )
        for (_, module, tensor), members in found.items()
    ]


def explain(records: Iterable[Record], listed: int = 6) -> list[str]:
    """Lines that say where it started and how it spread; none for no records.

    >>> record = {"rank": 1, "step": 40, "tag_name": "0:proj.weight/rank1/param_origin", "message": ""}
    >>> for line in explain([record, record | {"tag_name": "0:proj.output:0/rank1/actv"}]):
    ...     print(line)
    started: proj weight at step 40 on rank 1
    next: its output
    """
    groups = group_by_tensor(records)
    if not groups:
        return []
    start, *others = groups
    lines = [f"started: {_name(start, None)} at step {start.first['step']} on rank {start.ranks[0]}{_why(start.first)}"]
    if others:
        shown, before = [], start
        for group in others[:listed]:
            shown.append(_name(group, before) + _place(group, before))
            before = group
        rest = others[listed:]
        more = f"; and {len(rest)} more tensors of {len({g.module for g in rest})} modules" if rest else ""
        lines.append(f"next: {'; '.join(shown)}{more}")
    return lines


def _name(group: Group, before: Group | None) -> str:
    if before is not None and group.module == before.module:
        return f"its {group.tensor}"
    return f"{group.module or '(root)'} {group.tensor}"


def _place(group: Group, before: Group) -> str:
    """Step and rank, where they are not those of the tensor before."""
    text = "" if group.first["step"] == before.first["step"] else f" at step {group.first['step']}"
    return text if group.ranks[0] == before.ranks[0] else f"{text} on rank {group.ranks[0]}"


def _why(record: Mapping[str, Any]) -> str:
    found = parts(record)
    if not found.rule:
        return ""
    past = "" if found.history == "-" else f", before {found.history}"
    return f" ({found.rule}: {found.stat} {found.value}{past})"
