"""The command `msmon`: which command runs, what it prints and where, and its exit status."""

import json
import os
import pty
import re
import subprocess
import sys
from importlib import metadata

import pytest

from msmon import __version__
from msmon.cli import main
from msmon.cli.commands import COMMANDS

PLAN = {
    "wg_distribution": True,
    "monitor_mbs_grad": True,
    "xy_distribution": True,
    "forward_only": True,
    "ur_distribution": True,
    "param_distribution": True,
    "targets": {"fc1": {}, "0:fc2": {"input": "tensor"}},
    "alert": {
        "rules": [{"rule_name": "AnomalyNan"}, {"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}],
        "dump": True,
    },
    "collect_times": 50,
    "step_interval": 3,
    "module_ranks": [0, 2],
    "cc_distribution": {"enable": True, "cc_codeline": [r"train\.py\[[0-9]+\]"]},
    "recording_l2_features": True,
    "l2_targets": {"linear_hook": []},
}


@pytest.fixture
def msmon(capsys):
    """Run the command line; gives its exit status, what it printed, and what it said on standard error."""

    def run(*words):
        status = main(words)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def rows(text):
    """Lines of the printed tables, with single spaces."""
    return [re.sub(r"\s+", " ", line).strip() for line in text.splitlines()]


def test_help_lists_commands_with_examples_and_exit_status(msmon):
    status, out, err = msmon("--help")
    assert (status, err) == (0, "")
    assert "  check          validate a configuration, print what it would monitor\n" in out
    assert "  anomalies      the first anomalies of all ranks, earliest first\n" in out
    assert "examples:\n  msmon demo " in out
    assert "    2  wrong arguments or input\n" in out
    assert msmon() == (2, "", out)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command(msmon, name):
    status, out, err = msmon(name, "--help")
    assert (status, err) == (0, "")
    assert out.startswith(f"usage: msmon {name} ")


def test_version(msmon):
    assert msmon("--version") == (0, f"msmon {__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["chek", "x"], "msmon: unknown command 'chek', did you mean check?; see msmon --help"),
        (["--foo"], "msmon: unknown option --foo; see msmon --help"),
        (["--foo", "check"], "msmon: the command comes first: msmon check ...; see msmon --help"),
        (["check"], "msmon check: the following arguments are required: CONFIG; see msmon check --help"),
        (["check", "a", "b"], "msmon check: unrecognized arguments: b; see msmon check --help"),
    ],
)
def test_wrong_arguments(msmon, words, sentence):
    assert msmon(*words) == (2, "", sentence + "\n")


def test_an_unknown_command_lists_the_known_ones(msmon):
    status, _, err = msmon("zzz")
    assert status == 2
    assert err.startswith("msmon: unknown command 'zzz', the commands are ")
    assert "demo, run, check, doctor, convert-config, anomalies, show" in err


def test_doctor(msmon, tmp_path, monkeypatch):
    """Nothing that says whose machine it is."""
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    monkeypatch.chdir(tmp_path)
    status, out, err = msmon("doctor")
    assert (status, err) == (0, "")
    found = rows(out)
    assert f"msmon {__version__}" in found
    assert f"deepspeed {metadata.version('deepspeed')}" in found
    assert any(row.startswith("torch ") and "kernels: cpu on cpu" in row for row in found)
    assert any(row.startswith("DYNAMIC_MONITOR is set") for row in found)
    assert sys.prefix not in out
    assert "/" not in out


def test_check_prints_what_would_be_monitored(msmon, tmp_path, monkeypatch):
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", "/data/out")
    monkeypatch.delenv("DYNAMIC_MONITOR", raising=False)
    path = tmp_path / "c.json"
    path.write_text(json.dumps(PLAN))
    status, out, err = msmon("check", str(path))
    assert (status, err) == (0, "")
    assert rows(out) == [
        f"{path}: valid",
        'warning ur_distribution: off, since it needs format "tensorboard"',
        "",
        "Monitored",
        "actv activations of fc1, 0:fc2",
        "grad_unreduced gradients of the parameters of fc1, 0:fc2 on this rank, after each micro-batch",
        "grad_reduced gradients of the parameters of fc1, 0:fc2 as the optimizer consumes them",
        "param_origin, param_updated the parameters of fc1, 0:fc2 before and after the optimizer step",
        r"other results of collectives, called from train\.py\[[0-9]+\]",
        "linear_hook every module that qualifies",
        "",
        "When and where",
        "statistics norm",
        "steps from step 0, one of every 3 steps, 50 in all",
        "ranks 0, 2",
        "format csv",
        "directory /data/out",
        "alerts AnomalyNan(), then AnomalyTurbulence(threshold=0.5), written to anomaly.json",
        "kernels cpu on cpu",
    ]


@pytest.mark.parametrize(
    ("mapping", "dynamic", "line"),
    [
        ({}, False, "nothing no monitor is switched on"),
        ({}, False, "steps from step 0, every step"),
        ({"start_step": 5, "collect_times": 2}, False, "steps from step 5, every step, 2 in all"),
        ({"collect_times": 0}, False, "steps none, since collect_times is 0"),
        ({"start_step": 5, "dynamic_on": True}, True, "steps dynamic mode, from the next step, every step"),
        ({}, True, "steps dynamic mode, when dynamic_on is set to true, every step"),
        ({"xy_distribution": True}, False, "actv_grad gradients of the activations of all modules"),
        (
            {"xy_distribution": True, "all_xy": True, "targets": {"": {"input": ""}}},
            False,
            'actv activations of all modules, of which as specified: ""',
        ),
        ({"targets": {"a\x1b[31m\n": {}}, "mv_distribution": True}, False, "exp_avg, exp_avg_sq optimizer moments of "
         "the parameters of a\\x1b[31m\\n"),
        ({"targets": {f"m{i}": {} for i in range(30)}, "mg_direction": True}, False, "m19 and 10 more"),
        ({"append_output": ["Dec03_21-34-40", "Dec03_21-34-41"]}, False, "continues runs begun between "
         "Dec03_21-34-40 and Dec03_21-34-41"),
        ({"format": "api", "print_struct": True}, False, "module_struct inputs and outputs of every module, after the "
         "first step; then the program ends"),
    ],
)  # fmt: skip
def test_check_lines(msmon, tmp_path, monkeypatch, mapping, dynamic, line):
    monkeypatch.setenv("DYNAMIC_MONITOR", str(dynamic))
    path = tmp_path / "c.json"
    path.write_text(json.dumps(mapping))
    status, out, _ = msmon("check", str(path))
    assert status == 0
    assert line in " ".join(rows(out)) if "more" in line else line in rows(out)


def test_check_reports_every_problem_also_those_of_rules(msmon, tmp_path):
    path = tmp_path / "c.json"
    rules = [{"rule_name": "AnomalyNan"}, {"rule_name": "AnomalyTurbulence", "args": {"threshold": "0.5"}}]
    path.write_text(json.dumps({"alert": {"rules": rules}, "wg_distributon": True}))
    status, out, err = msmon("check", str(path))
    assert (status, out) == (2, "")
    first, key, rule = err.splitlines()
    assert first == f"{path}: 2 problems in the configuration"
    assert key == '  wg_distributon: unknown key, did you mean "wg_distribution"?'
    assert rule.startswith("  alert.rules[1].args.threshold: '0.5' is not allowed")


def test_check_of_a_missing_file(msmon, tmp_path):
    status, out, err = msmon("check", str(tmp_path / "c.json"))
    assert (status, out) == (2, "")
    assert err == f"{tmp_path}/c.json: no such file in {tmp_path}\n"


def test_anomalies_is_the_program_of_msmon_alert(msmon, tmp_path):
    folder = tmp_path / "rank0"
    folder.mkdir()
    record = {"rank": 0, "step": 1, "micro_step": 0, "pp_stage": 0, "vpp_stage": 0, "call_id": 3,
              "tag_name": "0:fc1.weight/rank0/grad_reduced", "message": "m", "group_mates": [0]}  # fmt: skip
    (folder / "anomaly.json").write_text(json.dumps({"0:fc1.weight/rank0/grad_reduced_step_1_call_3": record}))
    status, out, _ = msmon("anomalies", "-d", str(tmp_path), "-k", "1")
    assert status == 0
    assert "0:fc1.weight" in out
    assert (tmp_path / "anomaly_analyse.json").exists()
    assert msmon("anomalies", "-d", str(tmp_path), "-k", "0")[0] == 2


def test_a_progress_bar_on_a_terminal_and_nowhere_else(tmp_path):
    run_dir, folder = tmp_path / "Dec03_21-34-40-rank0-3f1a9c2e", tmp_path / "anomaly_detected" / "rank0"
    for path, name, text in (
        (run_dir, "grad_reduced_0-0.csv", "vpp_stage,name,step,norm\n0,fc1.weight,0,1.5\n"),
        (folder, "anomaly.json", "{}"),
    ):
        path.mkdir(parents=True)
        (path / name).write_text(text)
    for words, shown in ((["anomalies", "-d", tmp_path], b"anomaly files"), (["convert", tmp_path], b"CSV to Parquet")):
        command = [sys.executable, "-m", "msmon", *words]
        done = subprocess.run(command, capture_output=True, check=True)
        assert done.stderr == b""
        main_end, program_end = pty.openpty()
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=program_end, check=True)
        os.close(program_end)
        assert shown in os.read(main_end, 65536)
        os.close(main_end)


@pytest.mark.parametrize(("command", "files"), [("csv2tb", "**/events*"), ("convert", "**/*.parquet")])
def test_converters_are_those_of_msmon_io(msmon, tmp_path, command, files):
    folder = tmp_path / "Dec03_21-34-40-rank0-3f1a9c2e"
    folder.mkdir()
    (folder / "grad_reduced_0-0.csv").write_text("vpp_stage,name,step,norm\n0,fc1.weight,0,1.5\n")
    out = tmp_path / "out"
    status, printed, err = msmon(command, str(tmp_path), "-o", str(out))
    assert status == 0, err
    assert str(out) in printed
    assert list(out.glob(files))
    assert msmon(command, str(tmp_path / "nowhere"))[0] == 1
    assert msmon(command)[0] == 2
