"""Stored statistics of parts: back as they were, whole steps after a kill, one block of names for many steps."""

import json
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

import msmon_io
from msmon.partials import PartialsReader, PartialsWriter
from msmon_hooks import Shard, TensorRef
from msmon_stats import FIELDS

NAMES = ("fc1.weight", "large.模型", "lone \ud800 surrogate", "two\nlines")


def refs(names=NAMES, micro_step=None, sharded=True) -> tuple[TensorRef, ...]:
    shard = Shard((7,), (3,), "0:3") if sharded else None
    return tuple(
        TensorRef("grad_reduced", name, place % 2, micro_step, place, (place,), (3,), "torch.bfloat16", shard=shard)
        for place, name in enumerate(names)
    )


def numbers(step: int, rows: int) -> np.ndarray:
    """Each different, and some of every kind of float64."""
    matrix = np.random.default_rng([step, rows]).normal(size=(rows, len(FIELDS))) * 10.0 ** (step % 600 - 300)
    matrix[:, FIELDS.index("nans")] = 0
    matrix[0, 4:8] = [-0.0, np.inf, -np.inf, np.nan]
    return matrix


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return msmon_io.create_run_dir(tmp_path, 0)


def write(run_dir: Path, steps, record: int = 1, of=None) -> PartialsWriter:
    writer = PartialsWriter(run_dir, step_count_per_record=record)
    known = refs()
    for step in steps:
        rows = known if of is None else of(step)
        writer.write(step, rows, numbers(step, len(rows)))
    writer.close()
    return writer


def files(run_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run_dir / "partials").iterdir()}


def same(run_dir: Path, steps, names=NAMES) -> None:
    reader = PartialsReader(run_dir)
    assert reader.steps == list(steps)
    for step in steps:
        found = reader.read(step)
        assert found.tensors.name == list(names)
        assert found.matrix.tobytes() == numbers(step, len(names)).tobytes(), "bit for bit"


@pytest.mark.parametrize("record", [1, 4, 100])
def test_numbers_come_back_bit_for_bit(run_dir, record):
    write(run_dir, range(2, 11), record)
    same(run_dir, range(2, 11))
    found = PartialsReader(run_dir).read(10).tensors
    assert (found.data_type, found.dtype) == (["grad_reduced"] * 4, ["torch.bfloat16"] * 4)
    assert (found.vpp_stage, found.micro_step) == ([0, 1, 0, 1], [-1] * 4)
    assert PartialsReader(run_dir).read(11) is None
    expected = {
        1: [f"steps_{n}-{n}.bin" for n in range(2, 11)],
        4: ["steps_0-3.bin", "steps_4-7.bin", "steps_8-11.bin"],
    }
    assert sorted(files(run_dir)) == sorted(expected.get(record, ["steps_0-99.bin"]))
    assert {path.stat().st_mode & 0o777 for path in (run_dir / "partials").iterdir()} == {0o640}


def test_names_are_there_once_and_columns_of_zeros_not_at_all(run_dir):
    weights = refs()
    write(run_dir, range(50), 100, of=lambda step: (*weights, *refs((f"activation {step}",), sharded=False)))
    (data,) = files(run_dir).values()
    assert data.count(b'"schema"') == 1
    head = json.loads(data[data.index(b'{"step": 0') :].partition(b"\n")[0])
    assert head == {"step": 0, "fields": [field for field in FIELDS if field != "nans"], "bytes": 4 * 7 * 8}


def test_what_is_not_sharded_is_left_out(run_dir):
    write(run_dir, [0], of=lambda step: refs(sharded=False))
    assert not (run_dir / "partials").exists()
    write(run_dir, [0], of=lambda step: (*refs(("whole",), sharded=False), *refs(("part",))))
    found = PartialsReader(run_dir).read(0)
    assert found.tensors.name == ["part"]
    assert found.matrix.tobytes() == numbers(0, 2)[1:].tobytes()


def test_other_tensors_another_order_and_micro_steps(run_dir):
    kinds = [refs(), refs(NAMES[::-1]), refs(NAMES[:2]), refs(micro_step=3)]
    write(run_dir, range(8), 100, of=lambda step: kinds[step % 3 if step < 6 else 3])
    reader = PartialsReader(run_dir)
    for step in range(8):
        kind = kinds[step % 3 if step < 6 else 3]
        found = reader.read(step)
        assert found.tensors.name == [ref.name for ref in kind]
        assert found.tensors.micro_step == [-1 if ref.micro_step is None else 3 for ref in kind]
        assert found.matrix.tobytes() == numbers(step, len(kind)).tobytes()


def test_a_resumed_training_goes_on_in_the_file_and_the_later_step_counts(run_dir):
    write(run_dir, range(3), 10)
    write(run_dir, range(2, 5), 10, of=lambda step: refs(NAMES[:3]))
    reader = PartialsReader(run_dir)
    assert [len(reader.read(step).matrix) for step in reader.steps] == [4, 4, 3, 3, 3]


def test_a_file_cut_anywhere_has_the_steps_before_the_cut_and_is_continued(run_dir):
    write(run_dir, range(3), 10)
    path = run_dir / "partials" / "steps_0-9.bin"
    data = path.read_bytes()
    ends = [data.index(b'{"step": 1'), data.index(b'{"step": 2'), len(data)]
    for cut in [0, 1, 20, *range(ends[0] - 3, ends[0] + 100), *range(ends[1] - 3, len(data) + 1)]:
        path.write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends)
        same(run_dir, range(whole))
        write(run_dir, range(whole, 3), 10)
        same(run_dir, range(3))


