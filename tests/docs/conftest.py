"""The process that forks, the runs that pages look at, and the examples, each run once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .forks import Forks
from .givens import Givens
from .pages import ROOT

OWN_PROCESSES = ("examples/lightning_trainer.py", "examples/mindspore_mlp.py", "examples/tiny_gpt.py")
"""Examples that are started as one process."""
IMPORTS = {
    "accelerate_ddp": ["accelerate"],
    "accelerate_deepspeed": ["accelerate", "deepspeed"],
    "deepspeed_zero": ["deepspeed"],
    "hf_trainer": ["transformers.trainer"],
}
"""What takes longer to import than the example takes to run."""


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Programs that begin with torch and msmon imported."""
    found = Forks("torch", "torch.distributed", "msmon.pytorch", "msmon.cli", "pandas")
    yield found
    found.close()


@pytest.fixture(scope="session")
def example(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Run an example as its docstring says; the same one only once. Returns its output directory."""
    done: dict[str, Path] = {}

    def run(path: str, *arguments: str) -> Path:
        if path not in done:
            folder = tmp_path_factory.mktemp(Path(path).stem)
            step = {"do": "script", "path": str(ROOT / path), "arguments": arguments}
            env = {"MONITOR_OUTPUT_DIR": str(folder / "monitor_output")}
            ranks = 1 if path in OWN_PROCESSES else 2
            forks.run(folder, step, ranks=ranks, env=env, imports=IMPORTS.get(Path(path).stem, ()))
            done[path] = folder / "monitor_output"
        return done[path]

    return run


@pytest.fixture(scope="session")
def givens(forks: Forks, example: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Givens:
    """What pages take for granted."""
    return Givens(tmp_path_factory.mktemp("givens"), forks, example)


@pytest.fixture
def page_folder(tmp_path: Path) -> Iterator[Path]:
    """Where the blocks of a page run."""
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)
