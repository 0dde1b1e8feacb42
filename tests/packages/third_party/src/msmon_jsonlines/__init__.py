"""What somebody else's package brings: a writer and a rule."""

import json

import attrs

from msmon_alert import ColumnRule


class JsonLinesWriter:
    def __init__(self, context):
        self._rank = context.rank
        self._file = open(context.run_dir / "statistics.jsonl", "a", encoding="utf-8")  # noqa: SIM115

    def write(self, table):
        for tag, row in zip(table.tags(self._rank), table.rows(), strict=True):
            values = dict(zip(table.number_ops, row, strict=True))
            print(json.dumps({"step": table.step, "tensor": tag, **values}), file=self._file)

    def flush(self):
        self._file.flush()

    def close(self):
        self._file.close()


class Broken:
    def __init__(self, context):
        raise RuntimeError("no server")


@attrs.frozen
class AnomalyAbove(ColumnRule):
    limit: float = 1.0

    def __attrs_post_init__(self):
        if self.limit < 0:
            raise ValueError(f"limit: {self.limit} is not allowed; it takes a number >= 0")

    def applies(self, stat):
        return stat == "norm"

    def check_column(self, stat, values, history, batch):
        return values > self.limit, None
