"""The second form: its calls and files, compared with real output of the tool that has them."""

import csv
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

from msmon.cli import main
from msmon.config import ConfigError
from msmon.monitor_v2 import TrainerMonitorV2

DATA = Path(__file__).parent / "data" / "v2"
CONFIG = json.loads((DATA / "config.json").read_text())


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def train(model, optimizer, steps=3, after_step=lambda: None) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        for _ in range(2):
            loss = model(torch.randn(5, 4, generator=generator)).pow(2).mean()
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        after_step()
        optimizer.zero_grad()
    return losses


@pytest.fixture
def write_v2(tmp_path, write_config):
    """A configuration like that of the reference, with the output in this test's folder."""
    return lambda **changes: write_config(**{**CONFIG, "output_dir": str(tmp_path / "out"), **changes})


@pytest.fixture
def written(write_v2, tmp_path) -> Path:
    model, optimizer = build()
    monitor = TrainerMonitorV2(write_v2(), fr="pytorch")
    monitor.start(model=model, optimizer=optimizer, grad_acc_steps=2)
    train(model, optimizer)
    monitor.stop()
    return tmp_path / "out"


def rows(path: Path) -> dict[tuple, dict[str, str]]:
    """The rows of a file by step, name, scope and how many of these came before."""
    found, seen = {}, Counter()
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            key = int(row["step"]), row["module_name"], row["scope"]
            found[(*key, seen[key])] = row
            seen[key] += 1
    return found


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("*.csv")))
def test_every_cell_of_the_reference(written, name):
    reference, ours = rows(DATA / name), rows(written / "rank_0" / name)
    beyond = [key for key in ours if key not in reference]
    # What the tool leaves out when it watches the optimizer's step.
    assert all(scope == "unreduced" for _, _, scope, _ in beyond)
    assert [key for key in ours if key in reference] == list(reference)
    for key, row in reference.items():
        assert list(ours[key]) == list(row)
        for column, cell in row.items():
            if column in ("min", "max", "mean", "norm", "nans"):
                assert float(ours[key][column]) == pytest.approx(float(cell), rel=1e-5, abs=1e-9), (key, column)
            else:
                assert ours[key][column] == cell
    print(f"{name}: {len(reference)} rows of the reference equal, {len(beyond)} beyond it")


def test_what_the_tool_leaves_out(written):
    """Unreduced gradients of each micro-step; in the last one they are what is reduced."""
    found = rows(written / "rank_0" / "weight_grad_step0-1.csv")
    for step in (0, 1):
        for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
            first, last = (found[step, name, "unreduced", number] for number in (0, 1))
            assert (first["micro_step"], last["micro_step"]) == ("0", "1")
            assert last["norm"] == found[step, name, "reduced", 0]["norm"] != first["norm"]


def test_training_is_unchanged(write_v2):
    outcomes = []
    for monitored in (False, True):
        model, optimizer = build()
        if monitored:
            monitor = TrainerMonitorV2(write_v2())
            monitor.start(model=model, optimizer=optimizer, micro_batch_number=2)
        losses = train(model, optimizer)
        outcomes.append((losses, [parameter.detach().numpy().tobytes() for parameter in model.parameters()]))
    monitor.stop()
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("given", [True, False])
def test_steps_by_hand(write_v2, tmp_path, given, caplog):
    """`step` ends a step; where an optimizer is given its steps do, and `step` changes nothing."""
    model, optimizer = build()
    monitors = CONFIG["monitors"]
    monitors = {**monitors, "weight_grad": {**monitors["weight_grad"], "grad_acc_steps": 2}}
    monitor = TrainerMonitorV2(write_v2(patch_optimizer_step=False, monitors=monitors))
    monitor.start(model=model, optimizer=optimizer if given else None)
    train(model, optimizer, after_step=monitor.step)
    monitor.stop()
    names = {path.name for path in (tmp_path / "out/rank_0").glob("*.csv")}
    expected = {path.name for path in DATA.glob("*.csv")}
    assert names == (expected if given else {name for name in expected if not name.startswith("optimizer")})
    reference = rows(DATA / "weight_grad_step0-1.csv")
    ours = rows(tmp_path / "out/rank_0/weight_grad_step0-1.csv")
    assert {key: row["micro_step"] for key, row in ours.items() if key[2] == "reduced"} == dict.fromkeys(reference, "2")
    assert all(float(ours[key]["norm"]) == pytest.approx(float(row["norm"])) for key, row in reference.items())
    assert "has no effect" not in caplog.text


def test_step_where_the_optimizer_is_watched(write_v2, caplog):
    model, optimizer = build()
    monitor = TrainerMonitorV2(write_v2())
    monitor.start(model=model, optimizer=optimizer, grad_acc_steps=2)
    train(model, optimizer, after_step=monitor.step)
    monitor.stop()
    assert caplog.text.count("step() of the monitor has no effect") == 1


