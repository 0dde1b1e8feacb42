"""Reading a run needs no framework; what it does need is named where it is missing."""

import subprocess
import sys
from pathlib import Path

from .files import write_rank

BLOCK = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError("blocked: " + name)

sys.meta_path.insert(0, Blocker())
from msmon.cli import main
"""


def run(code: str, *blocked: str) -> subprocess.CompletedProcess:
    program = BLOCK.format(blocked=set(blocked)) + code
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_no_framework_is_imported(tmp_path: Path) -> None:
    write_rank(tmp_path / "run", {"grad_reduced": [(0, "w", 1.0)]})
    directory, page = str(tmp_path / "run"), str(tmp_path / "r.html")
    code = f"""
assert main(["show", {directory!r}]) == 0
assert main(["report", {directory!r}, "-o", {page!r}]) == 0
assert main(["diff", {directory!r}, {directory!r}, "-o", {page!r}]) == 0
"""
    done = run(code, "torch", "mindspore", "pandas", "duckdb", "tensorboard", "matplotlib")
    assert done.returncode == 0, done.stderr
    # The block is a real one.
    assert "blocked: torch" in run("import torch", "torch").stderr


def test_the_missing_package_and_its_extra_are_named(tmp_path: Path) -> None:
    for words in (["show", "x"], ["report", "x"], ["diff", "x", "y"]):
        done = run(f"raise SystemExit(main({words!r}))", "pyarrow")
        assert done.returncode == 2
        assert "pip install 'msmon[report]'" in done.stderr
        assert "Traceback" not in done.stderr
