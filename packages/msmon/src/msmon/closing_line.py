"""The last line of a run in the log: what was recorded, what is missing, where the files are."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

logger = logging.getLogger("msmon")


def say(
    coverage: Mapping[str, Any], *, steps: int, anomalies: int | None, share: float, lost: int, files: object
) -> None:
    """Log the closing line: INFO, or WARNING where something is wrong.

    Args:
        coverage: `Coverage.to_dict()`.
        steps: how many were recorded.
        anomalies: how many were found; None: nothing looked for them.
        share: of the time from the first step to the last, what was spent in hooks.
        lost: rows that could not be written.
        files: where they are, or None.
    """
    parts = [f"no {data_type}: {reason}" for data_type, reason in coverage["without_rows"].items()]
    parts.append(f"{steps} steps recorded")
    expected, seen = (sum(coverage[key].values()) for key in ("expected", "seen"))
    parts.append(f"expected {expected} tensors, saw {seen}{_counted(coverage['missing'], 'reason')}")
    if coverage["apart"]:
        parts.append(apart(Counter(entry["kind"] for entry in coverage["apart"])))
    if coverage["switched_off"]:
        parts.append(f"switched off: {', '.join(coverage['switched_off'])}")
    if lost:
        parts.append(f"{lost} rows could not be written")
    if anomalies is not None:
        parts.append(f"{anomalies} anomalies")
    if steps:
        parts.append(f"hooks took {100 * share:.1f} % of the time")
    if files is not None:
        parts.append(f"files in {files}")
    wrong = coverage["without_rows"] or coverage["missing"] or coverage["switched_off"] or lost or anomalies
    with _no_progress_bar():
        logger.log(logging.WARNING if wrong or not steps else logging.INFO, "msmon: %s", "; ".join(parts))


def apart(kinds: Mapping[str, int]) -> str:
    """What is counted apart, in words.

    Example:
        >>> apart({"frozen": 133, "never called as a module": 2})
        'apart from these 133 frozen, 2 never called as a module'
    """
    return "apart from these " + ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())


def _counted(entries: Sequence[Mapping[str, str]], key: str) -> str:
    counts = Counter(entry[key] for entry in entries)
    return f" ({', '.join(f'{text}: {count}' for text, count in sorted(counts.items()))})" if counts else ""


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Bars of tqdm, which most trainers draw, leave the cursor behind them: take them away for a moment."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    if tqdm is None:
        yield
        return
    with tqdm.external_write_mode(file=sys.stderr):
        yield
