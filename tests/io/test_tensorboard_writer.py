"""Event files, as TensorBoard's own reader sees them."""

import io
import itertools
import logging
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import crc32c

import msmon_io.event_file
import msmon_io.heat_map
from msmon_io import TensorBoardWriter
from msmon_io.heat_map import HeatMaps

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
    found = {(point.step, tag): point.value for tag in events.Tags()["scalars"] for point in events.Scalars(tag)}
    expected = {}
    for step, fields in enumerate(steps):
        one = table(step=step, **fields)
        for tag, row in zip(one.tags(rank=0), one.rows(), strict=True):
            expected |= {(step, f"{tag}_{op}"): value for op, value in zip(one.number_ops, row, strict=True)}
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


def counts_of(step: int, bins: int = 64) -> Any:
    """A bump that wanders, in two of three bins nothing."""
    counts = np.zeros(bins)
    counts[::3] = np.random.default_rng(step).integers(0, 1000, len(counts[::3]))
    counts[step % bins] = 10.0 ** (step % 7)
    return counts


def pixels(png: bytes) -> Any:
    """`[height, width, 3]` of a picture, by a reader of PNG files that is not ours."""
    return np.rint(255 * matplotlib.image.imread(io.BytesIO(png), format="png")[..., :3]).astype(int)


def brightness(png: bytes, cell: int = 4) -> Any:
    """`[columns, bins]`, the smallest bin first, after all pixels of a cell were seen to be equal."""
    image = pixels(png).sum(-1)
    cells = image[::cell, ::cell]
    assert (image == cells.repeat(cell, 0).repeat(cell, 1)).all()
    return cells[::-1].T


def expected(steps: range, bins: int = 64) -> Any:
    """`[columns, bins]`: by how much each cell is brighter than an empty one."""
    return np.array([np.log1p(counts_of(step, bins)) / np.log1p(counts_of(step, bins).sum()) for step in steps])


def show(run_dir: Path, steps: range, *, close: bool = True) -> list[Any]:
    """The pictures of one parameter, as TensorBoard reads them."""
    writer = TensorBoardWriter(run_dir, rank=1)
    for step in steps:
        for kind in ("adam_update", "adam_ratio"):
            of = table(data_type=kind, step=step, names=["fc1.weight", "fc2.weight"], vpp_stages=[0, 1])
            writer.add_heat_maps(of, np.array([counts_of(step)] * 2))
        writer.flush()
    if close:
        writer.close()
    events = read(run_dir)
    pictures = itertools.product(("0:fc1.weight", "1:fc2.weight"), ("adam_ratio", "adam_update"))
    assert sorted(events.Tags()["images"]) == [f"{tag}/rank1/{kind}" for tag, kind in pictures]
    return list(events.Images("1:fc2.weight/rank1/adam_update"))


@pytest.mark.parametrize("count", [1, 2, 7, 100, 300])
def test_the_last_picture_shows_all_steps(tmp_path: Path, count: int) -> None:
    images = show(tmp_path, range(count))
    last = images[-1]
    shown = range(max(0, count - 256), count)
    assert (last.step, last.width, last.height) == (count - 1, 4 * len(shown), 256)
    found, wanted = brightness(last.encoded_image_string), expected(shown)
    darkest, brightest = sum((0, 0, 20)), sum((252, 255, 164))
    assert found[wanted == 0].tolist() == [darkest] * int((wanted == 0).sum())
    assert found.max() <= brightest
    # Brightness rises with the count, but for the rounding to 64 shades.
    order = np.argsort(wanted, axis=None)
    shades = np.rint(63 * wanted.ravel()[order])
    assert (np.diff(found.ravel()[order])[np.diff(shades) > 0] > 0).all()
    assert (np.diff(found.ravel()[order])[np.diff(shades) == 0] == 0).all()


def test_a_picture_is_drawn_when_a_quarter_of_it_is_new(tmp_path: Path) -> None:
    """So a run of 200 steps draws each some twenty times, of 600 columns in all."""
    images = show(tmp_path, range(200))
    assert len(images) <= 22
    assert sum(image.width // 4 for image in images) < 5.5 * 200


def test_a_killed_process_leaves_pictures_of_all_but_the_last_steps(tmp_path: Path) -> None:
    last = show(tmp_path, range(90), close=False)[-1]
    assert (brightness(last.encoded_image_string) > 20).any(axis=1).all()
    assert last.width // 4 == last.step + 1 <= 90


def test_drawing_takes_a_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock of the test's own: a second a drawing, hardly any time for it; the longest due comes first."""
    now = [0.0]
    monkeypatch.setattr(msmon_io.heat_map.time, "monotonic", lambda: now[0])
    heat_maps = HeatMaps()
    drawn: list[str] = []
    for step in range(100):
        for name in "abcdefgh":
            heat_maps.add(name, step, b"\0" * 4)
        for name, heat_map in heat_maps.due():
            heat_map.draw()
            now[0] += 1.0
            drawn.append(name)
        now[0] += 10.0
    assert now[0] * 0.02 - 1 < len(drawn) < now[0] * 0.02 + 1
    assert "".join(drawn) == ("abcdefgh" * 9)[: len(drawn)]
    assert {heat_map.step for _, heat_map in heat_maps.unseen()} == {99}


def test_other_bins_begin_a_new_picture(tmp_path: Path) -> None:
    with TensorBoardWriter(tmp_path) as writer:
        for step, bins in enumerate((4, 4, 5)):
            writer.add_heat_maps(table(data_type="adam_ratio", step=step, names=["w"]), np.zeros((1, bins)))
    last = read(tmp_path).Images("0:w/rank0/adam_ratio")[-1]
    assert (last.width, last.height) == (4, 20)


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
