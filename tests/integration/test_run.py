"""`msmon run`: trainings of many kinds, and programs that must not notice it."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MSMON = [sys.executable, "-m", "msmon", "run"]


def run(*words: str, cwd: Path, env: dict[str, str] | None = None, given: str = "") -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        **(env or {}),
    }
    environment.pop("MONITOR_OUTPUT_DIR", None)
    return subprocess.run(words, cwd=cwd, env=environment, input=given, capture_output=True, text=True, timeout=300)


def rows(folder: Path, data_type: str) -> Counter[tuple[str, str]]:
    """Step and name of each row."""
    found: Counter[tuple[str, str]] = Counter()
    for path in folder.glob(f"*-rank0-*/{data_type}_[0-9]*.csv"):
        with path.open() as file:
            found.update((row["step"], row["name"]) for row in csv.DictReader(file))
    return found


def test_trainings_of_many_kinds(tmp_path: Path) -> None:
    """Weights bit-equal; each model found, with each of its optimizers, from its first step on."""
    program = [sys.executable, str(HERE / "launched_trainings.py")]
    alone = run(*program, cwd=tmp_path)
    watched = run(*MSMON, "--watch", "wg,param", "-o", "out", "--", *program, cwd=tmp_path)
    assert (alone.returncode, watched.returncode) == (7, 7), watched.stderr
    assert watched.stdout == alone.stdout
    watching = [line for line in said(watched) if line.startswith("msmon: watching")]
    assert [line.split()[2].rstrip(",") for line in watching] == [
        "Plain", "Accumulated", "TwoOptimizers", "Generator", "Critic", "InParts",
        "StateFirst", "Replaced", "Student", "WithWorkers", "Compiled", "ByClosure",
    ]  # fmt: skip
    assert "trained with Adam and SGD," in watching[2]
    assert "trained with AdamW," in watching[7]
    assert [line.split("step on")[0].split()[-1] for line in watching] == ["first"] * 11 + ["second"]
    assert "SGD is not watched: no module holds the parameters that it updates" in watched.stderr
    folders = [tmp_path / "out", *(next((tmp_path / "out").glob(f"*_{number}")) for number in range(1, len(watching)))]
    names = [f"layers.{layer}.{kind}" for layer in (0, 1) for kind in ("weight", "bias")]
    for folder in folders:
        # The step had begun when the model was first called.
        late = folder is folders[-1]
        expected = Counter((str(step), name) for step in range(late, 3) for name in names)
        for data_type in ("grad_reduced", *(() if late else ("grad_unreduced", "param_origin", "param_updated"))):
            assert rows(folder, data_type) == expected, (folder.name, data_type)
        (coverage,) = folder.glob("*-rank0-*/coverage.json")
        assert json.loads(coverage.read_text())["missing"] == []
        (info,) = folder.glob("*-rank0-*/run.json")
        assert json.loads(info.read_text())["grad_acc_steps"] == (3 if folder is folders[1] else 1)
    # The sum of the three micro-steps, and not a part of it.
    assert gradients(folders[1], "grad_unreduced") == gradients(folders[1], "grad_reduced")


def gradients(folder: Path, data_type: str) -> dict[tuple[str, str], str]:
    found = {}
    for path in folder.glob(f"*-rank0-*/{data_type}_[0-9]*.csv"):
        with path.open() as file:
            found.update({(row["step"], row["name"]): row["norm"] for row in csv.DictReader(file)})
    return found


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What the monitor has printed; frameworks may warn beside it."""
    return [line for line in done.stderr.splitlines() if line.startswith("msmon: ")]


def test_the_first_thing_to_type(tmp_path: Path) -> None:
    """What the README says, and what it prints."""
    example = HERE.parents[1] / "examples" / "plain_loop.py"
    done = run(*MSMON, "--watch", "wg,xy", "--", sys.executable, str(example), cwd=tmp_path)
    folder = tmp_path / "monitor_output"
    first, recorded, look = said(done)
    assert first == (
        f"msmon: watching Sequential, trained with AdamW, from its first step on: wg, xy; files in {folder}"
    )
    assert recorded.startswith("msmon: 20 steps recorded; expected 22 tensors, saw 22; hooks took ")
    assert look == f"msmon: look at it: msmon show {folder}, or msmon report {folder} --open"
    assert len(rows(folder, "actv")) == 20 * 8
    assert done.stdout == run(sys.executable, str(example), cwd=tmp_path).stdout


FAILING = """
import sys
print(sys.argv[1:], input())
def inner():
    raise ValueError("of the script")
inner()
"""


