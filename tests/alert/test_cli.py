"""`python -m msmon_alert`: what it prints, writes and returns."""

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from msmon_alert.cli import main

DATA = Path(__file__).parent / "data"


@pytest.fixture
def run(capsys, tmp_path):
    """Runs the command line, with the result written to a folder of this test."""

    def run(*arguments, out=True):
        status = main([*arguments, *(["-o", str(tmp_path / "result")] if out else [])])
        printed, errors = capsys.readouterr()
        return status, printed.splitlines(), errors.splitlines()

    return run


def result(tmp_path, folder="result"):
    return json.loads((tmp_path / folder / "anomaly_analyse.json").read_text())


def test_first_anomalies_of_two_ranks(run, tmp_path):
    status, lines, errors = run("-d", str(DATA / "new"), "-k", "3")
    assert (status, errors) == (0, [])
    assert lines == [
        "step  rank  phase    tensor                           statistic  value  history  rule",
        "  50     1  weights  0:fc1.weight/rank1/param_origin  norm (+4)    nan        -  AnomalyNan",
        "  50     1  forward  0:fc1.output:0/rank1/actv        norm (+4)    nan        -  AnomalyNan",
        "  50     1  forward  0:relu1.input:0/rank1/actv       norm (+4)    nan        -  AnomalyNan",
        "",
        "started: fc1 weight at step 50 on rank 1 (AnomalyNan: norm nan)",
        "next: its output; relu1 input; its output; fc2 input; its output; relu2 input; "
        "and 13 more tensors of 6 modules",
        "3 of 20 anomalies in 2 files, earliest first.",
        f"Written to {tmp_path}/result/anomaly_analyse.json",
    ]
    found = result(tmp_path)
    assert list(found) == [
        "0:fc1.weight/rank1/param_origin_step_50_call_68",
        "0:fc1.output:0/rank1/actv_step_50_call_1",
        "0:relu1.input:0/rank1/actv_step_50_call_2",
    ]
    original = json.loads((DATA / "new" / "rank1" / "anomaly.json").read_text())
    assert found == {key: original[key] for key in found}
    assert (tmp_path / "result" / "anomaly_analyse.json").stat().st_mode & 0o777 == 0o640


def test_files_of_the_older_tool(run, tmp_path):
    status, lines, errors = run("-d", str(DATA / "old"), "-k", "5")
    assert (status, errors) == (0, [])
    cells = [line.split() for line in lines[1:6]]
    assert cells == [
        ["1", "1", "forward", "0:3.mlp.linear_fc1_0/rank1/output", "max", "812.4", "11.9", "AnomalyTurbulence"],
        ["1", "0", "backward", "0:1.mlp.linear_fc2_0/rank0/output_grad", "norm", "12.5", "0.81", "AnomalyTurbulence"],
        ["1", "0", "backward", "0:1.self_attention.core_attention_flash_0/rank0/input_grad", "min", "-0.00013",
         "-2.1e-05", "AnomalyTurbulence"],
        ["1", "1", "optimizer", "0:3.mlp.linear_fc1.weight/rank1/exp_avg_sq", "norm", "3.5", "0.2",
         "AnomalyTurbulence"],
        ["2", "1", "backward", "0:3.mlp.linear_fc1_0/rank1/output_grad", "mean", "nan", "0.2", "AnomalyNan"],
    ]  # fmt: skip
    assert lines[7].startswith("started: 3.mlp.linear_fc1_0 output at step 1 on rank 1 (AnomalyTurbulence: max 812.4")
    assert len(result(tmp_path)) == 5


