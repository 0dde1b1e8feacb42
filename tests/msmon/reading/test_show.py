"""The summary in the terminal."""

from collections.abc import Callable
from pathlib import Path

import pytest

from msmon.cli import main
from msmon.reading import summarize

from .files import write_anomalies, write_rank


def test_summary_of_a_training_with_a_fault(trained: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    summary = summarize(trained("nan"))
    types = {one.data_type: one for one in summary.types}
    assert types["grad_reduced"].steps == (0, 7, 8)
    assert types["exp_avg"].steps == (1, 7, 7)
    assert types["grad_reduced"].tensors == types["grad_reduced"].not_finite == 53
    assert types["actv"].ranks == 2
    peak = types["param_origin"].peaks[0]
    assert (peak.tensor.name, peak.step, peak.rank) == ("blocks.2.mlp.fc.weight", 5, 1)
    assert summary.anomalies.first[0].tensor.name == "blocks.2.mlp.fc.weight"
    assert not summary.coverage.missing
    assert main(["show", str(trained("nan"))]) == 0
    out = capsys.readouterr().out
    assert "2 ranks" in out
    assert "0 to 7" in out
    assert "53 tensors" in out
    assert "blocks.2.mlp.fc.weight" in out
    assert f"{summary.anomalies.total:,} in 3 steps from 5 to 7" in out
    assert "Nothing is missing" in out


def test_largest_values_missing_tensors_and_old_anomalies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"grad_reduced": [(s, n, (10.0 if (s, n) == (3, "b") else 1.0)) for s in range(5) for n in "abc"]}
    coverage = {
        "expected": {"grad_reduced": 5},
        "seen": {"grad_reduced": 3},
        "missing": [
            {"data_type": "grad_reduced", "name": "d[red]", "reason": "no gradient"},
            {"data_type": "grad_reduced", "name": "e", "reason": "no gradient"},
        ],
    }
    write_rank(tmp_path, rows, coverage=coverage, info={"engine": "plain", "world_size": 4})
    records = [{"step": 3, "tag_name": "0:b/rank0/grad_reduced"}, {"step": 2, "tag_name": "0:c/rank0/acc_grad"}]
    write_anomalies(tmp_path, 0, records)
    (one,) = summarize(tmp_path).types
    assert (one.peaks[0].tensor.name, one.peaks[0].value, one.peaks[0].step) == ("b", 10.0, 3)
    assert one.not_finite == 0
    assert main(["show", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "1 rank of 4" in out
    assert "Missing: 2 tensors" in out
    assert "grad_reduced: d[red], e: no gradient" in out
    assert "Anomalies: 2 in 2 steps from 2 to 3" in out
    assert out.index("acc_grad") < out.index("Rule AnomalyNan")


def test_a_data_type_without_rows_is_said_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"grad_reduced": [(0, "a", 1.0)]}
    note = "activations: switched off after OSError: no"
    frozen = {"data_type": "grad_reduced", "reason": "frozen", "kind": "frozen"}
    coverage = {
        "expected": {"grad_reduced": 1},
        "seen": {"grad_reduced": 1},
        "without_rows": {"actv": note},
        "missing": [],
        "apart": [{**frozen, "name": f"w{n}"} for n in range(5)],
        "switched_off": ["activations"],
        "notes": [note],
    }
    write_rank(tmp_path / "one", rows, coverage=coverage)
    assert main(["show", str(tmp_path / "one")]) == 0
    out = capsys.readouterr().out
    assert "Nothing is missing" not in out
    assert out.splitlines()[2] == f"No actv: {note}"
    assert "Counted apart: 5 frozen" in out
    assert "grad_reduced: w0, w1, w2 and 2 more: frozen" in out
    # Another rank has rows of it.
    write_rank(tmp_path / "one", {"actv": [(0, "b.output", 0, 1.0)]}, rank=1, coverage={"seen": {"actv": 1}})
    assert main(["show", str(tmp_path / "one")]) == 0
    out = capsys.readouterr().out
    assert "No actv" not in out
    assert "Switched off: activations" in out
    # Runs of before say it only by what is missing.
    missing = [{"data_type": "actv", "name": "x", "reason": "hook did not fire"}]
    old = {"expected": {"actv": 1, "grad_reduced": 1}, "seen": {"actv": 0, "grad_reduced": 1}, "missing": missing}
    write_rank(tmp_path / "old", rows, coverage=old)
    assert main(["show", str(tmp_path / "old")]) == 0
    assert "No actv: hook did not fire" in capsys.readouterr().out


def test_a_mean_is_largest_by_magnitude_and_a_minimum_by_depth(tmp_path: Path) -> None:
    for stat, worst in (("mean", "minus"), ("min", "minus"), ("max", "plus")):
        write_rank(tmp_path / stat, {"actv": [(0, "plus", 0, 2.0), (0, "minus", 0, -3.0)]}, ops=(stat,))
        (one,) = summarize(tmp_path / stat).types
        assert one.peaks[0].tensor.name == worst


def test_unusable_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(tmp_path / "no")]) == 2
    assert "does not exist" in capsys.readouterr().err
