"""Every file of the reference, cell by cell: names, rows and values.

What differs on purpose is listed here and nowhere else: rows of tensors that do not exist, the nested output of the
LSTM, and the spectral norms (the reference ran three power iterations from a random start).
"""

import csv
import json
import math
from pathlib import Path

import pytest
import torch

from msmon.pytorch import TrainerMon

from .reference_cases import CASES
from .reference_models import DATA, build, config_of, train

KEYS = ("vpp_stage", "name", "step", "micro_step")


def rows(path: Path) -> dict[tuple[str, ...], dict[str, str]]:
    with path.open(newline="") as file:
        return {tuple(row[key] for key in KEYS if key in row): row for row in csv.DictReader(file)}


def spectral(case_model: torch.nn.Module, name: str) -> dict[str, float]:
    weight = case_model.get_submodule(name).weight.detach().double()
    norm = torch.linalg.matrix_norm(weight, 2).item()
    return {"kernel_norm": norm, "sr": torch.linalg.matrix_norm(weight).item() / norm}


def run(case: str, write_config, output_dir: Path, **changes: object) -> Path:
    model_name, grad_acc_steps = CASES[case]
    config = {**config_of(case), **changes}
    model, optimizer = build(model_name)
    with TrainerMon(write_config(**config), params_have_main_grad=False) as monitor:
        monitor.set_monitor(model, grad_acc_steps=grad_acc_steps, optimizer=optimizer)
        train(model_name, model, optimizer, grad_acc_steps)
    return next(iter(output_dir.glob("*-rank0-*")))


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("struct", "linear_hook")])
def test_files_rows_and_values(case, write_config, output_dir):
    ops = [*config_of(case)["ops"], "shape", "dtype"]
    run_dir = run(case, write_config, output_dir, ops=ops)
    expected_files = {path.name for path in (DATA / case).glob("*.csv")}
    assert {path.name for path in run_dir.glob("*.csv")} == expected_files
    for name in sorted(expected_files):
        reference = {key: row for key, row in rows(DATA / case / name).items() if row["shape"] != "nan"}
        ours = {key: row for key, row in rows(run_dir / name).items() if not row["name"].startswith("rnn.output_1_")}
        # Order within a data type and micro-step is the reference's; micro-steps of one module need not be adjacent.
        by_micro = [sorted(keys, key=lambda key: key[3:]) for keys in (reference, ours)]
        assert by_micro[1] == by_micro[0], name
        for key, row in reference.items():
            assert list(ours[key]) == list(row), f"columns of {name}"
            for column in row:
                compare(row[column], ours[key][column], column, f"{name} {key} {column}")


def compare(expected: str, found: str, column: str, where: str) -> None:
    if column in (*KEYS, "shape", "dtype"):
        assert found == expected, where
    elif column == "nans":
        assert float(found) == float(expected), where
    else:
        # The reference sums in float32: a mean near zero differs by the rounding of the sum.
        tolerance = 1e-6 if column == "zeros" else 2e-8
        assert math.isclose(float(found), float(expected), rel_tol=1e-6, abs_tol=tolerance), where


def test_the_nested_output_has_rows(write_config, output_dir):
    run_dir = run("xy_tuple", write_config, output_dir)
    names = [key[1] for key in rows(run_dir / "actv_0-0.csv")]
    assert names == [
        "emb.input",
        "emb.output",
        "rnn.input",
        "rnn.output_0",
        "rnn.output_1_0",
        "rnn.output_1_1",
        "head.input",
        "head.output",
        ".input",
        ".output",
    ]
    assert ",nan," not in (run_dir / "actv_grad_0-0.csv").read_text()


def test_linear_hook(write_config, output_dir):
    model_name, grad_acc_steps = CASES["linear_hook"]
    run_dir = run("linear_hook", write_config, output_dir)
    model, optimizer = build(model_name)
    true_values: list[dict[str, dict[str, float]]] = []
    optimizer.register_step_pre_hook(
        lambda *_: true_values.append({name: spectral(model, name) for name in ("fc1", "fc2")})
    )
    train(model_name, model, optimizer, grad_acc_steps)
    for step, truth in enumerate(true_values):
        name = f"linear_hook_{step}-{step}.csv"
        reference, ours = rows(DATA / "linear_hook" / name), rows(run_dir / name)
        assert list(ours) == list(reference)
        for key, row in ours.items():
            for column in ("sr", "kernel_norm"):
                # Against the true value, not against the reference, which is up to a few percent off.
                assert float(row[column]) == pytest.approx(truth[key[1].removesuffix(".linear")][column], rel=1e-3)


def test_module_structure(write_config, output_dir):
    with pytest.raises(SystemExit) as ended:
        run("struct", write_config, output_dir)
    assert ended.value.code in (0, None)
    found = json.loads((output_dir / "module_struct" / "rank0" / "module_struct.json").read_text())
    assert found == json.loads((DATA / "struct" / "module_struct.json").read_text())
