"""The Parquet data set: what is in it, who reads it, and CSV turned into it."""

import math
import os
from pathlib import Path
from typing import Any

import duckdb
import pandas
import polars
import pyarrow.dataset
import pyarrow.parquet
import pytest

import msmon_io.csv2parquet
import msmon_io.parquet_writer
from msmon_io import CsvWriter, ParquetWriter, convert_to_parquet, create_run_dir, stream_batches, stream_path

from .tables import HOSTILE_NAMES, OPS, table


def write_run(
    output_dir: Path, rank: int, kind: type[CsvWriter] | type[ParquetWriter], steps: range = range(4)
) -> Path:
    run_dir = create_run_dir(output_dir, rank)
    arguments: dict[str, Any] = {"step_count_per_record": 2} if kind is CsvWriter else {"rank": rank}
    with kind(run_dir, **arguments) as writer:
        for step in steps:
            values = [[step, math.nan, 0.5, 1e-9, 3, 0.25], [step, math.inf, -0.5, 2.0, math.nan, 0.0]]
            writer.write(table(step=step, ops=OPS, values=values))
            text = {"shape": ["[8, 4]", "[]"]}
            writer.write(table(data_type="actv", step=step, ops=["norm", "shape"], text=text, micro_steps=[0, 1]))
            writer.flush()
    return run_dir


def rows(data_set: Path, data_type: str) -> list[dict[str, Any]]:
    """As plain rows, sorted; not-a-number as text, so that it equals itself."""
    found = pyarrow.dataset.dataset(data_set, partitioning="hive")
    part = pyarrow.dataset.field("data_type") == data_type
    names = [path for path in found.files if f"data_type={data_type}/" in path]
    schema = pyarrow.parquet.read_schema(names[0]).names
    columns = found.replace_schema(pyarrow.dataset.dataset(names[0]).schema.append(found.schema.field("rank")))
    columns = columns.replace_schema(columns.schema.append(found.schema.field("data_type")))
    listed = columns.to_table(filter=part, columns=[*schema, "rank"]).to_pylist()
    for row in listed:
        row.update({key: "nan" for key, value in row.items() if isinstance(value, float) and math.isnan(value)})
    return sorted(listed, key=lambda row: (row["rank"], row["step"], row["micro_step"] or 0, row["name"]))


def test_what_is_in_it(tmp_path: Path) -> None:
    runs = [write_run(tmp_path, rank, ParquetWriter).name for rank in (0, 1)]
    files = sorted(str(path.relative_to(tmp_path / "parquet")) for path in (tmp_path / "parquet").rglob("*.parquet"))
    assert files == [
        f"rank={rank}/data_type={data_type}/{runs[rank]}_0.parquet"
        for rank in (0, 1)
        for data_type in ("actv", "grad_reduced")
    ]
    reduced = rows(tmp_path / "parquet", "grad_reduced")
    assert len(reduced) == 2 * 4 * 2
    assert reduced[1] == {
        "run": runs[0],
        "vpp_stage": 0,
        "name": "fc1.weight",
        "step": 0,
        "micro_step": None,
        "min": 0.0,
        "max": "nan",
        "mean": 0.5,
        "norm": 1e-9,
        "nans": 3,
        "zeros": 0.25,
        "rank": 0,
    }
    assert (reduced[0]["nans"], reduced[0]["max"]) == (None, math.inf)
    actv = rows(tmp_path / "parquet", "actv")
    assert [(row["micro_step"], row["shape"]) for row in actv[:2]] == [(0, "[8, 4]"), (1, "[]")]
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "parquet").rglob("*")}
    assert modes == {0o640, 0o750}


def test_read_by_other_tools(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_run(tmp_path, rank, ParquetWriter)
    data_set = tmp_path / "parquet"
    query = f"""
        select rank, name, max(norm), sum(nans) from read_parquet('{data_set}/**/*.parquet', hive_partitioning=true,
        union_by_name=true) where data_type = 'grad_reduced' and rank = 1 group by all order by name"""
    assert duckdb.sql(query).fetchall() == [(1, "fc1.bias", 2.0, None), (1, "fc1.weight", 1e-9, 12)]
    lazy = polars.scan_parquet(data_set / "*" / "data_type=grad_reduced" / "*.parquet", hive_partitioning=True)
    frame = lazy.filter(polars.col("rank") == 1).group_by("name").agg(polars.col("nans").sum()).collect()
    assert dict(frame.iter_rows()) == {"fc1.weight": 12, "fc1.bias": 0}
    found = pandas.read_parquet(data_set, filters=[("data_type", "==", "grad_reduced")])
    assert len(found) == 16
    assert set(found["rank"].astype(int)) == {0, 1}


def test_files_are_bounded_and_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msmon_io.parquet_writer, "ROWS_PER_FILE", 5)
    run_dir = create_run_dir(tmp_path, 0)
    for _ in range(2):
        with ParquetWriter(run_dir) as writer:
            for step in range(5):
                writer.write(table(step=step))
                writer.flush()
            writer.write(table(step=5, ops=["min", "norm"]))
    directory = tmp_path / "parquet/rank=0/data_type=grad_reduced"
    expected = {0: 6, 3: 4, 5: 2}
    sizes = {path.name: pyarrow.parquet.read_metadata(path).num_rows for path in directory.iterdir()}
    assert sizes == {
        f"{run_dir.name}_{step}{suffix}.parquet": count for step, count in expected.items() for suffix in ("", ".1")
    }


