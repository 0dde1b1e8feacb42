"""The documentation's code runs and its query gives the right numbers."""

import math
import re
from pathlib import Path
from typing import Any

import duckdb
import pytest

from msmon_io import CsvWriter, ParquetWriter, WriterContext, create_run_dir, newest_run_dirs, run_dirs

from .tables import table

ROOT = Path(__file__).parents[2]


def blocks(path: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / path).read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, list[list[float]]]:
    """`monitor_output` of two ranks in the working directory; the norms by step, of each rank's two tensors."""
    norms = {}
    for rank in (0, 1):
        run_dir = create_run_dir(tmp_path / "monitor_output", rank)
        for writer in (CsvWriter(run_dir), ParquetWriter(run_dir, rank=rank)):
            for step in range(3):
                values = [[3.0 + step, 0], [4.0 * (1 + rank), rank * step]]
                norms.setdefault(step, []).append([row[0] for row in values])
                for data_type in ("grad_unreduced", "grad_reduced"):
                    writer.write(table(data_type=data_type, step=step, ops=["norm", "nans"], values=values))
            writer.close()
    monkeypatch.chdir(tmp_path)
    return {step: [pair[0], pair[2]] for step, pair in norms.items()}


def test_the_query(two_ranks: dict[int, list[list[float]]]) -> None:
    (query,) = blocks("docs/outputs.md", "sql")
    expected = []
    for step, ranks in two_ranks.items():
        totals = [math.hypot(*norms) for norms in ranks]
        expected.append((step, pytest.approx(max(totals)), pytest.approx(max(totals) / min(totals))))
    assert duckdb.sql(query).fetchall() == expected


def test_the_python_code(two_ranks: dict[int, list[list[float]]], capsys: pytest.CaptureFixture[str]) -> None:
    reading, with_polars, _ = blocks("docs/outputs.md", "python")
    exec(reading, {})
    printed = capsys.readouterr().out
    assert "0 2 fc1.weight {'norm': 5.0, 'nans': 0.0}" in printed
    assert len(printed.splitlines()) == 6
    exec(with_polars, {})
    printed = capsys.readouterr().out
    assert printed.count("fc1.bias") == 2
    assert "fc1.weight" not in printed
    (example,) = blocks("packages/msmon-io/README.md", "python")
    before = {run.path for run in run_dirs("monitor_output")}
    exec(example, {})
    (run_dir,) = {run.path for run in run_dirs("monitor_output")} - before
    assert len(list(run_dir.glob("*.csv"))) == 3


def test_the_writer_of_another_package(
    two_ranks: dict[int, list[list[float]]], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    example = blocks("docs/outputs.md", "python")[2]
    assert 'wandb = "my_package:WandbWriter"' in blocks("docs/outputs.md", "toml")[0]
    names: dict[str, Any] = {}
    exec(example, names)
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    run_dir = newest_run_dirs("monitor_output")[0]
    writer = names["WandbWriter"](WriterContext(run_dir=run_dir))
    for step in range(2):
        writer.write(table(step=step))
        writer.flush()
    writer.close()
    (log,) = (run_dir / "wandb").glob("offline-run-*/*.wandb")
    assert log.read_bytes().count(b"grad_reduced_norm/0:fc1.bias") >= 2
    assert "grad_reduced_norm/0:fc1.bias 1.125" in capfd.readouterr().err
