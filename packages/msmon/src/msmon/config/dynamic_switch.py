"""Dynamic mode: which configuration is in force at which step, the same on all ranks."""

import logging
import os
import time
from collections.abc import Callable

from attrs import frozen

from msmon.config.dynamic_file import ConfigWatch, Content, switch_off
from msmon.config.environment import launch_id
from msmon.config.json_text import parse_object
from msmon.config.load import parse_config
from msmon.config.model import Config
from msmon.config.problems import ConfigError
from msmon.config.reading import path_name
from msmon.config.start_file import Announcement, StartFile

logger = logging.getLogger("msmon")

_PATIENCE_STEPS = 20
_PATIENCE_SECONDS = 120.0


@frozen(kw_only=True)
class Period:
    """A configuration and the steps at which it collects.

    >>> Period(config=Config(step_interval=2, collect_times=3), first_step=10).last_step
    14
    """

    config: Config
    first_step: int
    """Steps are counted from here; `start_step` of the configuration is not looked at."""
    digest: str = ""
    """Of the content of the file that it was read from."""

    @property
    def last_step(self) -> int:
        """The last sampled step; before `first_step` if there is none."""
        return self.first_step + (self.config.collect_times - 1) * self.config.step_interval


class DynamicSwitch:
    """Turns edits of the configuration file into periods of collection.

    Rank 0 watches the file. With several ranks it announces each change in a start file, one step ahead: a rank that
    has finished a step of synchronous training finds in it what rank 0 had written before that step, so all ranks
    collect the same steps without a collective. A rank that sees an announcement late, because its file system shows
    files late, joins at once, says so, and ends at the same step as the others.

    Nothing here raises for a file that is broken, gone or cannot be written: that is logged, and training goes on.

    Args:
        path: the configuration file. With several ranks, on a file system that all of them see.
        rank: this process.
        world_size: how many processes train.
        launch: what tells this launch from another one; default: from the environment.
        parse: what checks the object in the file.

    >>> switch = DynamicSwitch("monitor_config.json")  # doctest: +SKIP
    >>> switch.begin(next_step=0)  # doctest: +SKIP
    >>> period = switch.after_step(0)  # in force for step 1, or None  # doctest: +SKIP
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        rank: int = 0,
        world_size: int = 1,
        launch: str | None = None,
        parse: Callable[..., Config] = parse_config,
    ) -> None:
        self._path = path
        self._parse = parse
        self._rank = rank
        self._world_size = world_size
        self._launch = launch_id() if launch is None else launch
        self._watch = ConfigWatch(path)
        self._start_file = StartFile(path)
        self._generation = 0
        self.period: Period | None = None
        """What is in force for the step that comes next, the same object until it changes; None: nothing."""
        self._coming: list[tuple[int, Period | None]] = []
        """From which step on what will be in force."""
        self._unannounced: tuple[str, int, float] | None = None

    def begin(self, next_step: int = 0) -> None:
        """Look at the file for the first time. `next_step` itself is never collected; the one after it may be."""
        if self._rank == 0:
            # One of an earlier launch, on which nobody may act.
            self._start_file.remove()
            self._watch_file(next_step, ahead=1)

    def after_step(self, step: int) -> Period | None:
        """To be called after each step; returns what is in force for the next one."""
        next_step = step + 1
        if self._rank == 0:
            self._watch_file(next_step, ahead=0 if self._world_size == 1 else 1)
        else:
            self._follow(next_step)
        while self._coming and self._coming[0][0] <= next_step:
            _, self.period = self._coming.pop(0)
        if self.period is not None and next_step > self.period.last_step:
            ended, self.period = self.period, None
            if self._rank == self._writer(ended.config):
                self._switch_off(ended)
        return self.period

    @property
    def _latest(self) -> Period | None:
        return self._coming[-1][1] if self._coming else self.period

    def close(self) -> None:
        """Leave no start file behind."""
        if self._rank == 0 and self._world_size > 1:
            self._start_file.remove()

    # Rank 0

    def _watch_file(self, next_step: int, *, ahead: int) -> None:
        try:
            content = self._watch.changed()
            if content is None:
                return
            period = self._read(content, next_step + ahead)
        except ConfigError as error:
            goes_on = self._latest is not None
            logger.error("%s\n%s", error, "collection goes on as before" if goes_on else "nothing is collected")
            return
        before = self._latest
        if period is None and before is None:
            return
        if period is not None and before is not None and period.digest == before.digest:
            return  # a mistake was taken back
        for warning in period.config.warnings if period is not None else ():
            logger.warning("%s: %s", path_name(self._path), warning)
        self._announce(content, period, next_step + ahead)

    def _read(self, content: Content, first_step: int) -> Period | None:
        name = path_name(self._path)
        config = self._parse(parse_object(content.data, name), name)
        return Period(config=config, first_step=first_step, digest=content.digest) if config.dynamic_on else None

    def _announce(self, content: Content, period: Period | None, first_step: int) -> None:
        if self._world_size > 1:
            self._generation += 1
            announcement = Announcement(
                launch=self._launch,
                generation=self._generation,
                first_step=first_step,
                digest=content.digest,
                config=parse_object(content.data, path_name(self._path)) if period is not None else None,
            )
            try:
                self._start_file.write(announcement)
            except OSError as error:
                logger.error(
                    "%s cannot be written (%s), so the other ranks would not follow the change of %s; it is ignored",
                    self._start_file.path,
                    error.strerror or error,
                    path_name(self._path),
                )
                return
        self._coming.append((first_step, period))

    # The other ranks

    def _follow(self, next_step: int) -> None:
        for news in self._start_file.news():
            if news.launch != self._launch or news.generation <= self._generation:
                continue
            self._generation = news.generation
            if self._unannounced is not None and self._unannounced[0] == news.digest:
                self._unannounced = None
            self._coming.append((news.first_step, self._announced(news, next_step)))
        self._miss_announcement(next_step)

    def _announced(self, news: Announcement, next_step: int) -> Period | None:
        if news.config is None:
            return None
        try:
            config = self._parse(news.config, path_name(self._path))
        except ConfigError as error:  # a rule that is installed for rank 0 only
            logger.error("rank %d cannot use the configuration of rank 0, and collects nothing: %s", self._rank, error)
            return None
        if news.first_step < next_step:
            logger.warning(
                "rank %d learned only at step %d that collection began with step %d; the steps between are missing",
                self._rank,
                next_step,
                news.first_step,
            )
        return Period(config=config, first_step=news.first_step, digest=news.digest)

    def _miss_announcement(self, next_step: int) -> None:
        """Say it once if this rank sees a configuration that was switched on and never announced."""
        try:
            content = self._watch.changed()
            if content is not None:
                known = self._latest is not None and self._latest.digest == content.digest
                on = not known and self._read(content, next_step) is not None
                self._unannounced = (content.digest, next_step, time.monotonic()) if on else None
        except ConfigError:
            return  # rank 0 says it
        if self._unannounced is None:
            return
        digest, step, seen = self._unannounced
        if next_step - step >= _PATIENCE_STEPS and time.monotonic() - seen >= _PATIENCE_SECONDS:
            self._unannounced = None
            logger.error(
                "rank %d sees dynamic_on in %s (%s...), but rank 0 has announced no start in %s; nothing is collected "
                "on this rank. Is the file on a file system that all ranks share?",
                self._rank,
                path_name(self._path),
                digest[:8],
                self._start_file.path,
            )

    # The end of a period

    def _writer(self, config: Config) -> int:
        """The smallest monitored rank."""
        return min((rank for rank in config.module_ranks if rank < self._world_size), default=0)

    def _switch_off(self, ended: Period) -> None:
        try:
            switch_off(self._path, ended.digest)
        except (ConfigError, OSError) as error:
            logger.error(
                "collection has ended after collect_times steps, but dynamic_on in %s could not be set to false: %s",
                path_name(self._path),
                error,
            )
