"""Event files, as TensorBoard's own reader sees them."""

import logging
import math
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import crc32c

import msmon_io.event_file
from msmon_io import TensorBoardWriter
from msmon_io.heat_map import heat_map

from .tables import HOSTILE_NAMES, table


def read(path: Path) -> EventAccumulator:
    return EventAccumulator(str(path), size_guidance={"scalars": 0, "images": 0}).Reload()


def test_tags_of_every_data_type(tmp_path: Path) -> None:
    with TensorBoardWriter(tmp_path, rank=3) as writer:
        for step in (0, 5):
            writer.write(table(step=step, ops=["min", "dtype"], text={"dtype": ["torch.float32"] * 2}))
            writer.write(
                table(
                    data_type="actv",
                    step=step,
                    names=["fc1.input", "fc1.output_0"],
                    micro_steps=[0, 1],
                    vpp_stages=[0, 1],
                )
            )
            micro = {"names": ["fc1.weight"] * 2, "micro_steps": [0, 1]}
            writer.write(table(data_type="grad_unreduced", step=step, **micro))
            writer.write(table(data_type="linear_hook", step=step, names=["fc1.linear"], ops=["sr", "kernel_norm"]))
            writer.flush()
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("events.out.tfevents.")
    assert file.stat().st_mode & 0o777 == 0o640
    events = read(tmp_path)
    assert sorted(events.Tags()["scalars"]) == [
        "0:fc1.bias/rank3/grad_reduced_min",
        "0:fc1.input:0/rank3/actv_norm",
        "0:fc1.linear/rank3/linear_hook_kernel_norm",
        "0:fc1.linear/rank3/linear_hook_sr",
        "0:fc1.weight/rank3/grad_reduced_min",
        "0:fc1.weight:0/rank3/grad_unreduced_norm",
        "0:fc1.weight:1/rank3/grad_unreduced_norm",
        "1:fc1.output_0:1/rank3/actv_norm",
    ]
    points = [(event.step, event.value) for event in events.Scalars("1:fc1.output_0:1/rank3/actv_norm")]
    assert points == [(0, 0.125), (5, 5.125)]


def test_values_and_names_of_all_kinds(tmp_path: Path) -> None:
    numbers = [math.nan, math.inf, -math.inf, 1e-45, 1e39, 0.1]
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with TensorBoardWriter(run_dir) as writer:
        writer.write(table(names=["w"] * len(numbers), vpp_stages=range(len(numbers)), values=[[x] for x in numbers]))
        writer.write(table(names=HOSTILE_NAMES, data_type="actv"))
        writer.write(table(values=[["x"], ["y"]]))
        writer.write(table(values=[[1.0, 2.0]] * 2))
    assert writer.losses.lost == 4
    assert [path.parent for path in tmp_path.rglob("*") if path.is_file()] == [run_dir]
    events = read(run_dir)
    values = [events.Scalars(f"{stage}:w/rank0/grad_reduced_norm")[0].value for stage in range(len(numbers))]
    assert math.isnan(values[0])
    assert values[1:5] == [math.inf, -math.inf, pytest.approx(1e-45, rel=0.5), math.inf]
    assert values[5] == pytest.approx(0.1)
    tags = events.Tags()["scalars"]
    assert len([tag for tag in tags if tag.endswith("actv_norm")]) == len(HOSTILE_NAMES)
    assert "0:=cmd()/rank0/actv_norm" in tags
    assert "0:lone \\ud800 surrogate/rank0/actv_norm" in tags


def test_tables_that_change_from_step_to_step(tmp_path: Path) -> None:
    """Other names, order, columns or micro-steps than in the step before; the events are as protobuf writes them."""
    steps: list[dict[str, Any]] = [
        {},
        {},
        {"names": ("fc1.bias", "fc1.weight")},
        {"names": ("fc1.bias",) * 2, "micro_steps": [0, 1]},
        {"vpp_stages": [0, 1]},
        {"ops": ("max", "shape", "norm"), "text": {"shape": ["[2]", "[3]"]}},
        {"names": [f"w{row}" for row in range(5000)]},
        {"names": ()},
        {"values": np.array([[7.0], [8.0]])},
    ]
    with TensorBoardWriter(tmp_path) as writer:
        for step, fields in enumerate(steps):
            writer.write(table(step=step, **fields))
    assert writer.losses.failures == 0
    events = read(tmp_path)
    found = {
        (point.step, tag.replace("/rank0/grad_reduced_", " ")): point.value
        for tag in events.Tags()["scalars"]
        for point in events.Scalars(tag)
    }
    expected = {}
    for step, fields in enumerate(steps):
        one = table(step=step, **fields)
        for tag, row in zip(one.tags(), one.rows(), strict=True):
            expected |= {(step, f"{tag} {op}"): value for op, value in zip(one.number_ops, row, strict=True)}
    assert found == expected
    (file,) = tmp_path.iterdir()
    for record in RawEventFileLoader(str(file)).Load():
        assert Event.FromString(record).SerializeToString() == record


