"""Two processes, started by msrun as users start them: what is the rank's own, and what is reduced."""

import csv
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What both ranks wrote."""
    path = tmp_path_factory.mktemp("ranks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    binaries = Path(sys.executable).parent
    command = [binaries / "msrun", "--worker_num=2", "--local_worker_num=2", f"--master_port={port}", "--join=True"]
    environment = {
        **os.environ,
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(part for part in sys.path if part),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [*command, f"--log_dir={path / 'logs'}", HERE / "mindspore_ranks.py", path],
        env=environment,
        cwd=path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    logs = "".join(log.read_text(errors="replace")[-3000:] for log in (path / "logs").glob("worker_*.log"))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:] + logs
    return path


def rows(folder: Path, name: str, rank: int, data_type: str, step: int = 1) -> list[dict[str, str]]:
    found = list(folder.glob(f"{name}/*-rank{rank}-*/{data_type}_{step}-{step}.csv"))
    if not found:
        return []
    with found[0].open(newline="") as file:
        return list(csv.DictReader(file))


def norms(folder: Path, name: str, rank: int, data_type: str) -> dict[str, float]:
    return {row["name"]: float(row["norm"]) for row in rows(folder, name, rank, data_type)}


def results(folder: Path) -> list[dict]:
    return [json.loads((folder / f"results-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("name", ["monitored", "accumulated", "several"])
def test_unreduced_is_the_ranks_own_and_reduced_is_everybodys(folder, name):
    own = [norms(folder, name, rank, "grad_unreduced") for rank in (0, 1)]
    reduced = [norms(folder, name, rank, "grad_reduced") for rank in (0, 1)]
    assert len(own[0]) == len(reduced[0]) == 4
    assert reduced[0] == reduced[1]
    for key in own[0]:
        assert own[0][key] != own[1][key]
        assert own[0][key] != reduced[0][key]
    means = [
        {row["name"]: float(row["mean"]) for row in rows(folder, name, rank, data_type)}
        for rank, data_type in ((0, "grad_unreduced"), (1, "grad_unreduced"), (0, "grad_reduced"))
    ]
    for key, mean in means[2].items():
        assert mean == pytest.approx((means[0][key] + means[1][key]) / 2, rel=1e-4, abs=1e-7)


def test_losses_are_those_of_an_unmonitored_run(folder):
    for found in results(folder):
        assert found["monitored"] == found["plain"]
    assert results(folder)[0]["plain"] != results(folder)[1]["plain"]


def test_micro_steps_show_the_sum_so_far(folder):
    for rank in (0, 1):
        found = {(row["name"], row["micro_step"]): row["norm"] for row in rows(folder, "micro", rank, "grad_unreduced")}
        assert len(found) == 8
        whole = norms(folder, "accumulated", rank, "grad_unreduced")
        for key, norm in whole.items():
            assert float(found[key, "1"]) == pytest.approx(norm, rel=1e-6)
            assert found[key, "0"] != found[key, "1"]
        assert norms(folder, "micro", rank, "grad_reduced") == norms(folder, "accumulated", rank, "grad_reduced")


def test_who_writes(folder):
    assert len(rows(folder, "grouped", 0, "grad_reduced")) == 4
    assert rows(folder, "grouped", 1, "grad_reduced") == []
    assert len(rows(folder, "grouped", 1, "grad_unreduced")) == 4
    assert not list(folder.glob("one_rank/*-rank0-*"))
    assert len(rows(folder, "one_rank", 1, "grad_reduced")) == 4
    info = json.loads(next(folder.glob("monitored/*-rank1-*/run.json")).read_text())
    assert (info["rank"], info["world_size"], info["engine"], info["framework"]) == (1, 2, "data_parallel", "mindspore")
    grouped = json.loads(next(folder.glob("grouped/*-rank1-*/run.json")).read_text())
    assert grouped["parallel"]["data"] == [0, 1]


def test_collectives_show_what_is_sent_and_what_arrives(folder):
    for rank in (0, 1):
        found = {row["name"]: float(row["mean"]) for row in rows(folder, "collectives", rank, "other")}
        assert found == {
            "AllReduce.pre_0": rank + 1,
            "AllReduce.post_0": 3.0,
            "all_reduce.pre_0": rank + 1,
            "all_reduce.post_0": 3.0,
        }
    log = (folder / "logs" / "worker_0.log").read_text(errors="replace")
    assert "collectives of step 0: 2 different calls" in log
    assert "AllReduce x1, Float32, group mccl_world_group" in log


def test_who_shares_a_parameter(folder):
    """What the script has given, and the groups that collectives are called for: `msmon verify` goes by it."""
    for rank in (0, 1):
        grouped, monitored, collectives = (
            json.loads(next(folder.glob(f"{name}/*-rank{rank}-*/run.json")).read_text())
            for name in ("grouped", "monitored", "collectives")
        )
        data = {"data": "0:2"}
        assert [one["layout"] for one in grouped["tensors"]] == [{"equal_over": data, "summed_over": data}] * 4
        assert not any("layout" in one for one in monitored["tensors"])
        # An operator keeps its reduction to itself.
        calls = {"AllReduce": [{"ranks": "0:2", "reduction": ""}], "all_reduce": [{"ranks": "0:2", "reduction": "sum"}]}
        assert collectives["collectives"] == calls