def test_damage_is_said_and_nothing_is_added(run_dir, caplog):
    write(run_dir, range(3), 10)
    path = run_dir / "partials" / "steps_0-9.bin"
    data = path.read_bytes()
    tensors = data[: data.index(b'{"step": 0')]
    for bad in (
        b"PK\x03\x04" + b"x" * 9000,
        b"[1]\n" + data,
        b'{"step": 0}\n' + data,
        b'{"step": 0, "bytes": -20}\n' + data,
        data[len(tensors) :],
        data.replace(b'"schema": 2', b'"schema": 3'),
        tensors.replace(b'"bytes"', b'"BYTES"') + data,
        data.replace(tensors[-20:], b"\0" * 20),
    ):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=r"steps_0-9\.bin is damaged"):
            PartialsReader(run_dir)
    path.write_bytes(b"PK\x03\x04" + b"x" * 9000)
    assert write(run_dir, [4], 10).losses.lost == 4
    assert path.read_bytes() == b"PK\x03\x04" + b"x" * 9000
    assert "is damaged, nothing is added to it" in caplog.text
    path.write_bytes(data.replace(b'"min"', b'"mim"'))
    with pytest.raises(ValueError, match=r"steps_0-9\.bin is damaged in step 0"):
        PartialsReader(run_dir).read(0)


def test_nothing_is_written_through_links(run_dir, tmp_path, caplog):
    outside = tmp_path / "outside"
    outside.mkdir()
    (run_dir / "partials").symlink_to(outside)
    assert write(run_dir, [0]).losses.lost == 4
    assert not list(outside.iterdir())
    (run_dir / "partials").unlink()
    (run_dir / "partials").mkdir()
    (outside / "target").write_text('{"')
    (run_dir / "partials" / "steps_0-0.bin").symlink_to(outside / "target")
    assert write(run_dir, [0]).losses.lost == 4
    assert (outside / "target").read_text() == '{"'
    assert "nothing is written there" in caplog.text


def test_a_step_that_cannot_be_written_leaves_the_others(run_dir, monkeypatch):
    """As where the disk is full and then freed again."""
    real, calls = os.write, []

    def full_at_third(fd, data):
        calls.append(fd)
        if len(calls) in (3, 4):
            real(fd, bytes(data)[:30])
            raise OSError(28, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", full_at_third)
    writer = write(run_dir, range(5), 10)
    assert writer.losses.lost == 8
    same(run_dir, [0, 1, 4])


def test_a_file_that_somebody_removed_begins_with_its_tensors(run_dir):
    writer = PartialsWriter(run_dir, step_count_per_record=10)
    known = refs()
    writer.write(0, known, numbers(0, 4))
    (run_dir / "partials" / "steps_0-9.bin").unlink()
    writer.write(1, known, numbers(1, 4))
    same(run_dir, [1])


def test_files_of_the_first_schema_are_read(run_dir):
    (run_dir / "partials").mkdir()
    columns = {"data_type": ["actv"], "vpp_stage": [1], "name": ["w"], "micro_step": [-1], "dtype": ["torch.float32"]}
    np.savez_compressed(run_dir / "partials" / "step_3.npz", schema=1, partials=numbers(3, 1), **columns)
    reader = PartialsReader(run_dir)
    assert reader.steps == [3]
    assert reader.read(3).tensors.name == ["w"]
    assert reader.read(3).matrix.tobytes() == numbers(3, 1).tobytes()


KILLED = """
import sys
sys.path[:] = {path!r}
from pathlib import Path
import numpy as np
from msmon.partials import PartialsWriter
from tests.msmon.test_partials import numbers, refs
writer = PartialsWriter(Path({run_dir!r}), step_count_per_record=1000)
of = refs([f"layers.{{row}}.weight" for row in range(2000)])
for step in range(1000):
    writer.write(step, of, numbers(step, 2000))
    print(step, flush=True)
"""


def test_killed_while_writing(run_dir):
    code = KILLED.format(path=sys.path, run_dir=str(run_dir))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        said = [process.stdout.readline() for _ in range(5)]
        process.send_signal(signal.SIGKILL)
        said += process.stdout.readlines()
    written = int(said[-1] if said[-1].endswith(b"\n") else said[-2])
    steps = PartialsReader(run_dir).steps
    assert steps == list(range(len(steps)))
    assert steps[-1] - written in (0, 1)
    same(run_dir, steps, [f"layers.{row}.weight" for row in range(2000)])


def test_the_documented_reader(run_dir):
    """The few lines that a program without msmon needs."""
    write(run_dir, range(2), 10)
    found = {}
    with (run_dir / "partials" / "steps_0-9.bin").open("rb") as file:
        while line := file.readline():
            head = json.loads(line)
            body = file.read(head["bytes"])
            if "step" in head:
                found[head["step"]] = np.frombuffer(body, "<f8").reshape(-1, len(head["fields"]))
            else:
                names = json.loads(zlib.decompress(body))["name"]
    assert names == list(NAMES)
    assert np.array_equal(found[1][:, 0], numbers(1, 4)[:, 0])
