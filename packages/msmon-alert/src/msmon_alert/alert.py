"""What a monitor reports: one alert a tensor and step, holding everything that fired on it."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Fired:
    """One rule that fired on one value.

    >>> Fired(stat="norm", rule="AnomalyTurbulence", value=100.0, history=1.5)
    Fired(stat='norm', rule='AnomalyTurbulence', value=100.0, history=1.5)
    """

    stat: str
    """The statistic, as named in the table: `norm`, `mean`, `zeros`, ..."""
    rule: str
    """Name of the rule, as in a configuration."""
    value: float
    """The value that fired; may be nan or infinite."""
    history: float | None
    """What the rule compared it with (an average, a median, a floor); None for a rule that compares with nothing."""


@attrs.frozen(kw_only=True)
class Alert:
    """Everything odd about one tensor in one step.

    `rule`, `stat`, `value` and `history` are those of the first entry of `fired`; the order of `fired` is that of the
    statistics in the table.

    >>> alert = Alert(tag="loss", step=7, index=0, fired=(Fired(stat="mean", rule="AnomalyNan", value=float("nan"),
    ...     history=None),))
    >>> alert.rule, alert.stat
    ('AnomalyNan', 'mean')
    >>> alert.message
    "Rule AnomalyNan reports anomaly signal in ('loss', 'mean') at step 7, current value nan."
    """

    tag: str
    step: int
    index: int
    """Row of the tag in the table that was observed."""
    fired: tuple[Fired, ...]

    @property
    def rule(self) -> str:
        """Name of the rule that fired first."""
        return self.fired[0].rule

    @property
    def stat(self) -> str:
        """The statistic that it fired on."""
        return self.fired[0].stat

    @property
    def value(self) -> float:
        """The value that it fired on; may be nan or infinite."""
        return self.fired[0].value

    @property
    def history(self) -> float | None:
        """What it compared that with; None for a rule that compares with nothing."""
        return self.fired[0].history

    @property
    def message(self) -> str:
        """One line for people: rule, tag, statistic, step, value, what it was compared with, what else fired."""
        first = self.fired[0]
        past = "" if first.history is None else f", history mean {first.history:.9g}"
        others = ", ".join(f"{f.stat} {f.value:.6g} ({f.rule})" for f in self.fired[1:])
        return (
            f"Rule {first.rule} reports anomaly signal in ({self.tag!r}, {first.stat!r}) at step {self.step}, "
            f"current value {first.value:.9g}{past}." + (f" Also: {others}." if others else "")
        )
