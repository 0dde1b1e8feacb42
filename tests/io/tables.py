"""Tables to write, and what was read, in a form that compares."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from msmon_io import Table, Writer, WriterContext, open_writer

OPS = ("min", "max", "mean", "norm", "nans", "zeros")
HOSTILE_NAMES = (
    "../../x",
    "/abs/path",
    "n" * 300,
    "two\nlines",
    "return\r\nand\ttab",
    "a,comma",
    'a "quotation" mark',
    "=cmd()",
    "+1+1",
    "-2",
    "@SUM(A1)",
    "'=already",
    "\x1b[31mred\x07",
    "back\\slash\\n",
    "\u2028separator\x85",
    "lone \ud800 surrogate",
    "großes Modell 模型",
    "",
    " ",
    "\x00",
)


def table(
    *,
    data_type: str = "grad_reduced",
    step: int = 0,
    names: Sequence[str] = ("fc1.weight", "fc1.bias"),
    ops: Sequence[str] = ("norm",),
    values: Any = None,
    **fields: Any,
) -> Table:
    """A table whose numbers tell row, column and step apart."""
    number_ops = [op for op in ops if op not in fields.get("text", {})]
    if values is None:
        values = [[step + row / 8 + column / 64 for column in range(len(number_ops))] for row in range(len(names))]
    fields.setdefault("vpp_stages", [0] * len(names))
    return Table(data_type=data_type, step=step, names=names, ops=ops, values=values, **fields)


def plain(tables: Iterable[Table]) -> list[dict[str, Any]]:
    """The tables as dictionaries; not-a-number as text, so that it equals itself."""
    return [
        {
            "data_type": one.data_type,
            "step": one.step,
            "names": list(one.names),
            "vpp_stages": list(one.vpp_stages),
            "micro_steps": None if one.micro_steps is None else list(one.micro_steps),
            "ops": list(one.ops),
            "values": [["nan" if math.isnan(value) else value for value in row] for row in one.rows()],
            "text": {op: list(texts) for op, texts in one.text.items()},
        }
        for one in tables
    ]


class Opened(dict[str, Writer]):
    """The writers of several formats by name, called in turn as a monitor does."""

    def __init__(self, formats: Iterable[str], context: WriterContext) -> None:
        super().__init__({name: open_writer(name, context) for name in formats})

    def write(self, table: Table) -> None:
        for writer in self.values():
            writer.write(table)
            writer.flush()

    def close(self) -> None:
        for writer in self.values():
            writer.close()
