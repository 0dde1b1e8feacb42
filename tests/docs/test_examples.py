"""Every example runs as its docstring says, on two ranks, and leaves what it promises."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from .pages import ROOT

NOT_STARTED = {
    "megatron_on_cpu": "imported by megatron_core.py",
    "mindspore_mlp": "see test_mindspore_example.py",
    "plain_loop": "does not mention msmon; see tests/integration/test_run.py",
}
ENGINES = {
    "accelerate_ddp": "ddp",
    "accelerate_deepspeed": "deepspeed_zero2",
    "collectives": "plain",
    "ddp": "ddp",
    "deepspeed_zero": "deepspeed_zero2",
    "fsdp1": "fsdp1",
    "fsdp2": "fsdp2",
    "hf_trainer": "ddp",
    "lightning_trainer": "ddp",
    "megatron_core": "megatron",
    "tensor_parallel": "tensor_parallel",
    "tiny_gpt": "plain",
}


def run_dirs(output: Path) -> dict[int, Path]:
    return {int(re.search(r"-rank(\d+)-", path.name)[1]): path for path in output.glob("*-rank*-*")}


def test_every_example_is_tried_and_named() -> None:
    assert {path.stem for path in ROOT.glob("examples/*.py")} == {*ENGINES, *NOT_STARTED}
    text = (ROOT / "README.md").read_text() + (ROOT / "docs/engines/README.md").read_text()
    for name in ENGINES:
        assert f"examples/{name}.py" in text, name


@pytest.mark.parametrize("name", ENGINES)
def test_example(name: str, example: Callable[..., Path]) -> None:
    output = example(f"examples/{name}.py", *(("--steps", "2") if name == "tiny_gpt" else ()))
    ranks = run_dirs(output)
    assert sorted(ranks) == ([0] if name == "tiny_gpt" else [0, 1])
    for rank, run_dir in ranks.items():
        assert json.loads((run_dir / "run.json").read_text())["engine"] == ENGINES[name]
        notes = json.loads((run_dir / "coverage.json").read_text())["notes"]
        assert not [note for note in notes if "switched off" in note], notes
        kind = "other" if name == "collectives" else "grad_unreduced"
        with min(run_dir.glob(f"{kind}_*.csv")).open() as file:
            rows = list(csv.DictReader(file))
        assert rows, (name, rank)
        assert all(float(row["nans"]) == 0 for row in rows)
