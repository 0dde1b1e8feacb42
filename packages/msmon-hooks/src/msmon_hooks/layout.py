"""Over which ranks a parameter is laid out, and over which its gradient is summed: who should be equal to whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

_MOST = 1 << 20
"""Ranks of a job. A damaged file may name the billionth."""

Groups = Mapping[str, Sequence[int]]
"""Dimension of parallelism (`data`, `tensor`, `expert_data`, `embedding`) to the global ranks of this rank's group."""


@frozen(kw_only=True)
class Layout:
    """What an engine knows of the ranks that share one parameter.

    Example:
        >>> Layout(equal_over={"data": [0, 1, 2, 3]}, summed_over={"data": [0, 1, 2, 3]}, divided_by=4).to_dict()
        {'equal_over': {'data': '0:4'}, 'summed_over': {'data': '0:4'}, 'divided_by': 4}
    """

    equal_over: Groups
    """Ranks of these groups that hold the same part (or all) of the parameter hold the same values."""
    summed_over: Groups | None = None
    """The gradient that the optimizer consumes is the sum of those of these groups' ranks, divided by `divided_by`.
    Without a group it is the rank's own. None: not known."""
    divided_by: float | None = None
    """None: not known, or the program's own choice."""
    dtype: str = ""
    """In which the sum is made, where that is another than the gradients'."""
    numel: int | None = None
    """Elements of the gradient before the reduction on this rank. None: of the whole parameter."""
    tied: str = field(default="")
    """Parameters of other names with the same word, in a group that they share, are this one."""

    def to_dict(self) -> dict[str, Any]:
        """As `run.json` has it: groups as text, see `ranks_text`; what is not known is left out."""
        found: dict[str, Any] = {"equal_over": _texts(self.equal_over)}
        if self.summed_over is not None:
            found["summed_over"] = _texts(self.summed_over)
        rest = {"divided_by": self.divided_by, "dtype": self.dtype, "numel": self.numel, "tied": self.tied}
        return found | {key: value for key, value in rest.items() if value not in (None, "")}


ALONE = Layout(equal_over={}, summed_over={}, divided_by=1)
"""One process: the optimizer consumes what backward has left."""


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks as `first:stop`, as `first:stop:step`, or with commas between them: short, however many there are.

    Example:
        >>> ranks_text([0, 1, 2]), ranks_text([1, 5, 9]), ranks_text([0, 1, 5]), ranks_text([3])
        ('0:3', '1:10:4', '0,1,5', '3')
    """
    if len(ranks) > 1:
        step = ranks[1] - ranks[0]
        if step > 0 and list(ranks) == list(range(ranks[0], ranks[-1] + 1, step)):
            return f"{ranks[0]}:{ranks[-1] + 1}" + (f":{step}" if step > 1 else "")
    return ",".join(map(str, ranks))


def ranks_of_text(text: str) -> list[int]:
    """The ranks that `ranks_text` has written.

    Raises:
        ValueError: it is no such text.

    Example:
        >>> ranks_of_text("1:10:4"), ranks_of_text("0,1,5")
        ([1, 5, 9], [0, 1, 5])
    """
    if ":" not in text:
        return [int(rank) for rank in text.split(",")]
    ends = [int(part) for part in text.split(":")]
    if len(ends) > 3 or len(range(*ends)) > _MOST:
        raise ValueError(f"{text!r} does not say ranks")
    return list(range(*ends))


def _texts(groups: Groups) -> dict[str, str]:
    return {name: ranks_text(ranks) for name, ranks in groups.items()}
