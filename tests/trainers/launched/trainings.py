"""Runs a command as it is and under `msmon run`, and compares."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

PROBE = Path(__file__).with_name("probe")
CONFIG = {"wg_distribution": True, "xy_distribution": True, "ops": ["norm"], "ndigits": 12}


@frozen(kw_only=True)
class Seen:
    """The line of a command in the table."""

    models: list[str]
    losses: bool
    """Whether the weights that the command saved are the same to the bit, and so each loss before them."""
    rows: bool
    """Whether each gradient's norm at each step is what torch's own hooks saw without the monitor."""
    said: str

    @property
    def holds(self) -> bool:
        return bool(self.models) and self.losses and self.rows


def compare(words: Sequence[str], weights: str, folder: Path, *, first: int = 0) -> Seen:
    """Run a command twice, each time in a folder of its own.

    Args:
        words: the command.
        weights: which files it saves, as a pattern from the folder on.
        folder: for both.
        first: the first step that has rows.
    """
    plain, watched = folder / "plain", folder / "watched"
    norms = folder / "norms"
    norms.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    _run(words, plain, {"GRADIENTS_SEEN_IN": str(norms)})
    launched = [sys.executable, "-m", "msmon", "run", "--config", str(folder / "config.json"), "--", *words]
    said = _run(launched, watched, {"MONITOR_OUTPUT_DIR": str(folder / "out")})
    expected, found = [steps[first:] for steps in _seen(norms)], _written(folder / "out")
    return Seen(
        models=re.findall(r"^msmon: watching (.*?), trained", said, flags=re.MULTILINE),
        losses=_digest(plain, weights) == _digest(watched, weights),
        rows=bool(expected) and _equal(expected, found),
        said="\n".join(line for line in said.splitlines() if "msmon" in line) + f"\n{expected}\n{found}",
    )


def _run(words: Sequence[str], folder: Path, env: Mapping[str, str]) -> str:
    folder.mkdir()
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "cache"),
        "ACCELERATE_USE_CPU": "true",
        **env,
        "PYTHONPATH": os.pathsep.join([str(PROBE), *filter(None, sys.path)]),
    }
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stderr


def _digest(folder: Path, pattern: str) -> list[str]:
    files = sorted(folder.glob(pattern))
    assert files, sorted(map(str, folder.rglob("*")))
    return [
        hashlib.sha256(
            b"".join(one.reshape(-1).view(torch.uint8).numpy().tobytes() for one in _tensors(_load(path)))
        ).hexdigest()
        for path in files
    ]


def _load(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=False)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value.detach().contiguous()
    elif isinstance(value, torch.nn.Module):
        yield from _tensors(value.state_dict())
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _tensors(value[key])
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)


def _seen(folder: Path) -> list[list[list[float]]]:
    """Of each optimizer of each rank, the norms of each step."""
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in sorted(folder.glob("*.jsonl"))]


def _written(folder: Path) -> list[list[list[float]]]:
    """The same of each monitor."""
    monitors = []
    for run_dir in folder.rglob("*-rank*-*"):
        steps: dict[int, list[float]] = defaultdict(list)
        for path in run_dir.glob("grad_reduced_[0-9]*.csv"):
            with path.open() as file:
                for row in csv.DictReader(file):
                    steps[int(row["step"])].append(float(row["norm"]))
        monitors.append([sorted(steps[step]) for step in sorted(steps)])
    return monitors


def _equal(expected: list[list[list[float]]], found: list[list[list[float]]]) -> bool:
    """To nine digits, whatever the order of the monitors."""

    def rounded(monitors: list[list[list[float]]]) -> list[list[list[str]]]:
        return sorted([[f"{norm:.8e}" for norm in step] for step in steps] for steps in monitors)

    return rounded(expected) == rounded(found)
