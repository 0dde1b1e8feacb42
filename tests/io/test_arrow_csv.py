"""CSV files as Arrow tables: whatever is wrong with a file, the rows and the broken lines are those of `read_csv`."""

import math
from pathlib import Path

import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msmon_io import (
    BrokenLine,
    CsvWriter,
    HeaderError,
    convert_to_parquet,
    create_run_dir,
    data_types_of,
    read_arrow,
    read_csv,
)

from .tables import HOSTILE_NAMES, table

HEADER = b"vpp_stage,name,step,norm,shape,nans"
CELLS = [b"", b"0", b"1", b"-1", b"a", b'"a,b"', b'"a""b"', b'a"b', b'"a"b', b'"a', b"nan", b"NaN(1)", b"-inf", b"1.5"]
CELLS += [b"1e400", b" 1", b"\x0b1", b"+1", b"1_0", b"0x10", b"1.", b"2147483648", b"9" * 19, b"'=a", b"'a", b"\\n"]
CELLS += [b"\xff", "名".encode(), b"\x00", b"\r", b"true", b'"1"', b'""', b"\xef\xbb\xbf", b"[8]"]
GOOD = [b"0", b"fc.weight", b"3", b"0.5", b'"[8, 4]"', b"0"]

cell = st.sampled_from(CELLS) | st.binary(max_size=4)
line = st.lists(st.tuples(st.integers(0, 5), cell), max_size=2).map(lambda changes: b",".join([*_changed(changes)]))
lines = st.lists(line | st.sampled_from([b",".join(GOOD), b"", b"0,cut"]) | st.binary(max_size=12), max_size=6)


def _changed(changes: list[tuple[int, bytes]]) -> list[bytes]:
    cells = list(GOOD)
    for at, new in changes:
        cells[at] = new
    return cells


def plain_rows(path: Path) -> tuple[list[tuple], list[BrokenLine]]:
    """The rows and broken lines as `read_csv` has them."""
    broken: list[BrokenLine] = []
    rows: list[tuple] = []
    try:
        for one in read_csv(path, on_broken=broken.append):
            texts = [one.text[op] for op in one.ops if op in one.text]
            for number, values in enumerate(one.rows()):
                micro = () if one.micro_steps is None else (one.micro_steps[number],)
                text = tuple(_utf8(column[number]) for column in texts)
                rows.append((one.vpp_stages[number], _utf8(one.names[number]), one.step, *micro, *text, *values))
    except HeaderError as error:
        broken.append(error.broken)
    return [_comparable(row) for row in rows], broken


def arrow_rows(path: Path) -> tuple[list[tuple], list[BrokenLine]]:
    """The same from the Arrow table, text columns in front of the numbers."""
    broken: list[BrokenLine] = []
    found = read_arrow(path, on_broken=broken.append)
    return ([] if found is None else _rows_of(found)), broken


def _rows_of(found: pyarrow.Table) -> list[tuple]:
    leading = [name for name in ("vpp_stage", "name", "step", "micro_step") if name in found.column_names]
    texts = [name for name in ("shape", "dtype") if name in found.column_names]
    numbers = [name for name in found.column_names if name not in (*leading, *texts)]
    return [_comparable(tuple(row.values())) for row in found.select([*leading, *texts, *numbers]).to_pylist()]


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _comparable(row: tuple) -> tuple:
    return tuple("nan" if isinstance(value, float) and math.isnan(value) else value for value in row)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=lines, end=st.sampled_from([b"\n", b"\n", b"", b"\r\n"]), header=st.sampled_from([HEADER] * 5 + CELLS))
def test_any_file_has_one_meaning(tmp_path: Path, lines: list[bytes], end: bytes, header: bytes) -> None:
    path = tmp_path / "grad_reduced_0-9.csv"
    path.write_bytes(b"\n".join([header, *lines]) + end)
    assert arrow_rows(path) == plain_rows(path)


SECOND_HEADER = b"vpp_stage,step,module_name,scope,micro_step,norm"
SECOND_GOOD = [b"-1", b"3", b"fc.input.0", b"forward", b"1", b"0.5"]
SECOND_CELLS = [
    b"backward",
    b"reduced",
    b"unreduced",
    b"fc.grad_output.1",
    b"0",
    b"2",
    b"-1",
    b"x",
    b"",
    b'"a,b"',
    b"1e5",
]