def test_a_broken_file_is_named_and_the_rest_is_used(run, tmp_path):
    status, lines, errors = run("-d", str(DATA / "broken"), "--topk", "10")
    assert status == 0
    (note,) = errors
    assert note.startswith("broken file skipped (its first 2 records are used): ")
    assert "broken/rank1/anomaly.json: a record is broken at byte " in note
    assert "5 of 5 anomalies in 2 files, earliest first." in lines
    shutil.copytree(DATA / "broken", tmp_path / "copy")
    (tmp_path / "copy" / "rank1" / "anomaly.json").write_text("garbage")
    _, lines, (note,) = run("-d", str(tmp_path / "copy"))
    assert note == (
        f"broken file skipped: {tmp_path}/copy/rank1/anomaly.json: an opening brace was expected, not 'g' at byte 0"
    )
    assert "3 of 3 anomalies in 2 files, earliest first." in lines
    (tmp_path / "copy" / "rank0" / "anomaly.json").write_text(
        json.dumps({"a": 3, "b": {"step": "x"}, "c": {"step": 1, "tag_name": "t"}})
    )
    status, lines, errors = run("-d", str(tmp_path / "copy"))
    assert status == 0
    assert lines[0] == "No anomalies."
    assert [line.split("anomaly.json: ")[1] for line in errors[:3]] == [
        "record 'a' skipped: it is not an object with a step",
        "record 'b' skipped: tag_name is None, not a string",
        "record 'c' skipped: call_id is None, not an integer",
    ]


def test_steps_are_chosen(run, tmp_path):
    _, lines, _ = run("-d", str(DATA / "old"), "-s", "[2, 7]")
    assert "2 of 2 anomalies in 2 files, earliest first." in lines
    assert {record["step"] for record in result(tmp_path).values()} == {2}
    status, lines, _ = run("-d", str(DATA / "old"), "--step_list", "[9]")
    assert (status, lines[0], result(tmp_path)) == (0, "No anomalies.", {})
    _, lines, _ = run("-d", str(DATA / "old"), "-s", "[]")
    assert "6 of 6 anomalies in 2 files, earliest first." in lines


def test_where_files_are_looked_for(run, tmp_path):
    shutil.copytree(DATA / "new", tmp_path / "run" / "anomaly_detected")
    for folder in ("run", "run/anomaly_detected"):
        assert run("-d", str(tmp_path / folder))[1][-2] == "8 of 20 anomalies in 2 files, earliest first."
    assert run("-d", str(tmp_path / "run/anomaly_detected/rank0"))[1][-2].startswith("8 of 10 anomalies in 1 files")
    assert run("-d", str(tmp_path / "run"), out=False)[1][-1] == (
        f"Written to {tmp_path}/run/anomaly_detected/anomaly_analyse.json"
    )
    # The result lies next to the ranks' folders and is not read as one of them.
    assert run("-d", str(tmp_path / "run"), out=False)[1][-2] == "8 of 20 anomalies in 2 files, earliest first."


def test_healthy_runs(run, tmp_path):
    for rank in range(3):
        (tmp_path / f"rank{rank}").mkdir()
        (tmp_path / f"rank{rank}" / "anomaly.json").write_text("{}")
    status, lines, errors = run("-d", str(tmp_path))
    assert (status, lines[0], errors, result(tmp_path)) == (0, "No anomalies.", [], {})


def test_more_than_there_are(run, tmp_path):
    status, _, errors = run("-d", str(DATA / "new"), "-k", "9" * 30)
    assert (status, errors) == (0, [])
    assert len(result(tmp_path)) == 20


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-k", "0"], "-k/--topk: '0' is not allowed; it takes an integer >= 1"),
        (["-k", "-3"], "-k/--topk: '-3' is not allowed; it takes an integer >= 1"),
        (["-k", "x"], "-k/--topk: 'x' is not allowed; it takes an integer >= 1"),
        (["-s", "abc"], "-s/--step_list: 'abc' is not allowed; it takes a list of step numbers, as in \"[1,2]\""),
        (["-s", "3"], "-s/--step_list: '3' is not allowed; it takes a list of step numbers, as in \"[1,2]\""),
        (["-s", "[-1]"], "-s/--step_list: '[-1]' is not allowed; it takes a list of step numbers, as in \"[1,2]\""),
        (["-s", "[true]"], "-s/--step_list: '[true]' is not allowed; it takes a list of step numbers, as in \"[1,2]\""),
        (["-d", "/nowhere"], "-d/--data_path: /nowhere is not a directory"),
        (["-d", __file__], f"-d/--data_path: {__file__} is not a directory"),
        (["-o", __file__], f"-o/--out_path: {__file__} is not a directory"),
        (["--nonsense"], "unrecognized arguments: --nonsense (-h for help)"),
        (["-k"], "argument -k/--topk: expected one argument (-h for help)"),
    ],
)
def test_arguments_that_make_no_sense(run, arguments, sentence):
    assert run("-d", str(DATA / "new"), *arguments, out=False) == (2, [], [f"msmon anomalies: {sentence}"])
    assert not (DATA / "new" / "anomaly_analyse.json").exists()


