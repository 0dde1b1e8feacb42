"""Every file of the reference, cell by cell, from a MindSpore training of the same models."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from mindspore import nn

from msmon.mindspore import TrainerMon

from .mindspore_models import CASES, DATA, build, config_of, train

KEYS = ("vpp_stage", "name", "step", "micro_step")
DTYPES = {"torch.float32": "Float32", "torch.int64": "Int64"}


def rows(path: Path) -> dict[tuple[str, ...], dict[str, str]]:
    with path.open(newline="") as file:
        found = [{**row, "name": row["name"].replace("embedding_table", "weight")} for row in csv.DictReader(file)]
    return {tuple(row[key] for key in KEYS if key in row): row for row in found}


def run(case: str, write_config, output_dir: Path, model_name: str, grad_acc_steps: int, **changes: object) -> Path:
    model, optimizer = build(model_name)
    with TrainerMon(write_config(**{**config_of(case), **changes})) as monitor:
        monitor.set_monitor(model, grad_acc_steps, optimizer)
        train(model_name, model, optimizer, grad_acc_steps)
    return next(iter(output_dir.glob("*-rank0-*")), output_dir)


@pytest.mark.parametrize("case", CASES)
def test_files_rows_and_values(case, write_config, output_dir):
    ops = [*config_of(case)["ops"], "shape", "dtype"]
    run_dir = run(case, write_config, output_dir, *CASES[case], ops=ops)
    expected_files = {path.name for path in (DATA / case).glob("*.csv")}
    assert {path.name for path in run_dir.glob("*.csv")} == expected_files
    for name in sorted(expected_files):
        reference = {key: row for key, row in rows(DATA / case / name).items() if row["shape"] != "nan"}
        # MindSpore's LSTM is a Cell with further Cells inside, and its state has rows.
        ours = {
            key: row
            for key, row in rows(run_dir / name).items()
            if not key[1].startswith(("rnn.output_1_", "rnn.rnn.", "rnn.dropout"))
        }
        by_micro = [sorted(keys, key=lambda key: key[3:]) for keys in (reference, ours)]
        assert [*map(set, by_micro)] == [set(by_micro[0])] * 2, name
        if not name.startswith("grad_unreduced"):
            # The order of a backward is the framework's.
            assert by_micro[1] == by_micro[0], name
        for key, row in reference.items():
            assert list(ours[key]) == list(row), f"columns of {name}"
            for column in row:
                updates = int(key[2]) + name.startswith("param_updated")
                compare(row[column], ours[key][column], column, updates, f"{name} {key} {column}")


def compare(expected: str, found: str, column: str, updates: int, where: str) -> None:
    if column in (*KEYS, "shape"):
        assert found == expected, where
    elif column == "dtype":
        assert found == DTYPES[expected], where
    elif column == "nans":
        assert float(found) == float(expected), where
    else:
        # The reference sums in float32: a mean near zero differs by the rounding of the sum. With every update the
        # weights differ a little more, since the two Adams do.
        relative = 1e-5 if updates == 0 else 5e-4
        assert math.isclose(float(found), float(expected), rel_tol=relative, abs_tol=2e-7), where


def test_linear_hook(write_config, output_dir):
    run_dir = run("linear_hook", write_config, output_dir, "mlp", 1)
    model, optimizer = build("mlp")
    norms = []

    class Recording(nn.Cell):
        parameters = optimizer.parameters

        def construct(self, gradients):
            norms.append([np.linalg.svd(cell.weight.asnumpy(), compute_uv=False) for cell in (model.fc1, model.fc2)])
            return optimizer(gradients)

    train("mlp", model, Recording())
    for step, singular in enumerate(norms):
        found = list(rows(run_dir / f"linear_hook_{step}-{step}.csv").values())
        assert [row["name"] for row in found] == ["fc1.linear", "fc2.linear"]
        for row, values in zip(found, singular, strict=True):
            assert float(row["kernel_norm"]) == pytest.approx(values[0], rel=1e-3)
            assert float(row["sr"]) == pytest.approx(np.sqrt((values**2).sum()) / values[0], rel=1e-3)


def test_module_structure(write_config, output_dir):
    with pytest.raises(SystemExit) as ended:
        run("struct", write_config, output_dir, "seq", 1)
    assert ended.value.code in (0, None)
    found = json.loads((output_dir / "module_struct" / "rank0" / "module_struct.json").read_text())
    text = (DATA / "struct" / "module_struct.json").read_text()
    for theirs, ours in DTYPES.items():
        text = text.replace(theirs, ours)
    expected = json.loads(text)
    inside = {"0:rnn.rnn", "0:rnn.dropout_op"}
    assert {key: value for key, value in found.items() if key not in inside} == expected
