"""Other values of the configuration's fields while the training runs, by a call of the training script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from msmon.config import Config, Period, parse_config
from msmon.session import Session
from msmon_hooks import Clock, Schedule

_SCHEDULED = {"start_step", "step_interval", "collect_times"}
"""Fields that say which steps are sampled."""


class ConfigChanges:
    """The calls of `msmon.monitor.BaseTrainerMon` that change its configuration."""

    _config: Config
    _waiting: Config | None
    """In force from the next step on."""
    _dynamic: bool
    _period: Period | None
    _attachment: Any
    _clock: Clock
    _session: Session | None

    def _change_session(self, config: Config | None) -> None:
        """See `msmon.monitor.BaseTrainerMon`."""
        raise NotImplementedError

    @property
    def ops(self) -> list[str]:
        """The statistics; they may be changed while training, from the next step on, in a new run directory."""
        return list((self._waiting or self._config).ops)

    @ops.setter
    def ops(self, ops: Sequence[str]) -> None:
        self.change_config(ops=list(ops))

    def change_config(self, **fields: Any) -> None:
        """Put other values of the configuration's fields into force, from the next step on.

        Which steps are sampled changes within the run directory; everything else begins a new one.

        Raises:
            msmon.config.ConfigError: an unknown field, or a value that the configuration file may not have either.

        Example:
            >>> monitor.change_config(step_interval=10, ops=["norm", "max"])  # doctest: +SKIP
        """
        before = (self._waiting or self._config).to_dict()
        changed = parse_config({**before, **fields}, "change_config")
        self._waiting = attrs.evolve(changed, second_form=self._config.second_form)
        if not self._clock.in_step:
            self._apply_waiting()

    def _apply_waiting(self) -> None:
        config, self._waiting = self._waiting, None
        if config is None:
            return
        before, self._config = self._config, config
        collecting = self._period is not None if self._dynamic else not self._clock.exhausted
        if self._session is None or self._attachment is None or not collecting:
            return
        first_step = config.start_step if self._period is None else self._period.first_step
        self._clock.reschedule(schedule_of(config, first_step), self._clock.taken)
        if config.differences(before) <= _SCHEDULED:
            self._session.reschedule(config)
        else:
            self._change_session(config)


def schedule_of(config: Config, first_step: int) -> Schedule:
    """Which steps a configuration samples, counted from `first_step`."""
    return Schedule(start_step=first_step, step_interval=config.step_interval, collect_times=config.collect_times)
