"""What was expected and what is missing, over all ranks of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import field, frozen

from msmon.reading.run import Run


@frozen(kw_only=True)
class RunCoverage:
    """The `coverage.json` of all ranks that left one."""

    ranks: int = 0
    """How many did."""
    expected: Mapping[str, int] = field(factory=dict)
    """Data type -> tensors, over all ranks."""
    seen: Mapping[str, int] = field(factory=dict)
    without_rows: Mapping[str, str] = field(factory=dict)
    """Data types that were asked for and have no row on any rank -> the reason."""
    missing: Mapping[tuple[str, str, str], int] = field(factory=dict)
    """Data type, name and reason -> on how many ranks."""
    apart: Mapping[tuple[str, str, str, str], int] = field(factory=dict)
    """Kind, data type, name and reason of what is counted apart -> on how many ranks."""
    switched_off: tuple[str, ...] = ()
    """Parts of the monitor that have failed."""
    notes: tuple[str, ...] = ()
    skipped_steps: tuple[int, ...] = ()

    @property
    def kinds(self) -> Mapping[str, int]:
        """Kind of what is counted apart -> tensors, those of several ranks once."""
        return Counter(kind for kind, _, _, _ in self.apart)


def read_coverage(run: Run) -> RunCoverage:
    """Sum up what the ranks say; what is no coverage is passed over."""
    documents = [rank.coverage for rank in run.ranks.values() if rank.coverage]
    expected, seen = (_sums(documents, key) for key in ("expected", "seen"))
    missing = Counter(_entries(documents, "missing", "data_type", "name", "reason"))
    apart = Counter(_entries(documents, "apart", "kind", "data_type", "name", "reason"))
    notes = (str(one) for document in documents for one in _list(document, "notes"))
    switched_off = (str(one) for document in documents for one in _list(document, "switched_off"))
    skipped = {step for one in documents for step in _list(one, "skipped_steps") if isinstance(step, int)}
    return RunCoverage(
        ranks=len(documents),
        expected=expected,
        seen=seen,
        without_rows=_without_rows(documents, expected, seen, missing),
        missing=missing,  # type: ignore[arg-type]
        apart=apart,  # type: ignore[arg-type]
        switched_off=tuple(dict.fromkeys(switched_off)),
        notes=tuple(dict.fromkeys(notes)),
        skipped_steps=tuple(sorted(skipped)),
    )


def _without_rows(
    documents: Iterable[Mapping[str, Any]],
    expected: Mapping[str, int],
    seen: Mapping[str, int],
    missing: Mapping[tuple[str, ...], int],
) -> dict[str, str]:
    found: dict[str, str] = {}
    for document in documents:
        said = document.get("without_rows")
        for data_type, reason in said.items() if isinstance(said, Mapping) else ():
            found.setdefault(str(data_type), str(reason))
    # Runs of before have only what is missing.
    for data_type, count in expected.items():
        if count and data_type not in found:
            reasons = Counter(reason for kind, _, reason in missing if kind == data_type)
            found[data_type] = reasons.most_common(1)[0][0] if reasons else "no reason was given"
    return {data_type: reason for data_type, reason in sorted(found.items()) if not seen.get(data_type)}


def _list(document: Mapping[str, Any], key: str) -> list[Any]:
    value = document.get(key)
    return value if isinstance(value, list) else []


def _entries(documents: Iterable[Mapping[str, Any]], key: str, *fields: str) -> list[tuple[str, ...]]:
    entries = (entry for document in documents for entry in _list(document, key) if isinstance(entry, Mapping))
    return [tuple(str(entry.get(one, "?")) for one in fields) for entry in entries]


def _sums(documents: Iterable[Mapping[str, Any]], key: str) -> dict[str, int]:
    total: Counter[str] = Counter()
    for document in documents:
        counts = document.get(key)
        for data_type, count in counts.items() if isinstance(counts, Mapping) else ():
            if isinstance(count, int):
                total[str(data_type)] += count
    return dict(total)