def test_sampling_ranks_and_columns(write_v2, tmp_path):
    model, optimizer = build()
    monitors = {"module": {"enabled": False}, "param": {"enabled": True, "ops": ["max", "norm"]}}
    path = write_v2(start_step=1, stop_step=8, step_interval=3, step_count_per_record=1, monitors=monitors, rank=0)
    monitor = TrainerMonitorV2(path)
    monitor.start(model=model, optimizer=optimizer, grad_acc_steps=2)
    train(model, optimizer, steps=9)
    monitor.stop()
    files = sorted(path.name for path in (tmp_path / "out/rank_0").glob("*.csv"))
    assert files == ["param_step1-1.csv", "param_step4-4.csv", "param_step7-7.csv"]
    header = (tmp_path / "out/rank_0" / files[0]).read_text().splitlines()[0]
    assert header == "vpp_stage,step,module_name,scope,max,norm"
    monitor = TrainerMonitorV2(write_v2(output_dir=str(tmp_path / "none"), rank=[1]))
    monitor.start(model=model, optimizer=optimizer)
    train(model, optimizer)
    monitor.stop()
    assert not (tmp_path / "none").exists()


def test_another_run_does_not_mix_with_the_first(written, write_v2, caplog):
    """Steps that come again are those of another training; later ones go on."""
    first = (written / "rank_0/param_step0-1.csv").read_text()
    for begin in (0, 3):
        model, optimizer = build()
        monitor = TrainerMonitorV2(write_v2())
        monitor.start(model=model, optimizer=optimizer, grad_acc_steps=2, start_iteration=begin)
        train(model, optimizer)
        monitor.stop()
    assert (written / "rank_0/param_step0-1.csv").read_text() == first
    assert (written / "rank_0/param_step0-1.csv.1").read_text() == first
    assert "param_step0-1.csv has steps of an earlier training" in caplog.text
    # Step 2 of the second training and step 3 of the third share a file.
    assert {key[0] for key in rows(written / "rank_0/param_step2-3.csv")} == {2, 3}


def test_beyond_the_tool(write_v2, tmp_path):
    """Alerts, other formats, dynamic mode."""
    model, optimizer = build()
    alert = {"rules": [{"rule_name": "AnomalyNan"}], "dump": True}
    path = write_v2(format=["csv", "tensorboard", "parquet"], alert=alert)
    monitor = TrainerMonitorV2(path)
    monitor.start(model=model, optimizer=optimizer, grad_acc_steps=2)
    train(model, optimizer, steps=1)
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    train(model, optimizer, steps=1)
    monitor.stop()
    assert list((tmp_path / "out/rank_0").glob("events.*"))
    assert list((tmp_path / "out/parquet").glob("rank=0/data_type=actv/rank_0_0.parquet"))
    found = json.loads((tmp_path / "out/anomaly_detected/rank0/anomaly.json").read_text())
    assert "0.weight" in json.dumps(found)
    assert main(["anomalies", "-d", str(tmp_path / "out/anomaly_detected")]) == 0


def test_dynamic_mode(write_v2, tmp_path, monkeypatch):
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    model, optimizer = build()
    path = write_v2(dynamic_on=False)
    monitor = TrainerMonitorV2(path, fr="torch")
    monitor.start(model=model, optimizer=optimizer, grad_acc_steps=2)
    train(model, optimizer)
    assert not (tmp_path / "out").exists()
    write_v2(dynamic_on=True, step_count_per_record=100)
    train(model, optimizer)
    monitor.stop()
    assert {key[0] for key in rows(tmp_path / "out/rank_0/param_step0-99.csv")} == {4, 5}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"wg_distribution": True}, "wg_distribution: a key of the first form of configuration; write monitors.weight"),
        ({"squash_name": True}, "squash_name: a key of the first form of configuration; this one has nothing like it"),
        ({"stopstep": 3}, 'stopstep: unknown key, did you mean "stop_step"?'),
        ({"monitors": {"modul": {}}}, 'monitors.modul: unknown key, did you mean "module"?'),
        ({"monitors": {"param": {"enabled": 1}}}, "monitors.param.enabled: 1 is refused, expected true or false"),
        ({"framework": "jax"}, 'framework: "jax" is refused, expected one of "pytorch"'),
        ({"rank": "0"}, 'rank: "0" is refused, expected a list of ranks'),
        ({"start_step": -1, "stop_step": 4}, "start_step: -1 is refused, expected an integer >= 0"),
    ],
)
def test_wrong_configurations(write_v2, changes, sentence):
    with pytest.raises(ConfigError) as error:
        TrainerMonitorV2(write_v2(**changes))
    assert sentence in str(error.value)


def test_a_file_of_the_other_form(write_v2, write_config):
    from msmon.pytorch import TrainerMon

    with pytest.raises(ConfigError, match=r"monitors: a key of the second form.*TrainerMonitorV2"):
        TrainerMon(write_v2())
    with pytest.raises(ConfigError, match="xy_distribution: a key of the first form"):
        TrainerMonitorV2(write_config(xy_distribution=True))
    with pytest.raises(ConfigError, match="fr: 'jax' is refused"):
        TrainerMonitorV2(write_v2(), fr="jax")


