"""Tables in, alerts out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from msmon_alert.alert import Alert, Fired
from msmon_alert.batch import Batch, Bools, Layout, TagIndex
from msmon_alert.memory import Memory
from msmon_alert.rule import Finding, Rule

logger = logging.getLogger("msmon_alert")

SCHEMA = 1


class Monitor:
    """Applies rules, in their order, to every value of every table it is shown, and keeps the histories.

    Not safe for concurrent calls: let one thread observe.

    Args:
        rules: asked in this order. One that raises is switched off, with an error in the log; the others go on.
        on_failure: called with the name of a rule that was switched off, and with what it raised, as text.

    Raises:
        TypeError: one of the rules is not a `Rule`.

    >>> import numpy as np
    >>> from msmon_alert import AnomalyNan, AnomalyTurbulence
    >>> monitor = Monitor([AnomalyTurbulence(threshold=2.0), AnomalyNan()])
    >>> for step, norm in enumerate([1.0, 1.2, float("nan"), 9.0]):
    ...     for alert in monitor.observe(step, ["fc1.weight"], ["norm"], np.array([[norm]])):
    ...         print(alert.step, alert.tag, alert.rule, alert.value)
    2 fc1.weight AnomalyNan nan
    3 fc1.weight AnomalyTurbulence 9.0
    """

    def __init__(self, rules: Sequence[Rule], *, on_failure: Callable[[str, str], object] | None = None) -> None:
        for rule in rules:
            if not isinstance(rule, Rule):
                raise TypeError(f"rules: {rule!r} is not a Rule; pass instances such as AnomalyNan()")
        self.rules = tuple(rules)
        self._memories = tuple(Memory() for _ in self.rules)
        self._index = TagIndex()
        self._failed: set[int] = set()
        self._on_failure = on_failure

    def observe(
        self,
        step: int,
        tags: Sequence[str],
        stats: Sequence[str],
        values: Any,
        *,
        no_grad: Any = None,
        discrete: Any = None,
    ) -> list[Alert]:
        """Judges one table; a step may have several.

        Args:
            step: step number, only repeated in the alerts.
            tags: n names, one a tensor, in the order in which things happened. Each tag (so each micro-step) has its
                own history. The last part after "/" is the data type, as in `0:fc1.weight/rank0/param_updated`.
            stats: k names of statistics. `shape` and `dtype` columns are passed over.
            values: float [n, k]; nan and infinite values are judged as such.
            no_grad: bool [n], the tensor is an input that needs no gradient; default none.
            discrete: bool [n], the tensor is of an integer or bool type; default none.

        Returns:
            One alert for each tensor on which a rule fired, in the order of `tags`. On each value the first rule that
            fires reports.

        Raises:
            ValueError: the shapes do not agree.
        """
        names = tuple(stats)
        table = np.asarray(values, dtype=np.float64)
        if table.size == 0 and len(tags) * len(names) == 0:
            return []
        if table.shape != (len(tags), len(names)):
            raise ValueError(
                f"values has shape {table.shape}; {len(tags)} tags and {len(names)} statistics "
                f"need ({len(tags)}, {len(names)})"
            )
        layout = self._index.layout(tags)
        for memory in self._memories:
            memory.reserve(len(self._index.tags))
        batch = Batch(
            step=step,
            stats=names,
            values=table,
            no_grad=_mask("no_grad", no_grad, len(table)),
            discrete=_mask("discrete", discrete, len(table)),
            layout=layout,
        )
        if not layout.rounds:
            return self._judge(batch, range(len(table)))
        alerts = []
        for positions in layout.rounds:
            part = attrs.evolve(
                batch,
                values=table[positions],
                no_grad=batch.no_grad[positions],
                discrete=batch.discrete[positions],
                layout=Layout([layout.tags[p] for p in positions], self._index.tags, self._index.tensors),
            )
            alerts.extend(self._judge(part, positions))
        return sorted(alerts, key=lambda alert: alert.index)

    def _judge(self, batch: Batch, positions: Sequence[int]) -> list[Alert]:
        taken: Bools = np.zeros(batch.values.shape, dtype=np.bool_)
        found: dict[int, list[tuple[int, Fired]]] = {}
        with np.errstate(all="ignore"):
            for rule, memory in zip(self.rules, self._memories, strict=True):
                for column, fired, reference in self._checked(rule, batch, memory):
                    new = fired & ~taken[:, column]
                    if not new.any():
                        continue
                    taken[:, column] |= new
                    for row in np.flatnonzero(new).tolist():
                        entry = Fired(
                            stat=batch.stats[column],
                            rule=rule.name,
                            value=float(batch.values[row, column]),
                            history=None if reference is None else float(reference[row]),
                        )
                        found.setdefault(row, []).append((column, entry))
        return [
            Alert(
                tag=batch.layout.tags[row],
                step=batch.step,
                index=positions[row],
                fired=tuple(entry for _, entry in sorted(found[row], key=lambda pair: pair[0])),
            )
            for row in sorted(found)
        ]

    def _checked(self, rule: Rule, batch: Batch, memory: Memory) -> list[Finding]:
        """What a rule says; one that raises or says nonsense is off from then on, and the others go on."""
        if id(rule) in self._failed:
            return []
        try:
            return [_valid(finding, batch) for finding in rule.check(batch, memory)]
        except Exception as error:
            self._failed.add(id(rule))
            reason = f"{type(error).__name__}: {error}"
            logger.error("the rule %s is switched off: %s", rule.name, reason)
            logger.debug("the failure in %s", rule.name, exc_info=error)
            if self._on_failure is not None:
                self._on_failure(rule.name, reason)
            return []

    def state_dict(self) -> dict[str, Any]:
        """The histories, as plain data: strings, lists and numpy arrays. Independent of what is observed later.

        `msmon_alert.save_state` writes it to a file.
        """
        rows = len(self._index.tags)
        return {
            "schema": SCHEMA,
            "tags": list(self._index.tags),
            "rules": [
                {"rule_name": rule.name, "arrays": memory.state_dict(rows)}
                for rule, memory in zip(self.rules, self._memories, strict=True)
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues the histories of a `state_dict()`, in place of those held now.

        The n-th rule of a name takes the history of the n-th saved rule of that name, whatever its threshold. A rule
        that the saved state does not know, or whose window has another length, begins without history.

        Raises:
            ValueError: this is not such a state; the histories are as before.
        """
        if not isinstance(state, Mapping) or state.get("schema") != SCHEMA:
            found = state.get("schema") if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(f"not a state of msmon_alert.Monitor: schema {found!r}, this version reads {SCHEMA}")
        saved: dict[str, list[Any]] = {}
        for entry in state["rules"]:
            if any(len(array) != len(state["tags"]) for array in entry["arrays"].values()):
                raise ValueError(f"a damaged state: the histories of {entry['rule_name']} do not fit its tags")
            saved.setdefault(entry["rule_name"], []).append(entry["arrays"])
        index = TagIndex()
        index.layout(state["tags"])
        memories = tuple(Memory() for _ in self.rules)
        for rule, memory in zip(self.rules, memories, strict=True):
            arrays = saved[rule.name].pop(0) if saved.get(rule.name) else {}
            if rule.accepts(arrays):
                memory.load_state_dict(arrays)
        self._index, self._memories = index, memories


def _valid(finding: Finding, batch: Batch) -> Finding:
    """The finding as arrays; rules of others may return anything."""
    column, fired, reference = finding
    flags = np.asarray(fired, dtype=np.bool_)
    numbers = None if reference is None else np.asarray(reference, dtype=np.float64)
    rows = (len(batch.values),)
    if flags.shape != rows or (numbers is not None and numbers.shape != rows):
        found = flags.shape if numbers is None else f"{flags.shape} and {numbers.shape}"
        raise ValueError(f"it answered with shape {found} for {rows[0]} tensors")
    if not 0 <= column < len(batch.stats):
        raise ValueError(f"it answered for column {column} of {len(batch.stats)}")
    return column, flags, numbers


def _mask(name: str, mask: Any, rows: int) -> Bools:
    if mask is None:
        return np.zeros(rows, dtype=np.bool_)
    array = np.asarray(mask, dtype=np.bool_)
    if array.shape != (rows,):
        raise ValueError(f"{name} has shape {array.shape}; {rows} tags need ({rows},)")
    return array