def test_many_tags_in_one_step(tmp_path: Path) -> None:
    with TensorBoardWriter(tmp_path) as writer:
        writer.write(table(names=[f"w{i}" for i in range(10_000)]))
    events = read(tmp_path)
    assert len(events.Tags()["scalars"]) == 10_000
    assert events.Scalars("0:w9999/rank0/grad_reduced_norm")[0].value == 9999 / 8


def test_a_resumed_run_adds_a_file(tmp_path: Path) -> None:
    for step in (0, 1):
        with TensorBoardWriter(tmp_path) as writer:
            writer.write(table(step=step))
    assert len(list(tmp_path.iterdir())) == 2
    points = read(tmp_path).Scalars("0:fc1.weight/rank0/grad_reduced_norm")
    assert [event.step for event in points] == [0, 1]


def test_a_file_cut_by_a_kill_is_readable(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    for step in range(3):
        writer.write(table(step=step))
        writer.flush()
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-7])
    points = read(tmp_path).Scalars("0:fc1.weight/rank0/grad_reduced_norm")
    assert [event.step for event in points] == [0, 1]


def test_the_fast_checksum_is_tensorboards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert msmon_io.event_file._crc32c is not crc32c
    for data in (b"", b"123456789", bytes(range(256)) * 5):
        assert msmon_io.event_file._crc32c(data) == crc32c(data)
    monkeypatch.setattr(msmon_io.event_file, "_crc32c", crc32c)
    with TensorBoardWriter(tmp_path) as writer:
        writer.write(table())
    assert len(read(tmp_path).Tags()["scalars"]) == 2


def test_heat_maps(tmp_path: Path) -> None:
    with TensorBoardWriter(tmp_path, rank=1) as writer:
        for step in range(3):
            writer.add_heat_map(step, tag="0:fc1.weight", kind="adam_update", counts=[0, 5, 1000, 1])
            writer.add_heat_map(step, tag="0:fc1.weight", kind="adam_ratio", counts=[0] * (4 + step // 2))
            writer.flush()
    events = read(tmp_path)
    assert sorted(events.Tags()["images"]) == ["0:fc1.weight/rank1/adam_ratio", "0:fc1.weight/rank1/adam_update"]
    images = events.Images("0:fc1.weight/rank1/adam_update")
    assert [(image.step, image.width, image.height) for image in images] == [(0, 8, 32), (1, 16, 32), (2, 24, 32)]
    ratio = events.Images("0:fc1.weight/rank1/adam_ratio")
    assert [(image.width, image.height) for image in ratio] == [(8, 32), (16, 32), (8, 40)]
    png, width, height = heat_map([[0, 5, 1000, 1], [0, 0, 0, 0]])
    start = png.index(b"IDAT") + 4
    pixels = zlib.decompress(png[start:])
    lines = [pixels[i : i + 1 + 3 * width] for i in range(0, len(pixels), 1 + 3 * width)]
    assert len(lines) == height
    brightness = [sum(line[1:4]) for line in lines[4::8]]
    # The largest bin is at the top; the darkest is the empty one at the bottom.
    assert brightness[1] == max(brightness)
    assert brightness[3] == min(brightness) == sum(lines[0][-3:])
    assert brightness[0] > brightness[3]


def test_needs_neither_torch_nor_tensorflow(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path[:] = {sys.path!r}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "tensorflow", "mindspore", "pandas", "pyarrow"):
            raise ImportError(f"{{name}} is not there")
sys.meta_path.insert(0, Refuse())
from msmon_io import TensorBoardWriter, Table
with TensorBoardWriter({str(tmp_path)!r}) as writer:
    writer.write(Table(data_type="actv", step=0, names=["w"], vpp_stages=[0], ops=["norm"], values=[[1.0]]))
assert writer.losses.failures == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert read(tmp_path).Tags()["scalars"] == ["0:w/rank0/actv_norm"]


def test_tensorboards_reader_warns_of_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with TensorBoardWriter(tmp_path) as writer:
        writer.write(table())
    with caplog.at_level(logging.WARNING):
        read(tmp_path)
    assert not caplog.records
