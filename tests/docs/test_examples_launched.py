"""`msmon run` over every example without its lines of msmon: the rows of the example as it is, on each rank."""

from __future__ import annotations

import csv
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from msmon.launching.command import SITE
from msmon.launching.program import CONFIG

from .conftest import IMPORTS, OWN_PROCESSES
from .forks import Forks
from .pages import ROOT
from .strip import without_monitor
from .test_examples import ENGINES, run_dirs

LAUNCHED = [name for name in ENGINES if name not in ("collectives", "tiny_gpt")]
"""Those that have `monitor_config.json`."""

Row = dict[str, str]


def rows_of(output: Path) -> dict[tuple[str, ...], Row]:
    found: dict[tuple[str, ...], Row] = {}
    for rank, run_dir in run_dirs(output).items():
        for path in run_dir.glob("*.csv"):
            data_type = path.stem.rpartition("_")[0]
            with path.open() as file:
                for row in csv.DictReader(file):
                    key = (str(rank), data_type, row["step"], row["name"], row.get("micro_step", ""))
                    assert key not in found
                    found[key] = row
    return found


@pytest.mark.parametrize("name", LAUNCHED)
def test_without_a_line(name: str, example: Callable[..., Path], forks: Forks, tmp_path: Path) -> None:
    expected = rows_of(example(f"examples/{name}.py"))
    script = tmp_path / f"{name}.py"
    source = without_monitor((ROOT / f"examples/{name}.py").read_text())
    assert "msmon" not in source.partition("import ")[2].replace("files in", "")
    script.write_text(source)
    shutil.copy(ROOT / "examples/megatron_on_cpu.py", tmp_path)
    env = {
        CONFIG: str(ROOT / "examples/monitor_config.json"),
        "MONITOR_OUTPUT_DIR": str(tmp_path / "output"),
        # Where the program starts the other rank itself.
        "PYTHONPATH": os.pathsep.join([str(SITE), *filter(None, sys.path)]),
    }
    begin = {"do": "python", "code": "from msmon.launching.program import begin\nbegin()", "place": "begin"}
    run = {"do": "script", "path": str(script), "arguments": []}
    ranks = 1 if f"examples/{name}.py" in OWN_PROCESSES else 2
    printed = forks.run(tmp_path, begin, run, ranks=ranks, env=env, imports=IMPORTS.get(name, ()))
    assert printed.count("msmon: watching ") == 1, printed
    found = rows_of(tmp_path / "output")
    # A script may name groups of ranks that hold the same, of which one writes; nobody does here.
    assert {key: found.get(key) for key in expected} == expected
    beyond = {key: row for key, row in found.items() if key not in expected}
    assert all(beyond[key] == found[("0", *key[1:])] for key in beyond)
