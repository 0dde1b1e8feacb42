"""CSV files: names, headers, modes, what an existing file does, and reading them back."""

import logging
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import msmon_io.csv_writer
from msmon_io import BrokenLine, CsvWriter, OutsideError, Table, read_csv, write_text_csv

from .tables import HOSTILE_NAMES, OPS, plain, table

REFERENCE = sorted((Path(__file__).parents[1] / "integration/data/reference").glob("*/*.csv"))


def test_files_of_a_run(tmp_path: Path) -> None:
    old_umask = os.umask(0o077)
    try:
        with CsvWriter(tmp_path, step_count_per_record=5) as writer:
            for step in (1, 3, 5, 7, 20):
                writer.write(table(step=step))
                writer.write(table(data_type="actv", step=step, micro_steps=[0, 1], vpp_stages=[0, 1]))
                writer.write(table(data_type="exp_avg", step=step, names=[], values=[]))
                writer.flush()
    finally:
        os.umask(old_umask)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == [f"{kind}_{steps}.csv" for kind in ("actv", "grad_reduced") for steps in ("0-4", "20-24", "5-9")]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}
    lines = ["vpp_stage,name,step,norm", "0,fc1.weight,1,1.0", "0,fc1.bias,1,1.125"]
    lines += ["0,fc1.weight,3,3.0", "0,fc1.bias,3,3.125"]
    assert (tmp_path / "grad_reduced_0-4.csv").read_text() == "\n".join(lines) + "\n"
    head = ["vpp_stage,name,step,micro_step,norm", "0,fc1.weight,20,0,20.0", "1,fc1.bias,20,1,20.125"]
    assert (tmp_path / "actv_20-24.csv").read_text() == "\n".join(head) + "\n"


def test_columns_keep_the_configured_order(tmp_path: Path) -> None:
    ops = ["shape", "norm", "dtype", "nans"]
    text = {"shape": ["[8, 4]", "[]"], "dtype": ["torch.float32", "torch.bfloat16"]}
    for values in ([[0.5, 2], [1e-9, 0]], np.array([[0.5, 2], [1e-9, 0]])):
        with CsvWriter(tmp_path) as writer:
            writer.write(table(ops=ops, values=values, text=text))
        path = tmp_path / "grad_reduced_0-0.csv"
        assert path.read_text().splitlines() == [
            "vpp_stage,name,step,shape,norm,dtype,nans",
            '0,fc1.weight,0,"[8, 4]",0.5,torch.float32,2',
            "0,fc1.bias,0,[],1e-09,torch.bfloat16,0",
        ]
        path.unlink()


@pytest.mark.parametrize("path", REFERENCE, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_reads_the_older_tool_and_writes_its_cells(path: Path, tmp_path: Path) -> None:
    first, last = map(int, path.stem.rpartition("_")[2].split("-"))
    with CsvWriter(tmp_path, ndigits=12, step_count_per_record=last - first + 1) as writer:
        for one in read_csv(path):
            writer.write(one)
    ours = [line.split(",") for line in (tmp_path / path.name).read_text().splitlines()]
    theirs = [line.split(",") for line in path.read_text().splitlines()]
    nans = theirs[0].index("nans") if "nans" in theirs[0] else None
    for row in theirs[1:]:
        if nans is not None and row[nans] == "0.0":
            row[nans] = "0"
    assert ours == theirs


names = st.text(st.characters(exclude_categories=()), max_size=20) | st.sampled_from(HOSTILE_NAMES)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(names, st.integers(0, 9), st.integers(0, 3), st.lists(st.floats(), min_size=2, max_size=2), names)
    )
)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list) -> None:
    directory = tmp_path_factory.mktemp("run")
    one = Table(
        data_type="actv",
        step=7,
        names=[row[0] for row in rows],
        vpp_stages=[row[1] for row in rows],
        micro_steps=[row[2] for row in rows],
        ops=["min", "dtype", "max"],
        values=[row[3] for row in rows],
        text={"dtype": [row[4] for row in rows]},
    )
    with CsvWriter(directory, ndigits=17) as writer:
        writer.write(one)
    assert writer.losses.failures == 0
    assert plain(table for path in directory.iterdir() for table in read_csv(path)) == (plain([one]) if rows else [])


