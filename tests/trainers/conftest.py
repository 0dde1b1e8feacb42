"""The table of ways to train, printed with `pytest tests/trainers -s`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    # It needs torch, which the environment of MindSpore has not got.
    from .probe import Verdict

Row = Callable[[str, "Verdict"], None]


@pytest.fixture(scope="session")
def _verdicts() -> Iterator[dict[str, Verdict]]:
    found: dict[str, Verdict] = {}
    yield found
    if found:
        width = max(map(len, found))
        print(f"\n\n{'way to train':{width}}  losses bit-equal  rows right  steps right  coverage true")
        for way, one in found.items():
            cells = ["no" if said else "yes" for said in (one.losses, one.rows, one.steps, one.coverage)]
            print(f"{way:{width}}  {cells[0]:16}  {cells[1]:10}  {cells[2]:11}  {cells[3]}")


@pytest.fixture
def verdict(_verdicts: dict[str, Verdict]) -> Row:
    """Takes a line of the table, and fails unless all of it holds."""

    def take(way: str, found: Verdict) -> None:
        _verdicts[way] = found
        assert found.holds, found

    return take


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    """As in a new process: where code was compiled, nothing is said of modules that no hook sees."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        dynamo.counters.clear()
