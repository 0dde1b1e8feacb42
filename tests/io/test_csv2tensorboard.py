"""CSV to TensorBoard: tags, processes, broken lines, what may be replaced, and linear cost."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import msmon_io.conversion
from msmon_io import CsvWriter, csv2tensorboard_by_step
from msmon_io.conversion import find_sources, split
from msmon_io.workers import WorkerError, run_pieces

from .tables import HOSTILE_NAMES, table

STAMPS = ("Dec31_23-59-59", "Jan01_00-00-00", "Jan01_00-00-01")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two ranks of one run, and an older run."""
    output_dir = tmp_path / "out"
    for name, steps in (
        (f"{STAMPS[0]}-rank0-aaaa", [90]),
        (f"{STAMPS[1]}-rank0-b", range(6)),
        (f"{STAMPS[2]}-rank1-c", range(6)),
    ):
        (output_dir / name).mkdir(parents=True)
        with CsvWriter(output_dir / name, step_count_per_record=2) as writer:
            for step in steps:
                writer.write(table(step=step, ops=["min", "shape", "norm"], text={"shape": ["[8, 4]", "[8]"]}))
                writer.write(table(data_type="actv", step=step, names=["fc1.input"] * 2, micro_steps=[0, 1]))
    return output_dir


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(directory), size_guidance={"scalars": 0}).Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.mark.parametrize("process_num", [1, 5])
def test_the_converted_run(runs: Path, tmp_path: Path, process_num: int, capfd: pytest.CaptureFixture[str]) -> None:
    output = csv2tensorboard_by_step(str(runs), STAMPS[1], STAMPS[2], process_num, None, str(tmp_path / "tb"))
    assert output == tmp_path / "tb"
    assert sorted(str(path.relative_to(output)) for path in output.glob("*/*")) == [
        f"rank{rank}/{data_type}" for rank in (0, 1) for data_type in ("actv", "grad_reduced")
    ]
    for rank in (0, 1):
        reduced = scalars(output / f"rank{rank}" / "grad_reduced")
        assert reduced == {
            f"vp0:{name}/{op}": [(step, step + row / 8 + column / 64) for step in range(6)]
            for row, name in enumerate(("fc1.weight", "fc1.bias"))
            for column, op in enumerate(("min", "norm"))
        }
        actv = scalars(output / f"rank{rank}" / "actv")
        assert actv == {
            f"vp0:fc1.input:micro{micro}/norm": [(step, step + micro / 8) for step in range(6)] for micro in (0, 1)
        }
    assert capfd.readouterr().err == ""
    modes = {path.stat().st_mode & 0o777 for path in output.rglob("events*")}
    assert modes == {0o640}