def test_hostile_names_stay_in_the_run_directory(tmp_path: Path) -> None:
    run_dir = tmp_path / "out" / "run"
    run_dir.mkdir(parents=True)
    one = table(names=HOSTILE_NAMES)
    with CsvWriter(run_dir) as writer:
        writer.write(one)
        writer.write(table(data_type="../../actv"))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["grad_reduced_0-0.csv"]
    assert plain(read_csv(run_dir / "grad_reduced_0-0.csv")) == plain([one])
    assert (run_dir / "grad_reduced_0-0.csv").read_bytes().count(b"\n") == len(HOSTILE_NAMES) + 1
    assert (writer.losses.lost, writer.losses.failures) == (2, 1)
    assert "'../../actv' is no data type" in writer.losses.first


def test_links_that_lead_out_are_not_followed(tmp_path: Path) -> None:
    run_dir, outside = tmp_path / "run", tmp_path / "outside"
    run_dir.mkdir()
    outside.mkdir()
    victim = outside / "victim.csv"
    victim.write_text("vpp_stage,name,step,norm\n")
    (run_dir / "grad_reduced_0-0.csv").symlink_to(victim)
    (run_dir / "actv_0-0.csv").symlink_to(outside / "new.csv")
    with CsvWriter(run_dir) as writer:
        writer.write(table())
        writer.write(table(data_type="actv"))
        writer.write(table(data_type="exp_avg"))
        writer.flush()
        # The directory itself becomes a link while training runs.
        run_dir.rename(tmp_path / "moved")
        run_dir.symlink_to(outside)
        writer.write(table(step=1))
    assert writer.losses.lost == 6
    assert "outside" in writer.losses.first
    assert victim.read_text() == "vpp_stage,name,step,norm\n"
    assert [path.name for path in outside.iterdir()] == ["victim.csv"]
    assert (tmp_path / "moved" / "exp_avg_0-0.csv").is_file()
    with pytest.raises(OutsideError, match="outside of"):
        write_text_csv(tmp_path / "moved" / "actv_0-0.csv", ["a"], [])


@pytest.mark.parametrize("rewrite_limit", [1 << 22, 0], ids=["rewritten", "appended"])
def test_a_resumed_run_goes_on_in_the_file(tmp_path: Path, rewrite_limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msmon_io.csv_writer, "REWRITE_LIMIT", rewrite_limit)
    path = tmp_path / "grad_reduced_0-9.csv"
    with CsvWriter(tmp_path, step_count_per_record=10) as writer:
        writer.write(table(step=0))
        writer.write(table(step=1))
        assert [one.step for one in read_csv(path)] == [0], "the next step brings the one before it to the disk"
    whole = path.read_text()
    path.write_text(whole + "0,fc1.weight,2,0.1")
    with CsvWriter(tmp_path, step_count_per_record=10) as writer:
        writer.write(table(step=2))
        writer.flush()
        writer.write(table(step=3))
    assert [(one.step, len(one)) for one in read_csv(path, on_broken=pytest.fail)] == [(step, 2) for step in range(4)]
    assert path.read_text().startswith(whole)
    assert path.stat().st_mode & 0o777 == 0o640 or rewrite_limit == 0
    for start in ("", "vpp_sta"):
        path.write_text(start)
        with CsvWriter(tmp_path, step_count_per_record=10) as writer:
            writer.write(table(step=4))
        assert [one.step for one in read_csv(path)] == [4]


def test_other_columns_need_another_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with CsvWriter(tmp_path) as writer:
        writer.write(table())
    before = (tmp_path / "grad_reduced_0-0.csv").read_text()
    with CsvWriter(tmp_path) as writer:
        writer.write(table(ops=["min", "norm"]))
        writer.write(table(step=1, ops=["min", "norm"]))
        writer.write(table(step=1, ops=["norm"]))
    assert (tmp_path / "grad_reduced_0-0.csv").read_text() == before
    assert writer.losses.lost == 6
    assert "has the columns vpp_stage,name,step,norm, these rows have vpp_stage,name,step,min,norm" in caplog.text
    assert "use a new run directory" in caplog.text
    assert "different columns" not in writer.losses.first


