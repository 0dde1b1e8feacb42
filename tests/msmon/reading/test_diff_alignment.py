"""What belongs together in two runs: names, steps, micro-steps, ranks; and what exists on one side only."""

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from msmon.cli import main
from msmon.reading import UnusableRun
from msmon.reading.diff import DiffResult, diff_runs, read_rules
from msmon_stats import summarize_many

from .files import write_rank

OPS = ("norm", "min", "max", "mean", "zeros", "std", "rms", "absmax", "nans", "infs")


def rules(tmp_path: Path, *entries: object) -> Path:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps(entries))
    return path


def one_sided(result: DiffResult) -> list[tuple[str, str, str]]:
    return [(one.only_in, one.data_type, one.what) for one in result.one_sided]


def test_rules_rename_a_wrapped_model(trained: Callable[[str], Path], tmp_path: Path) -> None:
    plain, wrapped = trained("plain"), trained("wrapped")
    without = diff_runs(plain, wrapped)
    assert ("A", "grad_reduced", "blocks.0.mlp.fc.weight") in one_sided(without)
    assert ("B", "grad_reduced", "wrapped.blocks.0.mlp.fc.weight") in one_sided(without)
    # The wrapper itself is a module, with activations of its own beside those of the model inside.
    path = rules(
        tmp_path,
        {"pattern": r"^\.(input|output)$", "ignore": True, "run": "b"},
        {"pattern": r"^wrapped\b", "replace": "", "run": "b"},
        {"pattern": r"^\.(?=\w+\.)", "replace": ""},
    )
    result = diff_runs(plain, wrapped, rtol=0, atol=0, rules=read_rules(path))
    assert result.equal
    assert result.compared_values == diff_runs(plain, plain).compared_values
    assert main(["diff", str(plain), str(wrapped), "--map", str(path), "--rtol", "0", "--atol", "0"]) == 0


def test_rules_that_make_two_names_one_are_refused(tmp_path: Path) -> None:
    for name in "ab":
        write_rank(tmp_path / name, {"grad_reduced": [(0, "one.weight", 1.0), (0, "two.weight", 2.0)]})
    path = rules(tmp_path, {"pattern": "one|two", "replace": "same"})
    with pytest.raises(UnusableRun, match=r"'one\.weight' and 'two\.weight' of run A the same name 'same\.weight'"):
        diff_runs(tmp_path / "a", tmp_path / "b", rules=read_rules(path))


def test_problems_of_a_rules_file_are_all_named(tmp_path: Path) -> None:
    path = rules(
        tmp_path,
        {"pattern": "(", "replace": ""},
        {"pattern": "x", "replce": ""},
        {"pattern": "(x)", "replace": r"\2"},
        {"pattern": "x", "add": "1"},
        {"pattern": "x", "replace": "", "run": "c"},
        7,
    )
    with pytest.raises(UnusableRun) as caught:
        read_rules(path)
    message = str(caught.value)
    for part in (
        str(path),
        "rule 1: pattern '(' is no regular expression",
        "rule 2 has the unknown key 'replce'",
        "rule 2 needs exactly one of",
        r"rule 3: replace '\\2' does not fit",
        "rule 4: add is '1', not an integer",
        "rule 5: run is 'c'",
        "rule 6 is 7, not an object",
    ):
        assert part in message
    path.write_text("{")
    with pytest.raises(UnusableRun, match=r"rules.json: Expecting"):
        read_rules(path)


def test_layers_of_pipeline_stages_are_renumbered(tmp_path: Path) -> None:
    """Run A has two pipeline stages of two layers each, run B one of four."""
    for rank in (0, 1):
        rows = [(step, f"layers.{i}.weight", 1.0 + 2 * rank + i) for step in (0, 1) for i in (0, 1)]
        write_rank(tmp_path / "a", {"grad_reduced": rows}, rank=rank, info={"pp_stage": rank})
    rows = [(step, f"layers.{i}.weight", 1.0 + i + (i == 3) * step) for step in (0, 1) for i in range(4)]
    write_rank(tmp_path / "b", {"grad_reduced": rows})
    path = rules(tmp_path, {"pattern": r"^layers\.(\d+)", "add": 2, "pp_stage": 1, "run": "a"})
    result = diff_runs(tmp_path / "a", tmp_path / "b", rules=read_rules(path))
    assert not result.one_sided
    assert result.compared_values == 8
    (first,) = result.first
    assert (first.step, first.tensor.name, first.a, first.b, first.rank) == (1, "layers.3.weight", 4.0, 5.0, None)


