"""CSV and Parquet files to dense blocks, compared with a plain reading of the same files."""

from __future__ import annotations

import csv
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msmon.reading import Run, UnusableRun, open_run
from msmon.reading.blocks import read_blocks
from msmon.reading.index import Index, build_index
from msmon_io import ParquetWriter, Table, read_csv, steps_of

from .files import write_rank

Cell = tuple[int, int, str, int, int, str]


def cells(run: Run, data_type: str, **options: int) -> dict[Cell, float]:
    """(rank, vpp stage, name, micro-step, step, statistic) -> value, as the blocks have it."""
    index = build_index(run, data_type)
    rows = list(index.rows)
    found = {}
    for rank in run.ranks.values():
        for block in read_blocks(rank, index, **options):
            for stat, step, row in np.argwhere(block.present):
                key, micro = rows[row].tensor, rows[row].micro_step
                place = (
                    rank.rank,
                    key.vpp_stage,
                    key.name,
                    micro,
                    int(index.steps[block.first + step]),
                    index.stats[stat],
                )
                found[place] = block.values[stat, step, row]
    return found


def plainly(directory: Path, rank: int, data_type: str) -> dict[Cell, float]:
    """The same from the files, cell by cell."""
    found: dict[Cell, float] = {}
    files = sorted(
        directory.glob(f"{data_type}_[0-9]*.csv"), key=lambda path: int(path.stem.rpartition("_")[2].split("-")[0])
    )
    for path in files:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                keys = {name: row.pop(name, "-1") for name in ("vpp_stage", "name", "step", "micro_step")}
                for stat, text in row.items():
                    if stat not in ("shape", "dtype"):
                        place = (rank, int(keys["vpp_stage"]), keys["name"], int(keys["micro_step"]), int(keys["step"]))
                        found[(*place, stat)] = float(text)
    return found


def same(a: dict[Cell, float], b: dict[Cell, float]) -> bool:
    return a.keys() == b.keys() and all(a[k] == b[k] or (math.isnan(a[k]) and math.isnan(b[k])) for k in a)


def test_blocks_hold_what_the_files_hold(trained: Callable[[str], Path]) -> None:
    run = open_run(trained("nan"))
    assert list(run.ranks) == [0, 1]
    for data_type in ("actv", "grad_reduced", "exp_avg"):
        expected = plainly(run.ranks[0].directory, 0, data_type) | plainly(run.ranks[1].directory, 1, data_type)
        assert len(expected) > 1000
        # Several sizes of blocks: one step, a few, all.
        assert all(same(cells(run, data_type, cells=size), expected) for size in (1, 2000, 1 << 22))
        assert same(cells(run, data_type, cells=1, multiple=3), expected)


def test_parquet_gives_what_csv_gives(trained: Callable[[str], Path], tmp_path: Path) -> None:
    run = open_run(trained("nan"))
    for rank in run.ranks.values():
        target = tmp_path / rank.directory.name
        target.mkdir()
        with ParquetWriter(target, rank=rank.rank) as writer:
            for data_type in ("actv", "grad_reduced"):
                for path in sorted(rank.directory.glob(f"{data_type}_[0-9]*.csv"), key=steps_of):
                    for table in read_csv(path):
                        writer.write(table)
    stored = open_run(tmp_path)
    assert stored.data_types == ("actv", "grad_reduced")
    for data_type in stored.data_types:
        assert stored.stats(data_type) == run.stats(data_type)
        assert same(cells(stored, data_type), cells(run, data_type))
        assert list(build_index(stored, data_type).rows) == list(build_index(run, data_type).rows)
    # Without the run directories, which hold no statistics here, and from one run directory alone.
    for rank in run.ranks.values():
        (tmp_path / rank.directory.name).rmdir()
    assert same(cells(open_run(tmp_path), "actv"), cells(run, "actv"))
    (tmp_path / run.ranks[1].directory.name).mkdir()
    alone = open_run(tmp_path / run.ranks[1].directory.name)
    assert list(alone.ranks) == [1]
    assert same(cells(alone, "actv"), {k: v for k, v in cells(run, "actv").items() if k[0] == 1})