def test_a_growing_file(tmp_path: Path) -> None:
    """At any moment the stream has all rows, other tools see a whole file, and in the end there is only that."""
    run_dir = create_run_dir(tmp_path, 0)
    directory = tmp_path / "parquet/rank=0/data_type=grad_reduced"
    part = directory / f"{run_dir.name}_0.parquet"
    with ParquetWriter(run_dir) as writer:
        for step in range(6):
            names = [f"layer.{step // 4}.weight", "fc1.bias"]
            writer.write(table(step=step, names=names))
            writer.flush()
            found = pyarrow.Table.from_batches(stream_batches(stream_path(part)))
            assert found["step"].to_pylist() == [number for number in range(step + 1) for _ in names]
            assert found["name"].to_pylist()[-2:] == names
            seen = pandas.read_parquet(tmp_path / "parquet")["step"].tolist()
            assert seen == [number for number in range(len(seen) // 2) for _ in names]
    assert pyarrow.parquet.read_table(part)["step"].to_pylist() == [step for step in range(6) for _ in (0, 1)]
    assert list(directory.iterdir()) == [part]


def test_a_stream_that_breaks_off(tmp_path: Path) -> None:
    """Cut at any byte it has the rows before."""
    run_dir = create_run_dir(tmp_path, 0)
    stream = stream_path(tmp_path / f"parquet/rank=0/data_type=grad_reduced/{run_dir.name}_0.parquet")
    writer = ParquetWriter(run_dir)
    sizes = [0]
    for step in range(3):
        writer.write(table(step=step, names=["fc1.weight", f"layer.{step}"]))
        writer.flush()
        sizes.append(stream.stat().st_size)
    whole = stream.read_bytes()
    for size in range(sizes[-1] + 1):
        stream.write_bytes(whole[:size])
        steps = [batch["step"][0].as_py() for batch in stream_batches(stream)]
        assert steps == list(range(len(steps)))
        assert len(steps) >= sum(size >= written for written in sizes[1:])
    # What stands behind the rows that were written whole, such as after a failure, goes.
    stream.write_bytes(whole + b"rubbish")
    writer.write(table(step=3, names=["fc1.weight", "layer.0"]))
    writer.close()
    assert [row["step"] for row in rows(tmp_path / "parquet", "grad_reduced")] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_stream_that_somebody_removes(tmp_path: Path) -> None:
    """It looks like rubbish. What is in the Parquet file stays, and the next rows go to another file."""
    run_dir = create_run_dir(tmp_path, 0)
    directory = tmp_path / "parquet/rank=0/data_type=grad_reduced"
    with ParquetWriter(run_dir) as writer:
        writer.write(table(step=0))
        writer.flush()
        stream_path(directory / f"{run_dir.name}_0.parquet").unlink()
        writer.write(table(step=1))
    assert writer.losses.failures == 0
    assert sorted(os.listdir(directory)) == [f"{run_dir.name}_0.1.parquet", f"{run_dir.name}_0.parquet"]
    assert [row["step"] for row in rows(tmp_path / "parquet", "grad_reduced")] == [0, 0, 1, 1]


@pytest.mark.parametrize("process_num", [1, 3])
def test_csv_becomes_the_same_data_set(tmp_path: Path, process_num: int) -> None:
    live, csv = tmp_path / "live", tmp_path / "csv"
    for rank in (0, 1):
        write_run(live, rank, ParquetWriter)
        write_run(csv, rank, CsvWriter)
    output = convert_to_parquet(csv, process_num=process_num)
    assert output == csv / "parquet"
    for data_type in ("actv", "grad_reduced"):
        expected = [{**row, "run": row["run"][-14:-9]} for row in rows(live / "parquet", data_type)]
        assert [{**row, "run": row["run"][-14:-9]} for row in rows(output, data_type)] == expected
    schemas = {
        str(pyarrow.parquet.read_schema(path))
        for data_set in (live / "parquet", output)
        for path in data_set.glob("*/data_type=actv/*.parquet")
    }
    assert len(schemas) == 1
    with pytest.raises(FileExistsError, match="is no output of convert_to_parquet"):
        convert_to_parquet(csv, output_dirpath=live / "parquet")


def test_hostile_names_and_broken_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_dir = create_run_dir(tmp_path / "out", 0)
    with CsvWriter(run_dir) as writer:
        for step in range(3):
            writer.write(table(step=step, names=HOSTILE_NAMES))
    broken = run_dir / "grad_reduced_2-2.csv"
    broken.write_text(broken.read_text() + "0,fc1.weight,2\n")
    (run_dir / "grad_reduced_3-3.csv").write_text("what is this\n")
    output = convert_to_parquet(tmp_path / "out", output_dirpath=tmp_path / "pq")
    written = [name.encode("utf-8", "backslashreplace").decode() for name in HOSTILE_NAMES]
    found = rows(output, "grad_reduced")
    assert sorted(row["name"] for row in found if row["step"] == 1) == sorted(written)
    assert sorted(row["name"] for row in found if row["step"] == 2) == sorted(written)
    assert f"{broken}:{len(HOSTILE_NAMES) + 2}: 3 cells instead of 4; the line is passed over" in caplog.text
    assert "grad_reduced_3-3.csv:1: the header is 'what is this'" in caplog.text
    with ParquetWriter(run_dir) as direct:
        direct.write(table(step=1, names=HOSTILE_NAMES))
    assert sorted(row["name"] for row in rows(tmp_path / "out/parquet", "grad_reduced")) == sorted(written)
    assert {path.name for path in tmp_path.iterdir()} == {"out", "pq"}


def test_large_conversions_make_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msmon_io.csv2parquet, "_ROWS_PER_FILE", 4)
    run_dir = write_run(tmp_path, 0, CsvWriter, range(10))
    output = convert_to_parquet(tmp_path, data_type_list=["actv"])
    assert sorted(os.listdir(output / "rank=0/data_type=actv")) == [
        f"{run_dir.name}_{step}.parquet" for step in (0, 2, 4, 6, 8)
    ]
    assert len(rows(output, "actv")) == 20
