"""What could not be written: said once, counted, and reported at the end."""

from __future__ import annotations

import logging

from attrs import define

logger = logging.getLogger("msmon_io")


@define(kw_only=True)
class Losses:
    """The failures of one part (a writer, the background thread)."""

    part: str
    """What the messages call it, e.g. `csv`."""
    unit: str = "rows"
    lost: int = 0
    failures: int = 0
    first: str = ""

    def add(self, lost: int, error: BaseException, what: str) -> None:
        """Count a failure; the first one is an error line, the others are debug lines."""
        self.lost += lost
        self.failures += 1
        message = f"{what}: {type(error).__name__}: {error}"
        if self.failures == 1:
            self.first = message
            logger.error(
                "%s output failed: %s. Further failures are only counted; training goes on.", self.part, message
            )
        else:
            logger.debug("%s output failed: %s", self.part, message)

    def report(self) -> None:
        """The closing line, if anything was lost."""
        if self.failures and not self.lost:
            logger.warning(
                "%s output: %d failures, but nothing was lost (the first: %s)", self.part, self.failures, self.first
            )
        elif self.failures:
            logger.error(
                "%s output: %d %s could not be written (%d failures, the first: %s)",
                self.part,
                self.lost,
                self.unit,
                self.failures,
                self.first,
            )
