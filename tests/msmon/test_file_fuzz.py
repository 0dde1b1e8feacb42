"""Mutated output files: what reads them gives the right result or says clearly what is wrong, and never fails itself.

`MSMON_FUZZ_EXAMPLES` is the number of mutated files; `make fuzz` runs many more than the tests do.
"""

import json
import logging
import os
import random
import resource
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msmon.cli import main
from msmon_io import BrokenLine, CsvWriter, Table, read_csv

EXAMPLES = int(os.environ.get("MSMON_FUZZ_EXAMPLES", "30"))
MEMORY = 1 << 20
"""KiB that reading small files may add to the process."""


def fuzz(share: int = 1):
    """The normal tests run the same files every time; a long run finds new ones."""
    return settings(
        max_examples=max(EXAMPLES // share, 10),
        derandomize=EXAMPLES <= 300,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


STAMP = "Nov29_10-00-00"
NAMES = ["fc1.weight", 'odd,"name"', "é.weight", "fc2.bias"]
PIECES = [
    *(b"", b",", b",,", b'"', b"\n", b"\r\n", b"\r", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b" ", b"\t"),
    *(b"nan", b"-inf", b"1e999", b"-", b"9" * 400, b"0x1", b"-1", b"1.5", b"1_0", b"\x1a", b"null", b"true", b"rank"),
    *(b"{", b"}", b"[" * 3000, b":", b'{"a":1}', b'"step": "x"', b'"rank": null', b"\\u0000", b"\\ud800"),
    b"vpp_stage,name,step",
]
MUTATIONS = {"seed": st.integers(0, 2**32), "cuts": st.integers(1, 4)}


def mutated(data: bytes, chance: random.Random, cuts: int) -> bytes:
    changed = bytearray(data)
    for _ in range(cuts):
        at = chance.randrange(len(changed) + 1)
        kind = chance.randrange(6)
        if kind == 0:
            del changed[at:]  # a write that stopped half way
        elif kind == 1 and changed:
            changed[at % len(changed)] = chance.randrange(256)
        elif kind == 2:
            changed[at:at] = changed[at : at + chance.randrange(200)]
        elif kind == 3:
            del changed[at : at + chance.randrange(60)]
        else:
            changed[at : at + chance.randrange(8)] = chance.choice(PIECES)
    return bytes(changed)


def _tensor(name: str, rank: int) -> dict:
    """An entry of ``run.json``; the first tensor is cut into halves."""
    shards = [{"data_types": ["grad_reduced"], "part": f"{3 * rank}:{3 * rank + 3}", "local_numel": 3}]
    return {
        "vpp_stage": 0, "name": name, "shape": [2, 3], "dtype": "torch.float32", "numel": 6,
        "shards": shards if name == NAMES[0] else [],
        "layout": {"equal_over": {"data": "0:2"}, "summed_over": {"data": "0:2"}, "divided_by": 2, "tied": "data"},
    }  # fmt: skip


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """An output directory with two ranks, several data types and anomalies."""
    directory = tmp_path_factory.mktemp("original")
    for rank in (0, 1):
        run_dir = directory / f"{STAMP}-rank{rank}-{rank:08x}"
        run_dir.mkdir()
        with CsvWriter(run_dir, step_count_per_record=2) as writer:
            for step in range(3):
                for data_type in ("actv", "grad_unreduced", "grad_reduced"):
                    writer.write(
                        Table(
                            data_type=data_type,
                            step=step,
                            names=NAMES,
                            vpp_stages=[0] * len(NAMES),
                            micro_steps=[0] * len(NAMES) if data_type == "actv" else None,
                            ops=["norm", "shape", "nans"],
                            values=[[0.5 + step + row, 0.0] for row in range(len(NAMES))],
                            text={"shape": ["(2, 3)"] * len(NAMES)},
                        )
                    )
                writer.flush()
        (run_dir / "run.json").write_text(
            json.dumps(
                {
                    "schema": 1,
                    "rank": rank,
                    "world_size": 2,
                    "framework": "torch",
                    "pp_stage": 0,
                    "grad_acc_steps": 2,
                    "collectives": {"all_reduce": [{"ranks": "0:2", "reduction": "sum"}]},
                    "config": {"ops": ["norm"], "ndigits": 6, "step_count_per_record": 2},
                    "tensors": [_tensor(name, rank) for name in NAMES],
                }
            )
        )
        missing = [{"data_type": "actv", "name": "fc3.output", "reason": "hook did not fire"}]
        (run_dir / "coverage.json").write_text(
            json.dumps({"schema": 1, "expected": {"actv": 5}, "seen": {"actv": 4}, "missing": missing, "notes": []})
        )
        folder = directory / "anomaly_detected" / f"rank{rank}"
        folder.mkdir(parents=True)
        records = {}
        for step in range(3):
            tag = f"0:fc1.weight/rank{rank}/grad_reduced"
            records[f"{tag}_step_{step}_call_7"] = {
                "rank": rank, "step": step, "micro_step": 0, "pp_stage": 0, "vpp_stage": 0, "call_id": 7,
                "tag_name": tag, "message": "Rule AnomalyNan reports anomaly signal", "group_mates": [0, 1],
                "stats": {"norm": {"rule": "AnomalyNan", "value": float("nan"), "history": None}},
            }  # fmt: skip
        (folder / "anomaly.json").write_text(json.dumps(records, indent=1))
    return directory


@pytest.fixture(scope="module", autouse=True)
def _bounded_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY


def copy_with_mutation(original: Path, directory: Path, pattern: str, chance: random.Random, cuts: int) -> None:
    """A fresh copy of the output directory; one of the files that match is mutated."""
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(original, directory)
    path = chance.choice(sorted(directory.glob(pattern)))
    path.write_bytes(mutated(path.read_bytes(), chance, cuts))


def run(words: list[str], capsys) -> None:
    """A command ends with a status of its own, and its message is no traceback."""
    capsys.readouterr()
    status = main(words)
    said = capsys.readouterr()
    assert status in (0, 1, 2)
    assert "Traceback" not in said.out + said.err
    assert said.out.strip() or said.err.strip()
    assert len(said.out + said.err) < 200_000


@pytest.mark.timeout(7200)
@fuzz()
@given(**MUTATIONS)
def test_read_csv(original, tmp_path_factory, seed, cuts):
    chance = random.Random(seed)
    path = tmp_path_factory.getbasetemp() / "actv_0-1.csv"
    path.write_bytes(mutated(next(original.glob("*/actv_0-1.csv")).read_bytes(), chance, cuts))
    broken: list[BrokenLine] = []
    said = f"{path}: "
    try:
        for table in read_csv(path, on_broken=broken.append):
            rows = table.rows()
            assert len(rows) == len(table.names) == len(table.vpp_stages)
            assert all(len(row) + len(table.text) == len(table.ops) for row in rows)
    except ValueError as error:  # the header is broken
        said = str(error)
    assert said.startswith(f"{path}: ")
    assert all(str(one).startswith(f"{path}:{one.line}: ") for one in broken)


@pytest.mark.timeout(7200)
@fuzz()
@given(seed=st.integers(0, 2**32))
def test_one_changed_line_leaves_the_others(original, tmp_path_factory, seed):
    chance = random.Random(seed)
    lines = next(original.glob("*/actv_0-1.csv")).read_bytes().split(b"\n")
    at = chance.randrange(1, len(lines) - 1)
    lines[at] = mutated(lines[at], chance, 2).replace(b"\n", b"").replace(b"\r", b"") or b"x"
    path = tmp_path_factory.getbasetemp() / "actv_0-1.csv"
    path.write_bytes(b"\n".join(lines))
    found = [
        (table.step, name, *row)
        for table in read_csv(path, on_broken=lambda broken: None)
        for name, row in zip(table.names, table.rows(), strict=True)
    ]
    for row in range(2 * len(NAMES)):
        if row != at - 1:
            step, index = divmod(row, len(NAMES))
            assert (step, NAMES[index], 0.5 + step + index, 0.0) in found, (lines[at], row)


@pytest.mark.timeout(7200)
@fuzz()
@given(**MUTATIONS)
def test_csv2tb(original, tmp_path_factory, capsys, caplog, seed, cuts):
    caplog.set_level(logging.CRITICAL)
    base = tmp_path_factory.getbasetemp()
    copy_with_mutation(original, base / "csv2tb", "*-rank*/*.csv", random.Random(seed), cuts)
    run(["csv2tb", str(base / "csv2tb"), "-o", str(base / "csv2tb" / "events")], capsys)


@pytest.mark.timeout(7200)
@fuzz()
@given(**MUTATIONS)
def test_anomalies(original, tmp_path_factory, capsys, seed, cuts):
    directory = tmp_path_factory.getbasetemp() / "anomalies"
    copy_with_mutation(original, directory, "anomaly_detected/*/*.json", random.Random(seed), cuts)
    run(["anomalies", "-d", str(directory / "anomaly_detected")], capsys)
    json.loads((directory / "anomaly_detected" / "anomaly_analyse.json").read_bytes())


@pytest.mark.timeout(7200)
@fuzz()
@given(**MUTATIONS, pattern=st.sampled_from(["*-rank*/*.csv", "*-rank*/*.json", "anomaly_detected/*/*.json"]))
def test_show(original, tmp_path_factory, capsys, seed, cuts, pattern):
    directory = tmp_path_factory.getbasetemp() / "show"
    copy_with_mutation(original, directory, pattern, random.Random(seed), cuts)
    run(["show", str(directory)], capsys)


@pytest.mark.timeout(7200)
@fuzz(share=10)
@given(**MUTATIONS, pattern=st.sampled_from(["*-rank*/*.csv", "*-rank*/*.json", "anomaly_detected/*/*.json"]))
def test_report(original, tmp_path_factory, capsys, seed, cuts, pattern):
    directory = tmp_path_factory.getbasetemp() / "report"
    copy_with_mutation(original, directory, pattern, random.Random(seed), cuts)
    run(["report", str(directory), "-o", str(directory / "report.html")], capsys)


@pytest.mark.timeout(7200)
@fuzz(share=10)
@given(**MUTATIONS, pattern=st.sampled_from(["*-rank*/*.csv", "*-rank*/run.json"]))
def test_diff(original, tmp_path_factory, capsys, seed, cuts, pattern):
    directory = tmp_path_factory.getbasetemp() / "diff"
    copy_with_mutation(original, directory, pattern, random.Random(seed), cuts)
    run(["diff", str(original), str(directory)], capsys)


@pytest.mark.timeout(7200)
@fuzz(share=10)
@given(**MUTATIONS, pattern=st.sampled_from(["*-rank*/*.csv", "*-rank*/run.json"]))
def test_merge(original, tmp_path_factory, capsys, caplog, seed, cuts, pattern):
    caplog.set_level(logging.CRITICAL)
    directory = tmp_path_factory.getbasetemp() / "merge"
    copy_with_mutation(original, directory, pattern, random.Random(seed), cuts)
    run(["merge", str(directory), "-o", str(directory / "whole")], capsys)


@pytest.mark.timeout(7200)
@fuzz(share=10)
@given(**MUTATIONS, pattern=st.sampled_from(["*-rank*/*.csv", "*-rank*/*.json"]))
def test_verify(original, tmp_path_factory, capsys, seed, cuts, pattern):
    directory = tmp_path_factory.getbasetemp() / "verify"
    copy_with_mutation(original, directory, pattern, random.Random(seed), cuts)
    run(["verify", str(directory), "-o", str(directory / "verify.html")], capsys)
