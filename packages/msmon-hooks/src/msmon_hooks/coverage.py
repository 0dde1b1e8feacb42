"""What was expected, what was seen, and why the rest was not."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from itertools import chain, repeat
from typing import Any

from attrs import field, frozen
from attrs.validators import in_

NOT_FIRED = "hook did not fire"
CAPTURED = "inside a captured graph"
"""What runs again without the hooks."""

FROZEN = "frozen"
NOT_KEPT = "not kept by the optimizer"
NOT_CALLED = "never called as a module"
APART = (FROZEN, NOT_KEPT, NOT_CALLED)
"""Kinds of tensors without rows although the training is in order: counted apart, neither expected nor missing."""

_OF_PARTS = {
    "activations": ("actv",),
    "micro-steps": ("actv", "actv_grad"),
    "activation gradients": ("actv_grad",),
    "gradients before the reduction": ("grad_unreduced",),
    "gradients after the reduction": ("grad_reduced",),
    "gradients at the update": ("grad_reduced", "other"),
    "weight gradients": ("grad_unreduced", "grad_reduced"),
    "optimizer moments": ("exp_avg", "exp_avg_sq"),
    "weights": ("param_origin", "param_updated"),
    "agreement of gradient and momentum": ("other",),
    "histograms of Adam's update": ("adam_histogram",),
    "collectives": ("other",),
    "L2 features": ("attention_hook", "linear_hook", "moe_router_weight_hook", "moe_router_logit_hook"),
    "parameters": (
        *("grad_unreduced", "grad_reduced", "exp_avg", "exp_avg_sq", "param_origin", "param_updated", "other"),
        "adam_histogram",
    ),
}
"""The part of a monitor that is switched off, to the data types that have no rows then."""

_Key = tuple[int, str]
"""Virtual stage and name."""


@frozen
class _Reason:
    text: str
    kind: str = field(default="", validator=in_(("", *APART)))
    """One of `APART`, or empty: an alarm."""


class Coverage:
    """Counts tensors by data type. A tensor counts once, however many steps and micro-steps it is seen in.

    What is known to have no rows although nothing is wrong has a `kind`, one of `APART`: it is listed apart.

    The stages of a virtual pipeline may have modules and parameters of the same name: `stage` tells them apart, and
    names get the prefix `"<stage>:"` where there is more than one.

    Example:
        >>> coverage = Coverage()
        >>> for name in ("fc1.weight", "fc2.weight", "fc3.weight"): coverage.expect("grad_reduced", name)
        >>> coverage.saw("grad_reduced", ["fc1.weight"])
        >>> coverage.explain("grad_reduced", "fc2.weight", "no gradient")
        >>> coverage.explain("grad_reduced", "fc3.weight", "frozen", kind=FROZEN)
        >>> document = coverage.to_dict(); document["expected"], document["seen"]
        ({'grad_reduced': 2}, {'grad_reduced': 1})
        >>> document["missing"]
        [{'data_type': 'grad_reduced', 'name': 'fc2.weight', 'reason': 'no gradient'}]
        >>> document["apart"]
        [{'data_type': 'grad_reduced', 'name': 'fc3.weight', 'reason': 'frozen', 'kind': 'frozen'}]
    """

    def __init__(self) -> None:
        self._asked: set[str] = set()
        self._expected: dict[str, dict[_Key, _Reason]] = {}
        self._seen: dict[str, set[_Key]] = {}
        self._lost: dict[str, dict[_Key, _Reason]] = {}
        self._notes: dict[str, None] = {}
        self._of_types: dict[str, str] = {}
        self._switched_off: dict[str, None] = {}
        self._skipped_steps: dict[int, None] = {}
        self._lock = threading.Lock()

    def ask(self, data_types: Iterable[str]) -> None:
        """Data types that should have rows: one that has none at all is said by itself, if there is a reason."""
        with self._lock:
            self._asked.update(data_types)

    def expect(self, data_type: str, name: str, reason: str = NOT_FIRED, *, kind: str = "", stage: int = 0) -> None:
        """A tensor should be seen; `reason` is what is said where it is not."""
        with self._lock:
            self._expected.setdefault(data_type, {}).setdefault((stage, name), _Reason(reason, kind))

    def withdraw(self, data_type: str, name: str, *, stage: int = 0) -> None:
        """The tensor is no longer expected: what it stood for is now listed by other names."""
        with self._lock:
            self._expected.get(data_type, {}).pop((stage, name), None)

    def explain(self, data_type: str, name: str, reason: str, *, kind: str = "", stage: int = 0) -> None:
        """Why a tensor was not seen, in place of the reason so far."""
        with self._lock:
            self._expected.setdefault(data_type, {})[stage, name] = _Reason(reason, kind)

    def lose(self, data_type: str, name: str, reason: str | None, *, kind: str = "", stage: int = 0) -> None:
        """A tensor has no rows from now on, whether it had some before or not; None: it has some again."""
        with self._lock:
            lost = self._lost.setdefault(data_type, {})
            if reason is None:
                lost.pop((stage, name), None)
            else:
                lost[stage, name] = _Reason(reason, kind)
                self._expected.setdefault(data_type, {}).setdefault((stage, name), lost[stage, name])

    def saw(self, data_type: str, names: Iterable[str], stages: Iterable[int] | None = None) -> None:
        """Tensors of which a row exists; `stages` has one number a name, all 0 where it is missing."""
        with self._lock:
            self._seen.setdefault(data_type, set()).update(
                zip(repeat(0) if stages is None else stages, names, strict=False)
            )

    def note(self, text: str, data_types: Iterable[str] = ()) -> None:
        """Something that the reader of the files should know; kept once.

        `data_types`: those of which it is the reason, if they have no row at all.
        """
        with self._lock:
            self._notes[text] = None
            for data_type in data_types:
                self._of_types.setdefault(data_type, text)

    def switched_off(self, name: str, reason: str) -> None:
        """What a `msmon_hooks.Guarded` calls when it is switched off."""
        with self._lock:
            self._switched_off[name] = None
            data_types = [one for one in _OF_PARTS.get(name, ()) if one in self._asked]
        self.note(f"{name}: switched off after {reason}", data_types)

    def skipped_step(self, step: int) -> None:
        """A step without an update: the loss scaler skipped it, or the optimizer raised."""
        with self._lock:
            self._skipped_steps[step] = None

    def to_dict(self) -> dict[str, Any]:
        """The content of `coverage.json`: per data type expected and seen, and what is missing or counted apart."""
        with self._lock:
            types = sorted({*self._expected, *self._seen})
            seen = {t: self._seen.get(t, set()) - self._lost.get(t, {}).keys() for t in types}
            known = chain.from_iterable((*self._expected.values(), *self._seen.values()))
            staged = any(stage > 0 for stage, _ in known)
            missing: list[dict[str, str]] = []
            apart: list[dict[str, str]] = []
            for data_type in types:
                for (stage, name), reason in self._expected.get(data_type, {}).items():
                    if (stage, name) in seen[data_type]:
                        continue
                    reason = self._lost.get(data_type, {}).get((stage, name), reason)
                    shown = f"{stage}:{name}" if staged else name
                    entry = {"data_type": data_type, "name": shown, "reason": reason.text}
                    if reason.kind:
                        apart.append({**entry, "kind": reason.kind})
                    else:
                        missing.append(entry)
            counts = Counter(entry["data_type"] for entry in missing)
            unseen = [*missing, *(entry for entry in apart if entry["kind"] == NOT_CALLED)]
            return {
                "schema": 1,
                "expected": {t: counts[t] + len(seen[t]) for t in types},
                "seen": {t: len(seen[t]) for t in types},
                "without_rows": self._without_rows(seen, unseen),
                "missing": missing,
                "apart": apart,
                "switched_off": list(self._switched_off),
                "notes": list(self._notes),
                "skipped_steps": list(self._skipped_steps),
            }

    def _without_rows(self, seen: dict[str, set[_Key]], unseen: list[dict[str, str]]) -> dict[str, str]:
        """Data types that were asked for and have not one row, each with the reason."""
        reasons: dict[str, Counter[str]] = {}
        for entry in unseen:
            reasons.setdefault(entry["data_type"], Counter())[entry["reason"]] += 1
        found = {data_type: count.most_common(1)[0][0] for data_type, count in reasons.items()} | self._of_types
        return {data_type: reason for data_type, reason in sorted(found.items()) if not seen.get(data_type)}