def test_broken_lines_are_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "grad_reduced_0-9.csv"
    lines = [
        "vpp_stage,name,step,norm,shape",
        '0,a,0,1.5,"[8, 4]"',
        "0,a,1,1.5",
        "0,a,x,1.5,[]",
        "0,a,2,one,[]",
        '0,"a,3,1.5,[]',
        "",
        "\x00\xff garbage",
        "0,b,4,,[]",
        "0,c,5,2.5,[]",
        f"0,d,{1 << 63},2.5,[]",
        f"{1 << 31},e,6,2.5,[]",
        "0,f,6,2.5,[]",
    ]
    path.write_bytes("\r\n".join(lines).encode("latin-1"))
    broken: list[BrokenLine] = []
    tables = list(read_csv(path, on_broken=broken.append))
    assert [(one.step, one.rows()[0][0]) for one in tables if one.step != 4] == [(0, 1.5), (5, 2.5)]
    assert str(tables[1].rows()) == "[[nan]]"
    assert [one.line for one in broken] == [3, 4, 5, 6, 8, 11, 12, 13]
    assert str(broken[0]) == f"{path}:3: 4 cells instead of 5; the line is passed over"
    assert [one.reason for one in broken[-3:-1]] == [
        "step has more than 64 bits",
        "vpp_stage or micro_step has more than 32 bits",
    ]
    assert "no line end" in broken[-1].reason
    with caplog.at_level(logging.WARNING):
        list(read_csv(path))
    assert len(caplog.records) == 8
    for text in ("", "name,step\n", "vpp_stage,name,step,norm"):
        path.write_text(text)
        with pytest.raises(ValueError, match="header"):
            list(read_csv(path))


def test_a_table_that_does_not_fit_together(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="grad_reduced: vpp_stages has 1 entries for 2 names"):
        table(vpp_stages=[0])
    with pytest.raises(ValueError, match="micro_steps has 3 entries"):
        table(micro_steps=[0, 1, 2])
    with CsvWriter(tmp_path) as writer:
        writer.write(table(values=[[1.0, 2.0], [3.0, 4.0]]))
        writer.write(table(values=np.zeros((2, 2))))
        writer.write(table(values=[["x"], ["y"]]))
    assert writer.losses.lost == 6
    assert "values of shape (2, 2) for 2 names, 1 columns" in writer.losses.first
    with pytest.raises(ValueError, match="step_count_per_record: 0 is not allowed"):
        CsvWriter(tmp_path, step_count_per_record=0)


def test_arrays_and_lists_give_the_same_file(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(500, len(OPS))) * 10.0 ** np.arange(-3, 3)
    names = [f"layer.{i}.weight" for i in range(500)]
    texts = []
    for form in (values, values.tolist(), np.asfortranarray(values)):
        with CsvWriter(tmp_path, ndigits=5) as writer:
            writer.write(table(names=names, ops=OPS, values=form))
        texts.append((tmp_path / "grad_reduced_0-0.csv").read_text())
        (tmp_path / "grad_reduced_0-0.csv").unlink()
    assert texts[0] == texts[1] == texts[2]


def test_integers_are_numbers_too(tmp_path: Path) -> None:
    for values in ([[0, 0], [-3, 3]], np.array([[0, 0], [-3, 3]])):
        with CsvWriter(tmp_path) as writer:
            writer.write(table(ops=["min", "nans"], values=values))
        path = tmp_path / "grad_reduced_0-0.csv"
        assert path.read_text().splitlines()[1:] == ["0,fc1.weight,0,0.0,0", "0,fc1.bias,0,-3.0,3"]
        path.unlink()


def test_text_files(tmp_path: Path) -> None:
    path = tmp_path / "stack_info.csv"
    write_text_csv(path, ["module_name", "stack_info"], [["0:fc1", 'File "a.py", line 1\nFile "b.py", line 2']])
    assert path.read_text() == 'module_name,stack_info\n0:fc1,"File ""a.py"", line 1\\nFile ""b.py"", line 2"\n'
    assert path.stat().st_mode & 0o777 == 0o640