@pytest.mark.parametrize("ended", [True, False])
def test_a_store_of_several_row_groups(tmp_path: Path, ended: bool) -> None:
    """Beyond 131,000 rows a new group begins; `nans` is an integer column, `shape` holds text. A writer at work has
    its rows in a stream."""
    run_dir = tmp_path / "Nov29_10-00-00-rank0-00000000"
    run_dir.mkdir()
    names = [f"p{i}" for i in range(5000)]
    writer = ParquetWriter(run_dir)
    for step in range(30):
        values = np.stack([np.arange(5000) + step / 100, np.full(5000, step % 2)], axis=1)
        text = {"shape": ["[1]"] * 5000}
        table = Table(data_type="grad_reduced", step=step, names=names, vpp_stages=[0] * 5000,
                      ops=["norm", "shape", "nans"], values=values, text=text)  # fmt: skip
        writer.write(table)
    writer.close() if ended else writer.flush()
    run = open_run(tmp_path)
    assert len(run.ranks[0].files["grad_reduced"]) > 1
    index = build_index(run, "grad_reduced")
    assert index.stats == ("norm", "nans")
    assert len(index.rows) == 5000
    blocks = list(read_blocks(run.ranks[0], index, cells=70_000))
    assert len(blocks) > 3
    values = np.concatenate([block.values for block in blocks], axis=1)
    assert np.array_equal(values[0], np.arange(5000)[None] + np.arange(30)[:, None] / 100)
    assert np.array_equal(values[1], np.tile(np.arange(30)[:, None] % 2, 5000))


def test_the_older_tools_rows_of_nan_are_no_values(tmp_path: Path) -> None:
    header = "vpp_stage,name,step,micro_step,min,norm,nans,shape,dtype\n"
    rows = '0,emb.input,0,0,nan,nan,nan,nan,nan\n0,emb.output,0,0,-1.5,2.0,0.0,"[5, 2]",torch.float32\n'
    (tmp_path / "actv_grad_0-0.csv").write_text(header + rows)
    found = cells(open_run(tmp_path), "actv_grad")
    assert found == {
        (0, 0, "emb.output", 0, 0, "min"): -1.5,
        (0, 0, "emb.output", 0, 0, "norm"): 2.0,
        (0, 0, "emb.output", 0, 0, "nans"): 0.0,
    }


def test_broken_lines_are_passed_over_and_named(tmp_path: Path) -> None:
    path = tmp_path / "grad_reduced_0-1.csv"
    lines = ["vpp_stage,name,step,norm", "0,a,0,1.0", "0,b,0,oops", "0,c", "0,d,0,nan", "0,e,1,-inf", "0,f,1,2."]
    path.write_text("\n".join(lines))  # the last line has no end: it may be cut
    (tmp_path / "grad_reduced_2-3.csv").write_text("")
    run = open_run(tmp_path)
    found = cells(run, "grad_reduced")
    assert {(k[2], k[4]): v for k, v in found.items() if not math.isnan(v)} == {("a", 0): 1.0, ("e", 1): -math.inf}
    assert math.isnan(found[0, 0, "d", -1, 0, "norm"])
    said = "\n".join(run.notes)
    for line in (3, 4, 7):
        assert f"{path}:{line}:" in said
    assert "grad_reduced_2-3.csv:1: no complete header line; the file is passed over" in said


@pytest.mark.parametrize("line_by_line", [False, True])
def test_names_of_any_kind(tmp_path: Path, line_by_line: bool) -> None:
    names = [
        "plain",
        "a,b",
        'quote"d',
        "=cmd()",
        "back\\slash",
        "new\nline",
        "<script>",
        "\x1b[31m",
        "名前",
        "'apostrophe",
        "lone \ud800 surrogate",
        "",
    ]
    run_dir = write_rank(
        tmp_path, {"grad_reduced": [(step, name, float(i)) for step in (0, 1) for i, name in enumerate(names)]}
    )
    if line_by_line:
        with (run_dir / "grad_reduced_1-1.csv").open("a") as file:
            file.write("0,cut short")
    # What UTF-8 cannot hold stays an escape.
    names = [name.replace("\ud800", "\\ud800") for name in names]
    index = build_index(open_run(tmp_path), "grad_reduced")
    assert [row.tensor.name for row in index.rows] == names
    assert {(k[2], v) for k, v in cells(open_run(tmp_path), "grad_reduced").items()} == {
        (name, float(i)) for i, name in enumerate(names)
    }