@pytest.mark.parametrize("made_by", ["the tool", "msmon"])
def test_commands_read_it(made_by, written, tmp_path, capsys):
    run = written if made_by == "msmon" else tmp_path / "tool"
    if made_by == "the tool":
        (run / "rank_0").mkdir(parents=True)
        for path in DATA.glob("*.csv"):
            (run / "rank_0" / path.name).write_bytes(path.read_bytes())
    # Also a directory of one rank's files.
    for directory in (run, run / "rank_0"):
        assert main(["show", str(directory)]) == 0
        shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
        assert "actv_grad 3 0 to 2 1 - min, max, mean, norm, nans" in shown
        assert "exp_avg 2.bias norm 0.160327 2 0" in shown
        assert main(["report", str(directory), "-o", str(tmp_path / "page.html")]) == 0
        assert "actv_grad: of 2 micro-steps the worst is shown" in capsys.readouterr().out
        assert main(["diff", str(directory), str(DATA)]) == (1 if made_by == "msmon" else 0)
        assert "0 differ" in capsys.readouterr().out
    assert main(["convert", str(run), "--output_dirpath", str(tmp_path / "parquet")]) == 0
    assert main(["csv2tb", str(run), "--output_dirpath", str(tmp_path / "tb")]) == 0
    import pyarrow.parquet
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (part,) = tmp_path.glob("parquet/rank=0/data_type=actv/*.parquet")
    table = pyarrow.parquet.read_table(part)
    assert table.num_rows == 24
    assert table["micro_step"].to_pylist()[:8] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert set(table["name"].to_pylist()) == {"0.input", "0.output", "2.input", "2.output"}
    events = EventAccumulator(str(tmp_path / "tb/rank0/exp_avg")).Reload()
    values = [event.value for event in events.Scalars("vp0:0.weight/norm")]
    expected = [
        float(row["norm"])
        for name in ("optimizer_step0-1.csv", "optimizer_step2-3.csv")
        for key, row in rows(DATA / name).items()
        if key[1:3] == ("0.weight.exp_avg", "exp_avg")
    ]
    assert values == pytest.approx(expected)


def test_check_and_convert_config(write_v2, tmp_path, capsys):
    path = write_v2()
    assert main(["check", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "valid, second form" in printed
    assert "activations of modules with 0, 2 in their names" in printed
    assert main(["convert-config", str(path), "-o", str(tmp_path / "first.json")]) == 1
    assert "in the first form as they stand before the update" in capsys.readouterr().err
    assert main(["check", str(tmp_path / "first.json")]) == 0
    assert "valid\n" in capsys.readouterr().out
    (tmp_path / "plain.json").write_text(json.dumps({"wg_distribution": True, "ops": ["max"], "module_ranks": [2]}))
    assert main(["convert-config", str(tmp_path / "plain.json"), "-o", str(tmp_path / "second.json")]) == 0
    made = json.loads((tmp_path / "second.json").read_text())
    assert made == {
        "rank": [2],
        "monitors": {"module": {"enabled": False}, "weight_grad": {"enabled": True, "ops": ["max"]}},
    }
    # And back.
    assert main(["convert-config", str(tmp_path / "second.json")]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again == {"wg_distribution": True, "ops": ["max"], "module_ranks": [2], "ndigits": 17}
    (tmp_path / "plain.json").write_text(json.dumps({"mg_direction": True}))
    assert main(["convert-config", str(tmp_path / "plain.json")]) == 1
    assert "mg_direction: the second form has nothing like it" in capsys.readouterr().err


RANKS = """
import sys, torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from msmon.monitor_v2 import TrainerMonitorV2

def train(rank, config, meeting):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMonitorV2(config, fr="pt")
    monitor.start(model=model, optimizer=optimizer)
    for _ in range(2):
        model(torch.full((2, 3), rank + 1.0)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.stop()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(train, (sys.argv[1], sys.argv[2]), nprocs=2)
"""


def test_two_ranks(write_v2, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(RANKS)
    path = write_v2(monitors={"weight_grad": {"enabled": True}, "module": {"enabled": False}})
    env = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    env |= {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, str(script), str(path), f"file://{tmp_path / 'meeting'}"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    norms = {}
    for rank in (0, 1):
        for key, row in rows(tmp_path / f"out/rank_{rank}/weight_grad_step0-1.csv").items():
            norms[(rank, *key[:3])] = float(row["norm"])
    # The gradient of each weight is the sum of a column of the rank's own batch; DDP takes the mean over ranks.
    for rank in (0, 1):
        assert norms[rank, 1, "weight", "unreduced"] == pytest.approx(24**0.5 * (rank + 1))
        assert norms[rank, 1, "weight", "reduced"] == pytest.approx(24**0.5 * 1.5)
    assert main(["show", str(tmp_path / "out")]) == 0
