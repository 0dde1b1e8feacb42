"""Ranks that stay for all tests of a session, and the table of what was proved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from .launcher import Ranks

if TYPE_CHECKING:
    from .proof import ProofTable

_TABLE: pytest.StashKey[ProofTable] = pytest.StashKey()


class _Pool:
    """Two ranks; started at the first use, and anew after a failure."""

    def __init__(self) -> None:
        self._ranks: Ranks | None = None

    def run(self, module: str, function: str, **arguments: object) -> list[object]:
        if self._ranks is None:
            self._ranks = Ranks(2)
        try:
            return self._ranks.run(module, function, **arguments)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None


@pytest.fixture(scope="session")
def ranks() -> Iterator[_Pool]:
    """``ranks.run(module, function, **arguments)``: two processes, gloo."""
    pool = _Pool()
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def megatron_ranks() -> Iterator[_Pool]:
    """As ``ranks``, for Megatron-core alone: it has to be told for good that the CPU is CUDA."""
    pool = _Pool()
    yield pool
    pool.close()


@pytest.fixture
def proof(request: pytest.FixtureRequest) -> ProofTable:
    """``proof.check(engine, claim, function, *arguments)`` fills a cell of the table."""
    # It needs torch, which the environment of MindSpore does not have.
    from .proof import ProofTable

    return request.config.stash.setdefault(_TABLE, ProofTable())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table below the tests."""
    table = config.stash.get(_TABLE, None)
    if table is not None:
        terminalreporter.write_sep("-", "what was proved of each engine")
        for line in table.lines():
            terminalreporter.write_line(line)
