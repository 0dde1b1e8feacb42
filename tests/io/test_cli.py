"""The commands, run in this process and once as a program."""

import subprocess
import sys
from pathlib import Path

import pytest

from msmon_io import CsvWriter
from msmon_io.cli import main

from .tables import table


@pytest.fixture
def output_dir(tmp_path: Path) -> Path:
    """An output directory with one run."""
    run_dir = tmp_path / "out" / "Dec03_21-34-40-rank0-a"
    run_dir.mkdir(parents=True)
    with CsvWriter(run_dir) as writer:
        writer.write(table())
    return tmp_path / "out"


def test_commands(output_dir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    stamp = "Dec03_21-34-40"
    assert (
        main(["csv2tb", str(output_dir), "-o", str(tmp_path / "tb"), "--time_start", stamp, "--time_end", stamp]) == 0
    )
    assert main(["csv2tb", str(output_dir), "-o", str(tmp_path / "tb"), "--start", stamp, "-t", "grad_reduced"]) == 0
    assert main(["convert", str(output_dir), "-p", "2", "--end", stamp]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [str(tmp_path / "tb")] * 2 + [str(output_dir / "parquet")]
    assert "error" not in err
    assert len(list((tmp_path / "tb").glob("rank0/grad_reduced/events*"))) == 1
    assert len(list((output_dir / "parquet").glob("rank=0/data_type=grad_reduced/*.parquet"))) == 1


def test_errors(output_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["csv2tb", "/none"], "error: monitor_path: '/none' is no directory\n"),
        (
            ["csv2tb", str(output_dir), "-o", str(output_dir)],
            f"error: {output_dir} exists and is no output of csv2tens",
        ),
        (["convert", str(output_dir), "-p", "0"], "error: process_num: 0 is not allowed"),
        (["convert", str(output_dir), "-t", "x"], "error: data_type_list: ['x'] have no files in "),
        (["convert", str(output_dir), "--start", "x"], "error: time_start: 'x' is no time stamp"),
    ):
        assert main(arguments) == 1
        assert capsys.readouterr().err.startswith(message)
    with pytest.raises(SystemExit):
        main([])


def test_as_a_program(output_dir: Path) -> None:
    code = f"import sys, runpy; sys.path[:] = {sys.path!r}; sys.argv = ['msmon_io', 'convert', {str(output_dir)!r}]"
    code += "\nrunpy.run_module('msmon_io', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, f"{output_dir / 'parquet'}\n"), done.stderr