def test_the_newest_launch_is_read_and_never_mixed_with_another(tmp_path: Path) -> None:
    """Three ranks, then two of two, then the first of these again."""
    for stamp, ranks, value in (("Nov28_10-00-00", 3, 1.0), ("Nov28_10-05-00", 2, 2.0), ("Nov29_09-00-00", 1, 3.0)):
        for rank in range(ranks):
            rows = {"grad_reduced": [(0, "w", value)]}
            write_rank(tmp_path, rows, stamp=stamp, rank=rank, info={"world_size": max(ranks, 2)})

    def values(path: Path) -> dict[int, float]:
        return {cell[0]: value for cell, value in cells(open_run(path), "grad_reduced").items()}

    assert values(tmp_path) == {0: 3.0}
    (note,) = open_run(tmp_path).notes
    older = "Nov28_10-00-00 (ranks 0 to 2 of 3), Nov28_10-05-00 (ranks 0, 1 of 2)"
    assert note == (
        f"3 launches; the newest is read, Nov29_09-00-00 (rank 0 of 2), and not {older}: "
        f"give {tmp_path / 'Nov28_10-05-00'} for one of these"
    )
    assert values(tmp_path / "Nov28_10-05-00") == {0: 2.0, 1: 2.0}
    assert values(tmp_path / "Nov28_10-00-00") == {0: 1.0, 1: 1.0, 2: 1.0}
    assert open_run(tmp_path / "Nov28_10-00-00").notes == []
    with pytest.raises(UnusableRun, match=r"Nov28_10-00-01 does not exist: .*; the launches in .* are Nov28_10-00-00"):
        open_run(tmp_path / "Nov28_10-00-01")


def test_launches_in_a_store_without_run_directories(tmp_path: Path) -> None:
    for stamp, ranks in (("Nov28_10-00-00", 3), ("Nov28_10-05-00", 2)):
        for rank in range(ranks):
            run_dir = tmp_path / f"{stamp}-rank{rank}-00000000"
            with ParquetWriter(run_dir, rank=rank) as writer:
                writer.write(
                    Table(data_type="exp_avg", step=0, names=["w"], vpp_stages=[0], ops=["norm"], values=[[1.0]])
                )
    assert list(open_run(tmp_path).ranks) == [0, 1]
    assert list(open_run(tmp_path / "Nov28_10-00-00").ranks) == [0, 1, 2]


def test_a_step_that_was_written_twice_has_the_later_values(tmp_path: Path) -> None:
    run_dir = write_rank(tmp_path, {"grad_reduced": [(s, "w", 1.0) for s in range(6)]}, steps_per_file=3)
    with (run_dir / "grad_reduced_3-5.csv").open("a") as file:
        file.write("0,w,4,9.0\n")
    found = cells(open_run(tmp_path), "grad_reduced", cells=1)
    assert [found[0, 0, "w", -1, step, "norm"] for step in range(6)] == [1, 1, 1, 1, 9, 1]


def test_stages_keep_names_apart(tmp_path: Path) -> None:
    for rank in (0, 1):
        rows = {"grad_reduced": [(0, "layers.0.weight", float(rank))]}
        write_rank(tmp_path, rows, rank=rank, info={"pp_stage": rank}, stage=rank)
    index = build_index(open_run(tmp_path), "grad_reduced")
    assert [(row.tensor.pp_stage, row.tensor.vpp_stage) for row in index.rows] == [(0, 0), (1, 1)]
    assert [row.tensor.label() for row in index.rows] == ["layers.0.weight", "pp1/1:layers.0.weight"]


