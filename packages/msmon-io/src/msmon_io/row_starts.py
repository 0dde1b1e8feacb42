"""What the rows of a data type begin with: the same at every step, so it is made once."""

from __future__ import annotations

from collections.abc import MutableMapping

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from msmon_io.bulk_numbers import Leading, text_words
from msmon_io.cells import encode_cell
from msmon_io.table import Table

# All rows get as much room as the longest name needs; beyond this the rows are put together one by one.
_MAX_BYTES = 1 << 24


@frozen(kw_only=True)
class RowStarts:
    """The names of a data type's rows, ready to be copied into the lines of a step."""

    names: list[str]
    vpp_stages: list[int]
    micro_steps: list[int] | None
    name_words: NDArray[np.uint32]
    """`vpp_stage,name,` of each row."""
    micro_step_words: NDArray[np.uint32] | None
    """`micro_step,` of each row."""

    @classmethod
    def of(cls, table: Table, known: MutableMapping[str, RowStarts]) -> RowStarts | None:
        """Those of the table; None if its longest name would make them too large.

        Args:
            known: those of each data type at an earlier step; is kept up to date.
        """
        names, stages = list(table.names), list(table.vpp_stages)
        micro_steps = None if table.micro_steps is None else list(table.micro_steps)
        found = known.get(table.data_type)
        if found and (found.names, found.vpp_stages, found.micro_steps) == (names, stages, micro_steps):
            return found
        starts = [f"{stage},{encode_cell(name)}," for stage, name in zip(stages, names, strict=True)]
        if 4 * max(map(len, starts)) * len(starts) > _MAX_BYTES:
            return None
        found = known[table.data_type] = cls(
            names=names,
            vpp_stages=stages,
            micro_steps=micro_steps,
            name_words=text_words(starts),
            micro_step_words=None if micro_steps is None else text_words([f"{step}," for step in micro_steps]),
        )
        return found

    def leading(self, step: int) -> Leading:
        """What the rows of this step begin with."""
        return [self.name_words, f"{step},", *([] if self.micro_step_words is None else [self.micro_step_words])]