def test_directories_without_anomaly_files(run, tmp_path):
    status, _, (line,) = run("-d", str(tmp_path))
    assert status == 2
    assert line == (
        f"msmon anomalies: -d/--data_path: no rank*/anomaly.json in {tmp_path}; "
        "name the anomaly_detected directory of a run"
    )
    assert run()[2] == ["msmon anomalies: the following arguments are required: -d/--data_path (-h for help)"]


def test_results_that_cannot_be_had(run, tmp_path):
    (tmp_path / "rank0").mkdir()
    (tmp_path / "rank0" / "anomaly.json").write_text("")
    status, _, errors = run("-d", str(tmp_path))
    assert status == 1
    assert "broken file skipped" in errors[0]
    # A folder below a file cannot be made, not even by root.
    (tmp_path / "file").write_text("")
    status, lines, _ = run("-d", str(DATA / "new"), "-o", str(tmp_path / "file" / "below"), out=False)
    assert status == 1
    assert lines[-1].startswith(f"Not written: {tmp_path}/file/below/anomaly_analyse.json: ")
    assert lines[0].startswith("step")


def test_help(run):
    status, lines, _ = run("-h")
    assert status == 0
    assert lines[0].startswith("usage: msmon anomalies [-h] -d DIR [-o DIR] [-k K] [-s LIST]")


def test_names_cannot_steer_the_terminal(run, tmp_path):
    (tmp_path / "rank0").mkdir()
    record = next(iter(json.loads((DATA / "new" / "rank0" / "anomaly.json").read_text()).values()))
    record["tag_name"] = "0:a\x1b[2J\nb.weight/rank0/grad_reduced"
    (tmp_path / "rank0" / "anomaly.json").write_text(json.dumps({"k": record}))
    _, lines, _ = run("-d", str(tmp_path))
    assert "\x1b" not in "".join(lines)
    assert "0:a\\x1b[2J\\nb.weight/rank0/grad_reduced" in lines[1]


def test_on_a_terminal_and_as_a_module(tmp_path):
    """Colour, and the exit status of the process."""
    command = [sys.executable, "-m", "msmon_alert", "-d", str(DATA / "new"), "-k", "2", "-o", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    main_end, program_end = pty.openpty()
    process = subprocess.Popen(command, stdout=program_end, stderr=program_end, env=environment)
    os.close(program_end)
    text = b""
    while True:
        try:
            text += (piece := os.read(main_end, 65536))
        except OSError:  # Linux says so when the other end is closed
            break
        if not piece:
            break
    os.close(main_end)
    assert process.wait() == 0
    assert b"\x1b[1mstep" in text
    assert b"\x1b[31m" in text
    # A reader that does not want to read on, as `head`: no traceback, and the result is written.
    (tmp_path / "anomaly_analyse.json").unlink()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0
    assert len(result(tmp_path.parent, tmp_path.name)) == 2
    failed = subprocess.run([*command, "-k", "0"], env=environment, capture_output=True, check=False)
    assert (failed.returncode, failed.stdout) == (2, b"")
