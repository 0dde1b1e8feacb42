"""Parts of tensors, written by several ranks, joined to whole ones."""

import json
from math import isnan, nan

import numpy as np
import pytest

import msmon_io
from msmon.cli import main
from msmon.merging import merge_ranks
from msmon.partials import PartialsWriter
from msmon.reading import UnusableRun
from msmon_hooks import Shard, TensorRef
from msmon_io import Table
from msmon_stats import finalize, partial

OPS = ["norm", "min", "max", "mean", "zeros", "nans", "std", "rms", "absmax", "infs"]
WHOLE = np.array([3.0, -4.0, 0.0, 1e-12, 2.5, -7.0, 1.0], dtype=np.float64)
CUT = {0: (0, 4), 1: (4, 7), 2: (4, 7)}
"""Ranks 1 and 2 are replicas."""


def entry(rank, **more):
    start, stop = CUT[rank]
    return {
        "name": "w",
        "vpp_stage": 0,
        "shape": [7],
        "dtype": "torch.float32",
        "numel": 7,
        "aliases": [],
        "shards": [{"data_types": ["grad_reduced"], "part": f"{start}:{stop}", "local_numel": stop - start}],
        **more,
    }


def write_rank(
    output_dir, rank, values, *, stored=True, ops=OPS, steps=(0, 1), record=1, stage=0, entries=None, cut=None
):
    """What a rank of a run leaves: rows of its part of ``values``, scaled by the step."""
    run_dir = msmon_io.create_run_dir(output_dir, rank)
    start, stop = cut or CUT[rank]
    info = {
        "rank": rank,
        "pp_stage": stage,
        "config": {"ndigits": 17, "step_count_per_record": record, "ops": list(ops)},
        "tensors": entries or [entry(rank)],
    }
    msmon_io.write_json(run_dir / "run.json", info)
    partials = PartialsWriter(run_dir, step_count_per_record=record)
    shard = Shard((7,), (stop - start,), f"{start}:{stop}")
    ref = TensorRef("grad_reduced", "w", 0, None, 0, (0,), (stop - start,), "torch.float32", shard=shard)
    with msmon_io.CsvWriter(run_dir, ndigits=17, step_count_per_record=record) as writer:
        for step in steps:
            matrix = partial(values[start:stop] * (step + 1))[None]
            numbers = [op for op in ops if op not in ("shape", "dtype")]
            writer.write(
                Table(
                    data_type="grad_reduced",
                    step=step,
                    names=["w"],
                    vpp_stages=[0],
                    ops=list(ops),
                    values=finalize(matrix, numbers),
                    text={op: ["x"] for op in ops if op not in numbers},
                )
            )
            if stored:
                partials.write(step, [ref], matrix)
    return run_dir


def merged_row(report, step, stage=0):
    (table,) = [
        table
        for path in report.run_dirs[stage].glob("grad_reduced_*.csv")
        for table in msmon_io.read_csv(path)
        if table.step == step
    ]
    assert list(table.names) == ["w"]
    return table, dict(zip(table.number_ops, table.rows()[0], strict=True))


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("record", [1, 10])
def test_parts_and_replicas(tmp_path, stored, record):
    for rank in CUT:
        write_rank(tmp_path, rank, WHOLE, stored=stored, record=record)
    report = merge_ranks(tmp_path)
    assert (report.rows, report.sharded, report.from_digits) == (2, 2, 0 if stored else 2)
    assert report.run_dirs[0].parent == tmp_path / "merged"
    for step in (0, 1):
        whole = finalize(partial(WHOLE * (step + 1))[None], OPS)[0]
        _, row = merged_row(report, step)
        assert row == pytest.approx(dict(zip(OPS, whole, strict=True)), rel=1e-12)
    info = json.loads((report.run_dirs[0] / "run.json").read_text())
    assert info["merged_from"] == [0, 1, 2]
    assert info["tensors"][0]["local_numel"] == 7
    coverage = json.loads((report.run_dirs[0] / "coverage.json").read_text())
    assert coverage["expected"] == coverage["seen"] == {"grad_reduced": 1}