def test_a_program_is_its_own(tmp_path: Path) -> None:
    """Arguments, input, traceback and exit status; frameworks that it does not import are not imported."""
    script = tmp_path / "script.py"
    script.write_text(FAILING)
    alone = run(sys.executable, "script.py", "--watch", "x y", cwd=tmp_path, given="typed\n")
    for words in (
        [*MSMON, "--", sys.executable, "script.py", "--watch", "x y"],
        [*MSMON, "script.py", "--watch", "x y"],
        [sys.executable, "-m", "msmon.run", "--watch", "wg", "script.py", "--watch", "x y"],
    ):
        watched = run(*words, cwd=tmp_path, given="typed\n")
        assert (watched.returncode, watched.stdout, watched.stderr) == (1, alone.stdout, alone.stderr)
    code = "import sys; print(sorted({'torch', 'numpy', 'attrs', 'mindspore'} & {*sys.modules}))"
    assert run(*MSMON, "--", sys.executable, "-c", code, cwd=tmp_path).stdout == "[]\n"
    assert not (tmp_path / "monitor_output").exists()


def test_the_other_sitecustomize(tmp_path: Path) -> None:
    """That of the user's own environment runs, too, and children find both."""
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 'mine'")
    child = "import sys; print(mine, 'msmon.launching.program' in sys.modules, sys.modules['sitecustomize'].__file__)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = run(*MSMON, "--", sys.executable, "-c", code, cwd=tmp_path, env={"PYTHONPATH": paths})
    assert done.stdout == f"mine True {tmp_path / 'sitecustomize.py'}\n", done.stderr


WAITING = """
import signal, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
print("ready", flush=True)
signal.pause()
"""


SWEEP = """
import gc, threading, weakref, torch
def train():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        schedule.step()
    return weakref.ref(model), weakref.ref(optimizer), model
kept = None
references, threads = [], []
for _ in range(6):
    *one, model = train()
    kept = kept or model
    references += one
    del model
    gc.collect()
    threads.append(threading.active_count())
print(sum(reference() is not None for reference in references), threads[0] == threads[-1])
"""


def test_a_training_that_is_over_is_let_go(tmp_path: Path) -> None:
    """Of six, the model that the program keeps is there, and the optimizer that its monitor reads; all rows are."""
    done = run(*MSMON, "-o", "out", "--", sys.executable, "-c", SWEEP, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "2 True\n"), done.stderr
    for folder in (tmp_path / "out", *(tmp_path / f"out/Linear_{number}" for number in range(1, 6))):
        expected = Counter((step, name) for step in "01" for name in ("weight", "bias"))
        assert rows(folder, "grad_reduced") == expected
    assert done.stderr.count("look at it") == 6


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_the_programs_own(tmp_path: Path, sent: signal.Signals) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "MONITOR_OUTPUT_DIR": str(tmp_path)}
    words = [*MSMON, "--", sys.executable, "-c", WAITING]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(sent)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == -sent, errors
    if sent == signal.SIGINT:  # an orderly end
        assert rows(tmp_path, "grad_reduced") == Counter({("0", "weight"): 1, ("0", "bias"): 1})


OWN = """
import torch
from msmon import TrainerMon
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with TrainerMon(config={"wg_distribution": True}, output_dir="own") as monitor:
    monitor.set_monitor(model, 1, optimizer)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
"""
FULL = """
import msmon.pytorch, torch
class Refusing(msmon.pytorch.TrainerMon):
    def set_monitor(self, *args, **kwargs):
        raise RuntimeError("refused")
msmon.pytorch.TrainerMon = Refusing
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


def test_a_monitor_of_its_own_and_one_that_fails(tmp_path: Path) -> None:
    done = run(*MSMON, "--", sys.executable, "-c", OWN, cwd=tmp_path)
    assert (done.returncode, said(done)) == (0, [])
    assert len(rows(tmp_path / "own", "grad_reduced")) == 4
    assert not (tmp_path / "monitor_output").exists()
    done = run(*MSMON, "--", sys.executable, "-c", FULL, cwd=tmp_path)
    assert done.returncode == 0
    assert said(done) == ["msmon: could not watch, the training goes on: RuntimeError: refused"]


UNUSED = """
import torch
from torch import nn

class Counted(nn.Linear):
    def parameters(self, recurse=True):
        if inside:
            print("looked")
        return super().parameters(recurse)

inside = False
unused = torch.optim.SGD([torch.ones(1, requires_grad=True)], 0.1)
other = Counted(2, 1)
inside = True
for _ in range(5):
    other(torch.ones(1, 2)).sum().backward()
"""


def test_an_optimizer_that_never_steps_costs_one_look(tmp_path: Path) -> None:
    done = run(*MSMON, "--", sys.executable, "-c", UNUSED, cwd=tmp_path)
    assert (done.returncode, done.stdout, said(done)) == (0, "looked\n", [])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no command"),
        (["--watch", "wq", "--", "no-such-program"], "watch: unknown word 'wq'; the words are wg, xy"),
        (["--ops", "nrm", "--", "no-such-program"], 'ops: dropped "nrm" (did you mean "norm"?)'),
        (["--every", "0", "--", "no-such-program"], "step_interval"),
        (["--config", "none.json", "--", "no-such-program"], "none.json: no such file"),
        (["--config", "c.json", "--ops", "norm", "--", "no-such-program"], "--ops: not together with --config"),
        (["--", "no-such-program"], "no-such-program: no such program"),
    ],
)
def test_wrong_arguments(tmp_path: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    from msmon.cli import main

    assert main(["run", *words]) == 2
    assert says in capsys.readouterr().err