def test_what_is_no_run_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    write_rank(tmp_path / "hollow", {})
    for name, said in (
        ("missing", "does not exist: give the output directory of a run"),
        ("file", "is a file, not a directory"),
        ("empty", "holds no statistics of a run: no <data type>_<first>-<last>.csv"),
        ("hollow", "holds no statistics of a run"),
    ):
        with pytest.raises(UnusableRun, match=said):
            open_run(tmp_path / name)


@pytest.mark.parametrize("header", [b"", b"\r\r", b'vpp_stage,name,step,"norm', b"vpp_stage,name,step,n\xffrm"])
def test_broken_headers(tmp_path: Path, header: bytes) -> None:
    """A file whose columns nobody knows is passed over; a strange name of a column is a name."""
    (tmp_path / "grad_reduced_0-0.csv").write_bytes(b"vpp_stage,name,step,norm\n0,w,0,1.0\n")
    (tmp_path / "grad_reduced_1-1.csv").write_bytes(header + b"\n0,w,1,2.0\n")
    run = open_run(tmp_path)
    found = cells(run, "grad_reduced")
    assert found.pop((0, 0, "w", -1, 0, "norm")) == 1.0
    if b"\xff" in header:
        assert found == {(0, 0, "w", -1, 1, "n\u00ffrm"): 2.0}
    else:
        assert found == {}
        assert "grad_reduced_1-1.csv:1: " in "\n".join(run.notes)


def test_numbers_that_no_training_has(tmp_path: Path) -> None:
    """They cost no memory: a table over all stages and micro-steps up to these would not fit into any machine."""
    rows = [
        "0,w,0,0,1.0",
        "2000000000,w,0,2000000000,2.0",
        "-7,w,0,-7,3.0",
        "0,w,,0,4.0",
        "0,w,99999999999999999999,0,5.0",
    ]
    (tmp_path / "actv_0-0.csv").write_text("\n".join(["vpp_stage,name,step,micro_step,norm", *rows, ""]))
    run = open_run(tmp_path)
    assert cells(run, "actv") == {
        (0, 0, "w", 0, 0, "norm"): 1.0,
        (0, 2_000_000_000, "w", 2_000_000_000, 0, "norm"): 2.0,
        (0, -7, "w", -7, 0, "norm"): 3.0,
    }
    assert ["actv_0-0.csv:5:" in run.notes[0], "actv_0-0.csv:6:" in run.notes[1]] == [True, True]


def test_broken_json_beside_the_files_is_a_note(tmp_path: Path) -> None:
    run_dir = write_rank(tmp_path, {"grad_reduced": [(0, "w", 1.0)]})
    (run_dir / "run.json").write_text("[" * 5000)
    (run_dir / "coverage.json").write_text("[]")
    run = open_run(tmp_path)
    assert run.info == {}
    assert any("run.json cannot be read" in note for note in run.notes)
    assert any("coverage.json holds no JSON object" in note for note in run.notes)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 8),
            st.sampled_from(["a", "b.c", "b,d"]),
            st.integers(0, 2),
            st.floats(width=32),
            st.floats(width=32, allow_nan=False),
        ),
        min_size=1,
        max_size=40,
        unique_by=lambda row: row[:3],
    ),
    steps_per_file=st.integers(1, 4),
    size=st.integers(1, 60),
)
def test_any_rows_come_back(tmp_path: Path, rows: list[tuple], steps_per_file: int, size: int) -> None:
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    rows = sorted(rows, key=lambda row: row[0])
    run_dir = write_rank(tmp_path / "run", {"actv": rows}, ops=("norm", "max"), steps_per_file=steps_per_file)
    run = open_run(tmp_path / "run")
    assert same(cells(run, "actv", cells=size), plainly(run_dir, 0, "actv"))
    index: Index = build_index(run, "actv")
    assert index.steps.tolist() == sorted({row[0] for row in rows})
    assert [(r.tensor.name, r.micro_step) for r in index.rows] == list(dict.fromkeys((row[1], row[2]) for row in rows))