second_changes = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(SECOND_CELLS)), max_size=3)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(second_changes, max_size=8),
    kind=st.sampled_from(["module", "weight_grad"]),
    has_micro_step=st.booleans(),
)
def test_files_of_the_second_form(
    tmp_path: Path, changes: list[list[tuple[int, bytes]]], kind: str, has_micro_step: bool
) -> None:
    """Both readers take the rows of each data type, and number those of micro-steps alike."""
    path = tmp_path / f"{kind}_step0-9.csv"
    lines = [SECOND_HEADER]
    for one in changes:
        cells = list(SECOND_GOOD)
        for at, new in one:
            cells[at] = new
        lines.append(b",".join(cells))
    if not has_micro_step:
        lines = [b",".join(line.split(b",")[:4] + line.split(b",")[5:]) for line in lines]
    path.write_bytes(b"\n".join(lines) + b"\n")
    found: list[tuple] = []
    broken: list[BrokenLine] = []
    for data_type in data_types_of(path):
        table = read_arrow(path, data_type, on_broken=broken.append)
        assert table is not None
        found += _rows_of(table)
    rows, plainly_broken = plain_rows(path)
    assert found == rows
    assert {*broken} == {*plainly_broken}
    assert len(plainly_broken) == len({*plainly_broken})


@pytest.mark.parametrize("bad", CELLS, ids=repr)
@pytest.mark.parametrize("at", range(6))
def test_one_odd_cell(tmp_path: Path, bad: bytes, at: int) -> None:
    path = tmp_path / "grad_reduced_0-9.csv"
    path.write_bytes(b"\n".join([HEADER, b",".join(GOOD), b",".join(_changed([(at, bad)])), b",".join(GOOD), b""]))
    rows, broken = arrow_rows(path)
    assert (rows, broken) == plain_rows(path)
    assert len(rows) + len(broken) == 3


def test_every_line_of_a_file_is_judged(tmp_path: Path) -> None:
    """Also by those who need other columns than the broken one."""
    header = "vpp_stage,name,step,micro_step,norm,max\n"
    path = tmp_path / "actv_0-0.csv"
    path.write_text(header + "0,a,0,0,1.5,2\n0,a,0,1,1.5,x\n")
    rows, broken = arrow_rows(path)
    assert rows == [(0, "a", 0, 0, 1.5, 2.0)]
    assert [str(one) for one in broken] == [
        f"{path}:3: could not convert string to float: 'x'; the line is passed over"
    ]
    # What is one line to a reader of lines and two to Arrow, or two and one.
    for text in ("0,a,0,0,1,2\r0,b,0,0,1,2\n", '0,"a,0,0,1,2\n0,b",0,0,1,2\n'):
        path.write_bytes((header + text).encode())
        assert arrow_rows(path) == plain_rows(path)
    for text in ("", "vpp_stage", "a,b\n", header.replace("max", "norm"), header.replace("max", r"\x6eorm"), "\r\r\n"):
        path.write_text(text)
        assert read_arrow(path, on_broken=broken.append) is None
        assert broken[-1].line == 1


def test_converted_files_hold_the_same_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_dir = create_run_dir(tmp_path, 0)
    with CsvWriter(run_dir) as writer:
        for step in range(3):
            writer.write(table(step=step, ops=["norm", "nans"], names=HOSTILE_NAMES))
    damaged = run_dir / "grad_reduced_1-1.csv"
    with damaged.open("ab") as file:
        file.write(b"0,a,1,2.5,1.5\n0,a,1\n0,b,1,,nan\n0,c,0x1,1,0\n0,d,1,1,0")
    (run_dir / "grad_reduced_3-3.csv").write_text("what is this\n")
    expected, said = [], []
    for path in sorted(run_dir.glob("*.csv")):
        rows, broken = plain_rows(path)
        expected += rows
        said += map(str, broken)
    assert len(said) == 4
    output = convert_to_parquet(tmp_path)
    (part,) = output.rglob("*.parquet")
    found = pyarrow.parquet.read_table(part).drop_columns(["run", "micro_step"])
    # A count that is none is not known there.
    assert _rows_of(found) == [(*row[:-1], row[-1] if row[-1] in (0, 1, 2) else None) for row in expected]
    assert [record.getMessage() for record in caplog.records if "passed over" in record.getMessage()] == said