def test_fingerprints_that_replicas_agree_on(tmp_path):
    texts = {0: [["a", "b"], ["c", "s"]], 1: [["a", "d"], ["c", "s"]], 2: [["a", "b"], ["", "s"]]}
    """Of each rank, step by step: of a tensor that all hold as a whole, and of another, or of a shard."""
    for rank, steps in texts.items():
        run_dir = msmon_io.create_run_dir(tmp_path, rank)
        whole = [{**entry(rank), "name": name, "shards": []} for name in ("v", "x")]
        config = {"ndigits": 17, "step_count_per_record": 1, "ops": ["fingerprint", "norm"]}
        info = {"rank": rank, "pp_stage": 0, "config": config, "tensors": [*whole, entry(rank)]}
        msmon_io.write_json(run_dir / "run.json", info)
        with msmon_io.CsvWriter(run_dir, ndigits=17) as writer:
            for step, (one, other) in enumerate(steps):
                names = ["v", "x"] if step == 0 else ["v", "w"]
                writer.write(
                    Table(
                        data_type="grad_reduced",
                        step=step,
                        names=names,
                        vpp_stages=[0, 0],
                        ops=["fingerprint", "norm"],
                        values=[[1.0], [1.0]],
                        text={"fingerprint": [one, other]},
                    )
                )
    (run_dir,) = merge_ranks(tmp_path).run_dirs
    merged = [table for path in sorted(run_dir.glob("*.csv")) for table in msmon_io.read_csv(path)]
    found = [dict(zip(table.names, table.text["fingerprint"], strict=True)) for table in merged]
    # Two ranks know of none what the third knows; shards have fingerprints of their own.
    assert found == [{"v": "a", "x": ""}, {"v": "", "w": ""}]


@pytest.mark.parametrize("stored", [True, False])
def test_a_nan_in_one_part(tmp_path, stored):
    values = WHOLE.copy()
    values[5] = nan
    for rank in (0, 1):
        write_rank(tmp_path, rank, values, stored=stored, ops=["norm", "max", "zeros", "shape", "dtype"], steps=[0])
    table, row = merged_row(merge_ranks(tmp_path), 0)
    assert isnan(row["norm"])
    assert isnan(row["max"])
    assert row["zeros"] == pytest.approx(2 / 7)
    assert {op: list(text) for op, text in table.text.items()} == {
        "shape": ["[7]"],
        "dtype": ["x"],
    }


def test_std_without_mean_needs_the_partials(tmp_path):
    for rank in (0, 1):
        write_rank(tmp_path / "digits", rank, WHOLE, stored=False, ops=["std", "norm"], steps=[0])
        write_rank(tmp_path / "stored", rank, WHOLE, stored=True, ops=["std", "norm"], steps=[0])
    assert isnan(merged_row(merge_ranks(tmp_path / "digits"), 0)[1]["std"])
    assert merged_row(merge_ranks(tmp_path / "stored"), 0)[1]["std"] == pytest.approx(WHOLE.std(ddof=1))