def test_parts_of_tensors_are_merged_where_the_ranks_differ(tmp_path: Path) -> None:
    """A holds whole tensors on one rank; B holds uneven parts of the same tensors on four, the last one a replica."""
    random = np.random.default_rng(0)
    names = ["a.weight", "b.weight", "b.bias"]
    tensors = {(step, name): random.normal(0.1, 1, 50) for step in range(3) for name in names}
    tensors[0, "a.weight"][:5] = 0
    tensors[1, "b.bias"][7] = np.inf
    cuts = [0, 7, 20, 50]

    def rows(start: int, end: int) -> list[tuple]:
        parts = [array[start:end] for array in tensors.values()]
        found = summarize_many(parts, list(OPS), 1e-8)
        return [(*place, *(one[op] for op in OPS)) for place, one in zip(tensors, found, strict=True)]

    def info(*shards: dict) -> dict:
        return {"tensors": [{"name": name, "vpp_stage": 0, "numel": 50, "shards": list(shards)} for name in names]}

    write_rank(tmp_path / "a", {"grad_reduced": rows(0, 50)}, ops=OPS, info=info())
    for rank, (start, end) in enumerate([*pairwise(cuts), (20, 50)]):
        shard = {"part": f"{start}:{end}", "local_numel": end - start, "data_types": ["grad_reduced"]}
        write_rank(tmp_path / "b", {"grad_reduced": rows(start, end)}, ops=OPS, rank=rank, info=info(shard))
    result = diff_runs(tmp_path / "a", tmp_path / "b", rtol=1e-6, atol=1e-9)
    assert [(one.stat, one.a, one.b) for one in result.worst] == []
    assert result.equal
    assert result.compared_values == 3 * 3 * len(OPS)
    # Without one of the parts nothing can be said; without run.json they are taken for repeated tensors, and differ.
    (part,) = (tmp_path / "b").glob("*-rank1-*")
    part.rename(tmp_path / "elsewhere")
    with pytest.raises(UnusableRun, match="no value in common"):
        diff_runs(tmp_path / "a", tmp_path / "b")
    for path in (tmp_path / "b").glob("*/run.json"):
        path.unlink()
    assert not diff_runs(tmp_path / "a", tmp_path / "b", rtol=1e-6).equal


def test_what_cannot_be_merged_is_left_out_and_said(tmp_path: Path) -> None:
    rows = {"grad_unreduced": [(0, "w", 1.0, 1.0)], "actv": [(0, "m.output", 0, 1.0, 1.0)]}
    write_rank(tmp_path / "a", rows, ops=("norm", "max"))
    for rank in (0, 1):
        other = {"grad_unreduced": [(0, "w", 5.0, 5.0)], "actv": [(0, "m.output", 0, 5.0, float(rank))]}
        write_rank(tmp_path / "b", other, ops=("norm", "max"), rank=rank)
    result = diff_runs(tmp_path / "a", tmp_path / "b")
    assert result.equal
    assert result.compared_values == 1
    assert any(note.startswith("grad_unreduced cannot be compared") for note in result.notes)
    assert any("only max is compared" in note for note in result.notes)


def test_what_only_one_run_has(tmp_path: Path) -> None:
    a = {
        "grad_reduced": [(s, n, 1.0) for s in range(4) for n in ("one", "two", "late") if (s, n) != (2, "two")],
        "actv": [(s, "m.output", micro, 1.0) for s in range(4) for micro in (0, 1)],
        "exp_avg": [(s, "one", 1.0) for s in range(4)],
    }
    b = {
        "grad_reduced": [(s, n, 1.0) for s in range(3) for n in ("one", "two", "new")],
        "actv": [(s, "m.output", 0, 1.0) for s in range(3)],
    }
    write_rank(tmp_path / "a", a)
    write_rank(tmp_path / "b", b)
    result = diff_runs(tmp_path / "a", tmp_path / "b")
    assert one_sided(result) == [
        ("A", "actv", "micro-step 1 of 1 tensors"),
        ("A", "grad_reduced", "late"),
        ("B", "grad_reduced", "new"),
        ("B", "grad_reduced", "two at 1 of the common steps, rank 0"),
    ]
    assert not result.first
    assert not result.equal
    assert "only run A recorded exp_avg" in result.notes
    assert "1 steps of actv, grad_reduced are only in run A and were not compared" in result.notes
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1


