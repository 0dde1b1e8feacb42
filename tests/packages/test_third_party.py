"""Writers and rules of another package, really installed: what is registered is what may be configured."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

SCRIPT = """
import json, sys
import torch
from msmon import TrainerMon
from msmon.config import ConfigError, parse_config

for refused in ({"format": "jsonline"}, {"alert": {"rules": [{"rule_name": "AnomalyAbove", "args": {"limit": -1}}]}}):
    try:
        parse_config(refused, "c.json")
    except ConfigError as error:
        print(error)

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with TrainerMon(sys.argv[1], params_have_main_grad=False) as monitor:
    monitor.set_monitor(model, 1, optimizer)
    for step in range(2):
        model(torch.ones(1, 2) * 10).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder of packages in which somebody else's distribution is installed by pip."""
    folder = tmp_path_factory.mktemp("installed")
    source = shutil.copytree(HERE / "third_party", tmp_path_factory.mktemp("source") / "third_party")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    done = subprocess.run([*command, "--target", str(folder), str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def run(installed, *command, **environment):
    path = os.pathsep.join(filter(None, (str(installed), os.environ.get("PYTHONPATH"))))
    env = os.environ | {"PYTHONPATH": path} | environment
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, timeout=300)


def test_a_registered_writer_and_rule_work_in_a_training(installed, tmp_path):
    config = tmp_path / "config.json"
    rules = {"rules": [{"rule_name": "AnomalyAbove", "args": {"limit": 5}}], "dump": True}
    config.write_text(
        json.dumps({"wg_distribution": True, "format": ["csv", "jsonlines", "broken", "missing"], "alert": rules})
    )
    checked = run(installed, "-m", "msmon", "check", str(config))
    assert checked.returncode == 0, checked.stderr
    assert "jsonlines" in checked.stdout
    done = run(installed, "-c", SCRIPT, str(config), MONITOR_OUTPUT_DIR=str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "c.json: 1 problem in the configuration",
        '  format: "jsonline" is refused, expected one of "csv", "tensorboard", "parquet", "api", "broken", '
        '"jsonlines", "missing" or a list of them (did you mean "jsonlines"?)',
        "c.json: 1 problem in the configuration",
        "  alert.rules[0].args.limit: -1 is not allowed; it takes a number >= 0",
    ]
    (run_dir,) = (tmp_path / "out").glob("*-rank0-*")
    lines = [json.loads(line) for line in (run_dir / "statistics.jsonl").read_text().splitlines()]
    assert {"step": 1, "tensor": "0:bias/rank0/grad_reduced", "norm": 1.0} in lines
    assert {line["tensor"] for line in lines} == {
        f"0:{name}/rank0/{data_type}" for name in ("weight", "bias") for data_type in ("grad_unreduced", "grad_reduced")
    }
    anomalies = json.loads((tmp_path / "out/anomaly_detected/rank0/anomaly.json").read_text())
    assert {record["rule"] for record in anomalies.values()} == {"AnomalyAbove"}
    # Those that cannot be opened are off, and the others go on.
    assert (run_dir / "grad_reduced_1-1.csv").exists()
    assert "monitoring of output by broken is switched off, training goes on: RuntimeError: no server" in done.stderr
    assert "monitoring of output by missing is switched off, training goes on: AttributeError" in done.stderr
    notes = json.loads((run_dir / "coverage.json").read_text())["notes"]
    assert any("output by broken" in note for note in notes)


def test_without_the_package_the_names_are_unknown(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"wg_distribution": True, "format": "jsonlines"}))
    done = run(tmp_path, "-m", "msmon", "check", str(config))
    assert done.returncode == 2
    assert 'format: "jsonlines" is refused' in done.stderr
