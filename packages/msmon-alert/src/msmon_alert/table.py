"""The first anomalies as an aligned table of text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from msmon_alert.record import PHASE_NAMES, phase

HEADER = ("step", "rank", "phase", "tensor", "statistic", "value", "history", "rule")
_RIGHT = frozenset({"step", "rank", "value", "history"})
_OLD_MESSAGE = re.compile(
    r"Rule (?P<rule>\w+) reports anomaly signal in \(.*, '(?P<stat>\w+)'\) at step \d+"
    r"(?:, current value (?P<value>[^\s,]+))?(?:, history mean (?P<history>[^\s,]+?))?\.?$",
    re.DOTALL,
)


@attrs.frozen(kw_only=True)
class Parts:
    """What fired, as text."""

    rule: str
    stat: str
    others: int
    """How many further statistics fired."""
    value: str
    history: str


def parts(record: Mapping[str, Any]) -> Parts:
    """What fired in a record. Files of the older tool have rule and values in the message only."""
    stats = record.get("stats")
    old = _OLD_MESSAGE.match(str(record.get("message", "")).strip())
    message = old.groupdict() if old else {}
    known = stats if isinstance(stats, dict) else {}
    return Parts(
        rule=str(record.get("rule") or message.get("rule") or ""),
        stat=str(next(iter(known), message.get("stat") or "")),
        others=max(len(known) - 1, 0),
        value=_number(record.get("value", message.get("value"))),
        history=_number(record.get("history", message.get("history"))),
    )


def row(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The cells of one record, after `HEADER`."""
    found = parts(record)
    return (
        str(record["step"]),
        str(record["rank"]),
        PHASE_NAMES[phase(record)],
        str(record["tag_name"]),
        f"{found.stat} (+{found.others})" if found.others else found.stat,
        found.value,
        found.history,
        found.rule,
    )


def _number(value: Any) -> str:
    if value is None:
        return "-"
    try:
        return f"{float(value):.6g}"
    except (TypeError, ValueError):
        return str(value)


def render(rows: Iterable[Sequence[str]], *, colour: bool) -> str:
    """Aligned columns under `HEADER`; with `colour`, ANSI sequences that a terminal understands."""
    cells = [HEADER, *(tuple(map(printable, r)) for r in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADER))]
    lines = []
    for number, line in enumerate(cells):
        text = "  ".join(
            cell.rjust(width) if name in _RIGHT else cell.ljust(width)
            for name, cell, width in zip(HEADER, line, widths, strict=True)
        ).rstrip()
        if colour and number <= 1:
            text = f"\033[{'1' if number == 0 else '31'}m{text}\033[0m"
        lines.append(text)
    return "\n".join(lines)


def printable(text: str) -> str:
    r"""Names come from models: nothing in them may steer the terminal, or break a line of a log.

    >>> printable("fc1\x1b[2J\n")
    'fc1\\x1b[2J\\n'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