def test_a_missing_part_leaves_no_row(tmp_path, capsys):
    write_rank(tmp_path, 0, WHOLE)
    # The second rank ended a step earlier.
    write_rank(tmp_path, 1, WHOLE, steps=[0])
    assert main(["merge", str(tmp_path), "-o", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr()
    assert "1 rows of whole tensors, 1 of them joined from shards (exactly)" in printed.out
    assert "incomplete: grad_reduced w of pipeline stage 0: 4 of 7 elements" in printed.err
    (run_dir,) = (tmp_path / "out").iterdir()
    coverage = json.loads((run_dir / "coverage.json").read_text())
    assert [entry["name"] for entry in coverage["missing"]] == ["w"]
    assert not list(run_dir.glob("*_1-1.csv"))


def test_equal_names_of_two_pipeline_stages(tmp_path):
    for rank in (0, 1):
        whole = [entry(rank, shards=[])]
        write_rank(tmp_path, rank, WHOLE * (rank + 1), cut=(0, 7), stage=rank, stored=False, entries=whole, steps=[0])
    report = merge_ranks(tmp_path)
    assert len(report.run_dirs) == 2
    norms = [merged_row(report, 0, stage)[1]["norm"] for stage in (0, 1)]
    assert norms[1] == pytest.approx(2 * norms[0])
    assert report.from_digits == 0


def test_without_csv(tmp_path):
    for rank in (0, 1):
        run_dir = write_rank(tmp_path, rank, WHOLE)
        for path in run_dir.glob("*.csv"):
            path.unlink()
    assert merged_row(merge_ranks(tmp_path), 1)[1]["norm"] == pytest.approx(2 * np.linalg.norm(WHOLE))


def test_nothing_to_merge(tmp_path, capsys):
    with pytest.raises(UnusableRun, match="holds no statistics of a run"):
        merge_ranks(tmp_path)
    assert main(["merge", str(tmp_path / "nowhere")]) == 2
    run_dir = write_rank(tmp_path, 0, WHOLE)
    with pytest.raises(UnusableRun, match="no run directories"):
        merge_ranks(run_dir)
    (run_dir / "run.json").unlink()
    with pytest.raises(UnusableRun, match=r"run\.json is missing"):
        merge_ranks(tmp_path)
    entries = [{"vpp_stage": 0, "name": "w", "numel": "7", "shape": [7], "dtype": "float32"}]
    config = {"ops": ["norm"], "ndigits": 6, "step_count_per_record": 1}
    for text in ("{", "[" * 5000, '{"tensors": []}', json.dumps({"config": config, "tensors": entries})):
        (run_dir / "run.json").write_text(text)
        assert main(["merge", str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert f"{run_dir}/run.json " in said
        assert ("nobody knows which shards rank 0 holds" in said) != ("its config is" in said)


def test_damaged_partials(tmp_path):
    run_dir = write_rank(tmp_path, 1, WHOLE)
    (run_dir / "partials" / "steps_1-1.bin").write_bytes(b"PK")
    # Of the other rank, and of this one, there are the digits.
    write_rank(tmp_path, 0, WHOLE)
    report = merge_ranks(tmp_path)
    assert (report.rows, report.from_digits) == (2, 2)
    assert "steps_1-1.bin is damaged" in report.notes[0]


def test_optimizer_state(tmp_path):
    """Parts of the parameter's own cut are joined; a tensor of another size is each rank's own."""
    for rank, (start, stop) in {0: (0, 4), 1: (4, 7)}.items():
        run_dir = msmon_io.create_run_dir(tmp_path, rank)
        shards = [{"data_types": ["exp_avg"], "part": f"{start}:{stop}", "local_numel": stop - start}]
        whole = entry(rank, name="bias", shards=[], shape=[3], numel=3)
        config = {"ndigits": 17, "step_count_per_record": 1, "ops": ["norm", "shape"]}
        tensors = [entry(rank, shards=shards), whole]
        msmon_io.write_json(run_dir / "run.json", {"rank": rank, "pp_stage": 0, "config": config, "tensors": tensors})
        names = ["w.momentum_buffer", "w.Q.0", "bias.momentum_buffer", "bias.Q.0"]
        values = [WHOLE[start:stop], np.ones(5), np.full(3, 2.0), np.full((2, 2), 3.0)]
        shapes = [f"[{stop - start}]", "[5]", "[3]", "[2, 2]"]
        matrix = np.array([partial(value.reshape(-1)) for value in values])
        with msmon_io.CsvWriter(run_dir, ndigits=17, step_count_per_record=1) as writer:
            writer.write(
                Table(
                    data_type="state",
                    step=0,
                    names=names,
                    vpp_stages=[0] * 4,
                    ops=["norm", "shape"],
                    values=finalize(matrix, ["norm"]),
                    text={"shape": shapes},
                )
            )
        parts = [Shard((7,), (stop - start,), f"{start}:{stop}"), Shard((-1,), (5,), f"rank {rank}")]
        refs = [
            TensorRef("state", name, 0, None, 0, (0,), shard.local_shape, "torch.float32", shard=shard)
            for name, shard in zip(names, parts, strict=False)
        ]
        PartialsWriter(run_dir, step_count_per_record=1).write(0, refs, matrix[:2])
    report = merge_ranks(tmp_path)
    (path,) = report.run_dirs[0].glob("state_*.csv")
    (table,) = msmon_io.read_csv(path)
    assert list(zip(table.names, table.text["shape"], strict=True)) == [
        ("w.momentum_buffer", "[7]"),
        ("bias.momentum_buffer", "[3]"),
        ("bias.Q.0", "[2, 2]"),
    ]
    norms = [row[0] for row in table.rows()]
    assert norms == pytest.approx([np.linalg.norm(WHOLE), np.sqrt(12), 6.0])
    assert (report.rows, report.sharded, report.incomplete) == (3, 1, {})
