"""However a training process ends, what was recorded is on disk."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from msmon_io import stream_batches

from .ended_training import STEPS

ENDINGS = ("close", "context", "exit", "exception", "sigterm_handled", "sigterm", "fork", "spawn")


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> tuple[Path, dict[str, int]]:
    """The folder of all endings, and the exit status of each."""
    folder = tmp_path_factory.mktemp("ended")
    script = Path(__file__).with_name("ended_training.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment.pop("DYNAMIC_MONITOR", None)
    command = [sys.executable, str(script), str(folder), *ENDINGS]
    status = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            words = line.split()
            if words[1] == "ended":
                status[words[0]] = int(words[2])
            else:
                os.kill(int(words[1]), signal.SIGTERM)
    assert process.returncode == 0
    return folder, status


def steps_on_disk(folder: Path) -> dict[str, list[int]]:
    """Data type to the steps of its CSV rows, one a tensor of ``Linear``'s weight or output."""
    found: dict[str, list[int]] = {}
    for path in sorted((folder / "out").glob("*-rank0-*/*_*-*.csv")):
        with path.open() as file:
            rows = [row for row in csv.DictReader(file) if row["name"] in ("weight", ".output")]
        found.setdefault(path.name.rpartition("_")[0], []).extend(int(row["step"]) for row in rows)
    return found


@pytest.mark.parametrize("ending", [ending for ending in ENDINGS if ending != "sigterm"])
def test_everything_is_on_disk(ending, ended):
    root, status = ended
    folder = root / ending
    said = (folder / "stderr.txt").read_text()
    assert status[ending] == (1 if ending == "exception" else 0), said
    every = list(range(STEPS))
    expected = {"actv": every, "grad_unreduced": every, "grad_reduced": every}
    found = steps_on_disk(folder)
    assert {kind: found.get(kind) for kind in expected} == expected, said
    # One run directory: workers of data loaders, forked or spawned with the model, have made none.
    (run_dir,) = (folder / "out").glob("*-rank0-*")
    coverage = json.loads((run_dir / "coverage.json").read_text())
    assert coverage["seen"]["grad_reduced"] == 2
    assert said.count(f"{STEPS} steps recorded") == 1, said
    assert parquet_steps(folder / "out") == every
    assert event_steps(run_dir) == every


def test_sigterm_without_a_handler_loses_at_most_the_step_being_written(ended):
    root, status = ended
    # The disposition is the default one: a process that hangs in a collective still ends at SIGTERM.
    assert status["sigterm"] == -signal.SIGTERM
    found = steps_on_disk(root / "sigterm")
    for kind in ("actv", "grad_unreduced", "grad_reduced"):
        assert found[kind] == list(range(len(found[kind])))
        assert len(found[kind]) >= STEPS - 1
    (run_dir,) = (root / "sigterm" / "out").glob("*-rank0-*")
    for name in ("run.json", "coverage.json"):
        assert json.loads((run_dir / name).read_text())["schema"] == 1
    # Parquet files are made anew at intervals; what they lack is in the streams beside them.
    streams = list((root / "sigterm" / "out").glob("parquet/*/*/_*.arrows"))
    assert len(streams) == 4
    assert parquet_steps(root / "sigterm" / "out")[0] == 0
    streamed = [sorted({batch["step"][0].as_py() for batch in stream_batches(stream)}) for stream in streams]
    for steps in (event_steps(run_dir), *streamed):
        assert steps == list(range(len(steps)))
        assert len(steps) >= STEPS - 1


def test_the_monitor_leaves_signals_alone(write_config, output_dir):
    import torch

    from msmon.pytorch import TrainerMon

    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    model = torch.nn.Linear(2, 2)
    with TrainerMon(write_config(wg_distribution=True)) as monitor:
        monitor.set_monitor(model, 1, torch.optim.SGD(model.parameters(), lr=0.1))
        assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before


def parquet_steps(output: Path) -> list[int]:
    import pyarrow.dataset

    data = pyarrow.dataset.dataset(output / "parquet", partitioning="hive").to_table(columns=["step"])
    return sorted(set(data["step"].to_pylist()))


def event_steps(run_dir: Path) -> list[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir)).Reload()
    return [event.step for event in events.Scalars("0:weight/rank0/grad_reduced_norm")]
