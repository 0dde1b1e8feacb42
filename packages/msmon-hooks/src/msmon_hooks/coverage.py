"""What was expected, what was seen, and why the rest was not."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from itertools import chain, repeat
from typing import Any

NOT_FIRED = "hook did not fire"

_Key = tuple[int, str]
"""Virtual stage and name."""


class Coverage:
    """Counts tensors by data type. A tensor counts once, however many steps and micro-steps it is seen in.

    The stages of a virtual pipeline may have modules and parameters of the same name: `stage` tells them apart, and
    names get the prefix `"<stage>:"` where there is more than one.

    Example:
        >>> coverage = Coverage()
        >>> coverage.expect("grad_reduced", "fc1.weight"); coverage.expect("grad_reduced", "fc2.weight")
        >>> coverage.saw("grad_reduced", ["fc1.weight"])
        >>> coverage.explain("grad_reduced", "fc2.weight", "no gradient")
        >>> coverage.totals()
        (2, 1)
        >>> coverage.to_dict()["missing"]
        [{'data_type': 'grad_reduced', 'name': 'fc2.weight', 'reason': 'no gradient'}]
    """

    def __init__(self) -> None:
        self._expected: dict[str, dict[_Key, str]] = {}
        self._seen: dict[str, set[_Key]] = {}
        self._lost: dict[str, dict[_Key, str]] = {}
        self._notes: dict[str, None] = {}
        self._skipped_steps: dict[int, None] = {}
        self._lock = threading.Lock()

    def expect(self, data_type: str, name: str, reason: str = NOT_FIRED, *, stage: int = 0) -> None:
        """A tensor should be seen; `reason` is what is said where it is not."""
        with self._lock:
            self._expected.setdefault(data_type, {}).setdefault((stage, name), reason)

    def withdraw(self, data_type: str, name: str, *, stage: int = 0) -> None:
        """The tensor is no longer expected: what it stood for is now listed by other names."""
        with self._lock:
            self._expected.get(data_type, {}).pop((stage, name), None)

    def explain(self, data_type: str, name: str, reason: str, *, stage: int = 0) -> None:
        """Why a tensor was not seen, in place of the reason so far."""
        with self._lock:
            self._expected.setdefault(data_type, {})[stage, name] = reason

    def lose(self, data_type: str, name: str, reason: str | None, *, stage: int = 0) -> None:
        """A tensor has no rows from now on, whether it had some before or not; None: it has some again."""
        with self._lock:
            lost = self._lost.setdefault(data_type, {})
            if reason is None:
                lost.pop((stage, name), None)
            else:
                self._expected.setdefault(data_type, {}).setdefault((stage, name), reason)
                lost[stage, name] = reason

    def saw(self, data_type: str, names: Iterable[str], stages: Iterable[int] | None = None) -> None:
        """Tensors of which a row exists; `stages` has one number a name, all 0 where it is missing."""
        with self._lock:
            self._seen.setdefault(data_type, set()).update(
                zip(repeat(0) if stages is None else stages, names, strict=False)
            )

    def note(self, text: str) -> None:
        """Something that the reader of the files should know; kept once."""
        with self._lock:
            self._notes[text] = None

    def switched_off(self, name: str, reason: str) -> None:
        """What a `msmon_hooks.Guarded` calls when it is switched off."""
        self.note(f"{name}: switched off after {reason}")

    def skipped_step(self, step: int) -> None:
        """A step without an update: the loss scaler skipped it, or the optimizer raised."""
        with self._lock:
            self._skipped_steps[step] = None

    def totals(self) -> tuple[int, int]:
        """How many tensors were expected, and how many of all kinds were seen."""
        document = self.to_dict()
        return sum(document["expected"].values()), sum(document["seen"].values())

    def to_dict(self) -> dict[str, Any]:
        """The content of `coverage.json`: per data type expected and seen, and what is missing."""
        with self._lock:
            types = sorted({*self._expected, *self._seen})
            seen = {t: self._seen.get(t, set()) - self._lost.get(t, {}).keys() for t in types}
            known = chain.from_iterable((*self._expected.values(), *self._seen.values()))
            staged = any(stage > 0 for stage, _ in known)
            missing = [
                {
                    "data_type": data_type,
                    "name": f"{stage}:{name}" if staged else name,
                    "reason": self._lost.get(data_type, {}).get((stage, name), reason),
                }
                for data_type in types
                for (stage, name), reason in self._expected.get(data_type, {}).items()
                if (stage, name) not in seen[data_type]
            ]
            expected = {t: len({*self._expected.get(t, ()), *self._seen.get(t, ())}) for t in types}
            return {
                "schema": 1,
                "expected": expected,
                "seen": {t: len(seen[t]) for t in types},
                "missing": missing,
                "notes": list(self._notes),
                "skipped_steps": list(self._skipped_steps),
            }