def test_default_output_and_data_types(runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    output = csv2tensorboard_by_step(runs, *STAMPS[::2], data_type_list=["actv", "exp_avg"])
    assert output.parent == runs
    assert re.fullmatch(r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d-csv2tensorboard_by_step", output.name)
    assert sorted(str(path.relative_to(output)) for path in output.glob("*/*")) == ["rank0/actv", "rank1/actv"]
    # Both runs of rank 0 are in the range, the older one first.
    assert [step for step, _ in scalars(output / "rank0/actv")["vp0:fc1.input:micro0/norm"]] == [90, *range(6)]
    assert "data_type_list: 'exp_avg' has no files in" in caplog.text


def test_wrong_arguments(runs: Path, tmp_path: Path) -> None:
    def convert(path: Path = runs, start: str = STAMPS[1], end: str = STAMPS[2], **arguments: object) -> None:
        csv2tensorboard_by_step(path, start, end, **arguments)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match=r"data_type_list: \['grads'\] have no files in .*; there are actv, grad"):
        convert(data_type_list=["grads"])
    with pytest.raises(TypeError, match="data_type_list: 'actv' is not allowed; it must be a list"):
        convert(data_type_list="actv")
    for process_num in (0, -1, True, "2", 1.0):
        with pytest.raises(ValueError, match=f"process_num: {process_num!r} is not allowed; it must be an integer"):
            convert(process_num=process_num)
    with pytest.raises(ValueError, match="time_start: '2026' is no time stamp; write it like"):
        convert(start="2026")
    with pytest.raises(ValueError, match=rf"no run directory between .*; they reach from {STAMPS[0]}-rank0-aaaa to"):
        convert(start="Jan05_00-00-00", end="Jan06_00-00-00")
    with pytest.raises(FileNotFoundError, match=r"monitor_path: .* is no directory"):
        convert(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="there is none at all"):
        convert(tmp_path / "empty")
    with pytest.raises(ValueError, match=r"data_type_list: \['exp_avg'\] have no files"):
        convert(data_type_list=["exp_avg"])


def test_only_our_output_is_replaced(runs: Path, tmp_path: Path) -> None:
    def convert(output: Path) -> None:
        csv2tensorboard_by_step(runs, *STAMPS[1:], data_type_list=["actv"], output_dirpath=output)

    target = tmp_path / "tb"
    target.mkdir()
    convert(target)
    (target / "rank0" / "old").write_text("")
    convert(target)
    assert not (target / "rank0" / "old").exists()
    foreign = tmp_path / "precious"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("x")
    link = tmp_path / "link"
    link.symlink_to(target)
    before = sorted(tmp_path.rglob("*"))
    for path in (foreign, foreign / "thesis.txt", link, runs):
        with pytest.raises(FileExistsError, match="is no output of csv2tensorboard_by_step: it is left alone"):
            convert(path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("process_num", [1, 2])
def test_broken_lines(runs: Path, tmp_path: Path, process_num: int, caplog: pytest.LogCaptureFixture) -> None:
    run = runs / f"{STAMPS[1]}-rank0-b"
    path = run / "actv_2-3.csv"
    path.write_text(path.read_text().replace("0,fc1.input,2,1,2.125\n", "0,fc1.input,2,1\n") + "0,fc1.input,3,1,0.")
    (run / "grad_reduced_4-5.csv").write_text("no header\n")
    (run / "grad_reduced_0-1.csv").write_bytes(b"vpp_stage,name,step,norm\n" + b"\xff\n" * 100)
    output = csv2tensorboard_by_step(runs, *STAMPS[1:], process_num, output_dirpath=tmp_path / "tb")
    assert f"{path}:3: 4 cells instead of 5; the line is passed over" in caplog.text
    assert f"{path}:6: the last line has no line end" in caplog.text
    assert (
        f"{run}/grad_reduced_4-5.csv:1: the header is 'no header', not vpp_stage,name,step[,micro_step]," in caplog.text
    )
    assert "the file is passed over" in caplog.text
    assert "grad_reduced_0-1.csv: 100 broken lines in all; only the first 20 are shown" in caplog.text
    assert len(caplog.records) == 2 + 1 + 20 + 1
    actv = scalars(output / "rank0/actv")
    assert [step for step, _ in actv["vp0:fc1.input:micro0/norm"]] == list(range(6))
    assert [step for step, _ in actv["vp0:fc1.input:micro1/norm"]] == [0, 1, 3, 4, 5]
    assert [step for step, _ in scalars(output / "rank0/grad_reduced")["vp0:fc1.bias/norm"]] == [2, 3]


def test_hostile_names(tmp_path: Path) -> None:
    run = tmp_path / "out" / f"{STAMPS[1]}-rank0-a"
    run.mkdir(parents=True)
    with CsvWriter(run) as writer:
        writer.write(table(names=HOSTILE_NAMES))
    before = set(tmp_path.rglob("*"))
    output = csv2tensorboard_by_step(tmp_path / "out", *STAMPS[:2], output_dirpath=tmp_path / "tb")
    assert set(tmp_path.rglob("*")) - before == {output, *output.rglob("*")}
    assert set(scalars(output / "rank0/grad_reduced")) == {
        f"vp0:{name.encode('utf-8', 'backslashreplace').decode()}/norm" for name in HOSTILE_NAMES
    }


def test_files_are_shared_evenly(tmp_path: Path) -> None:
    (tmp_path / f"{STAMPS[1]}-rank0-a").mkdir()
    with CsvWriter(tmp_path / f"{STAMPS[1]}-rank0-a") as writer:
        for step in range(64):
            writer.write(table(step=step, names=[f"w{i}" for i in range(50)]))
    sources = find_sources(tmp_path, STAMPS[0], STAMPS[2], None)
    assert len(split(sources, 1)) == 1
    pieces = split(sources, 4)
    assert [file for _, files, _ in pieces for file in files] == list(map(str, sources[0].files))
    sizes = [size for _, _, size in pieces]
    assert len(pieces) == 16, "a single rank does not keep four processes busy"
    assert max(sizes) < 1.5 * min(sizes)


def test_a_failed_conversion_leaves_nothing(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk")

    target = tmp_path / "tb"
    csv2tensorboard_by_step(runs, *STAMPS[1:], output_dirpath=target)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(msmon_io.conversion, "write_json", fail)
    with pytest.raises(OSError, match="disk"):
        csv2tensorboard_by_step(runs, *STAMPS[1:], output_dirpath=target)
    assert sorted(tmp_path.rglob("*")) == before


def test_workers(tmp_path: Path) -> None:
    # A worker that fails, one that dies, and results in the order of the pieces.
    with pytest.raises(WorkerError, match="ZeroDivisionError"):
        run_pieces(f"{__package__}.workers:divide", [{"by": 1}, {"by": 0}, {"by": 2}], 2, lambda message: None)
    with pytest.raises(WorkerError, match="ended unexpectedly"):
        run_pieces(f"{__package__}.workers:die", [{}, {}], 2, lambda message: None)
    messages: list[dict[str, int]] = []
    pieces = [{"by": number} for number in range(1, 9)]
    results = run_pieces(f"{__package__}.workers:divide", pieces, 3, messages.append)
    assert [result["is"] for result in results] == [840 // number for number in range(1, 9)]
    assert sorted(message["by"] for message in messages) == list(range(1, 9))


def test_a_script_without_a_main_guard(runs: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nsys.path[:] = {sys.path!r}\nprint('once')\n"
        f"from msmon_io import csv2tensorboard_by_step\n"
        f"csv2tensorboard_by_step({str(runs)!r}, {STAMPS[1]!r}, {STAMPS[2]!r}, process_num=2)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "once\n"


def test_the_files_may_vanish_meanwhile(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = find_sources

    def find_and_remove(*arguments: object) -> object:
        sources = find(*arguments)  # type: ignore[arg-type]
        shutil.rmtree(runs / f"{STAMPS[1]}-rank0-b")
        return sources

    monkeypatch.setattr("msmon_io.conversion.find_sources", find_and_remove)
    with pytest.raises(FileNotFoundError):
        csv2tensorboard_by_step(runs, *STAMPS[1:], output_dirpath=tmp_path / "tb")
    assert not (tmp_path / "tb").exists()