def test_numbers_that_are_no_numbers(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    a = [(0, "same-nan", nan), (0, "same-inf", inf), (0, "one-nan", 1.0), (0, "signs", inf), (0, "inf-finite", 1e300)]
    b = [(0, "same-nan", nan), (0, "same-inf", inf), (0, "one-nan", nan), (0, "signs", -inf), (0, "inf-finite", inf)]
    write_rank(tmp_path / "a", {"grad_reduced": a})
    write_rank(tmp_path / "b", {"grad_reduced": b})
    result = diff_runs(tmp_path / "a", tmp_path / "b", rtol=10)
    assert [one.tensor.name for one in result.first] == ["one-nan", "signs", "inf-finite"]
    assert all(one.excess == inf for one in result.first)


def test_tolerances(tmp_path: Path) -> None:
    ops = ("mean", "rms", "zeros", "norm")
    write_rank(tmp_path / "a", {"grad_reduced": [(0, "w", 1e-6, 1.0, 0.5, 100.0)]}, ops=ops)
    write_rank(tmp_path / "b", {"grad_reduced": [(0, "w", -1e-6, 1.0, 0.5004, 100.05)]}, ops=ops)

    def different(**tolerance: float) -> int:
        return diff_runs(tmp_path / "a", tmp_path / "b", **tolerance).different_values

    # A mean near 0 is measured by the size of the elements, a share by 1: neither is twice its tolerance off.
    assert different() == 0
    assert different(rtol=4.5e-4) == 1
    assert different(rtol=3e-4) == 2
    assert different(rtol=1e-6) == 3
    assert different(rtol=0, atol=0.01) == 1
    assert different(rtol=0, atol=0.1) == 0


def test_order_within_a_step_is_the_order_of_execution(tmp_path: Path) -> None:
    def rows(change: float) -> dict:
        return {
            "grad_reduced": [(0, "l1.weight", change)],
            "actv_grad": [(0, "l1.output", 0, change), (0, "l1.output", 1, change)],
            "param_updated": [(0, "l1.weight", change)],
            "actv": [
                (0, "l0.output", 0, 1.0),
                (0, "l1.output", 0, 1.0),
                (0, "l0.output", 1, change),
                (0, "l1.output", 1, change),
            ],
            "param_origin": [(0, "l1.weight", change)],
            "grad_unreduced": [(0, "l1.weight", change)],
        }

    for name, change in (("a", 1.0), ("b", 2.0)):
        write_rank(tmp_path / name, rows(change))
    result = diff_runs(tmp_path / "a", tmp_path / "b")
    assert [(one.data_type, one.tensor.name, one.micro_step) for one in result.first] == [
        ("param_origin", "l1.weight", None),
        ("actv_grad", "l1.output", 0),
        ("actv", "l0.output", 1),
        ("actv", "l1.output", 1),
        ("actv_grad", "l1.output", 1),
        ("grad_unreduced", "l1.weight", None),
        ("grad_reduced", "l1.weight", None),
        ("param_updated", "l1.weight", None),
    ]


def test_exit_status_of_unusable_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    write_rank(a, {"grad_reduced": [(0, "w", 1.0)]})
    write_rank(b, {"exp_avg": [(0, "w", 1.0)]})
    (tmp_path / "empty").mkdir()
    for words, said in (
        ([a, tmp_path / "no"], f"{tmp_path / 'no'} does not exist"),
        ([a, tmp_path / "empty"], "holds no statistics of a run"),
        ([a, b], "have nothing in common to compare: A recorded grad_reduced, B exp_avg"),
        ([a, a, "--map", tmp_path / "no.json"], "no.json"),
        ([a, a, "--rtol", "-1"], "--rtol"),
        ([a, a, "--baseline", tmp_path / "no"], "does not exist"),
        ([a, a, "-o", tmp_path / "no" / "x.html"], "x.html"),
        ([a], "RUN_B"),
    ):
        assert main(["diff", *map(str, words)]) == 2, words
        assert said in capsys.readouterr().err


def test_the_program_itself_returns_the_status(tmp_path: Path) -> None:
    write_rank(tmp_path / "a", {"grad_reduced": [(0, "w", 1.0)]})
    write_rank(tmp_path / "b", {"grad_reduced": [(0, "\x1b[31mw", 2.0), (0, "w", 2.0)]})
    done = subprocess.run(
        [sys.executable, "-m", "msmon", "diff", tmp_path / "a", tmp_path / "b"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "First difference: step 0, w" in done.stdout
    # What a terminal would obey is shown, not sent.
    assert "\x1b[31m" not in done.stdout
    assert r"\x1b[31mw" in done.stdout
