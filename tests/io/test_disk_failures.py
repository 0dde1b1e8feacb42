"""A disk that fails: one error line a part, what is lost is counted, and the training goes on."""

import logging
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from msmon_io import WriterContext, create_run_dir, read_csv, write_json

from .tables import Opened, table

FORMATS = ("csv", "tensorboard", "parquet")
ROWS = 200


def write_step(writers: Opened, step: int, rows: int = ROWS) -> None:
    writers.write(table(step=step, names=[f"layer.{row}.weight" for row in range(rows)], ops=["min", "norm"]))


def losses(writers: Opened) -> dict[str, tuple[int, int]]:
    return {
        name: (writer.losses.lost, writer.losses.failures)  # type: ignore[attr-defined]
        for name, writer in writers.items()
    }


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mount a small file system of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = False

    def do(*options: str) -> Path:
        nonlocal mounted
        command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "none", str(path)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting a file system needs root")
        mounted = True
        return path

    yield do
    if mounted:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_disk_full_and_freed_again(mount: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    disk = mount("size=2m")
    run_dir = create_run_dir(disk, 0)
    writers = Opened(FORMATS, WriterContext(run_dir=run_dir, step_count_per_record=5))
    write_step(writers, 0)
    (disk / "ballast").write_bytes(b"\0" * (os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize))
    for step in (1, 2, 3):
        write_step(writers, step)
        with pytest.raises(OSError, match="No space left"):
            write_json(run_dir / "run.json", list(range(100_000)))
    assert len(errors(caplog)) == len(FORMATS)
    assert all("No space left on device" in line for line in errors(caplog))
    assert [one.step for one in read_csv(run_dir / "grad_reduced_0-4.csv")] == [0]
    (disk / "ballast").unlink()
    write_step(writers, 4)
    writers.close()
    # Parquet keeps the rows of a file until it is full, so they came late but came.
    assert losses(writers) == {"csv": (3 * ROWS, 3), "tensorboard": (3 * ROWS, 3), "parquet": (0, 3)}
    assert "csv output: 600 rows could not be written (3 failures" in caplog.text
    assert "parquet output: 3 failures, but nothing was lost" in caplog.text
    assert [one.step for one in read_csv(run_dir / "grad_reduced_0-4.csv")] == [0, 4]
    assert scalar_steps(run_dir) == [0, 4]
    assert parquet_steps(disk) == [0, 1, 2, 3, 4]
    assert not list(disk.rglob("*.tmp"))


def test_read_only_disk(mount: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    disk = mount("size=4m")
    run_dir = create_run_dir(disk, 0)
    writers = Opened(FORMATS, WriterContext(run_dir=run_dir))
    write_step(writers, 0)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    write_step(writers, 1)
    write_step(writers, 2)
    writers.close()
    assert {name: lost for name, (lost, _) in losses(writers).items()} == dict.fromkeys(FORMATS, 2 * ROWS)
    assert len(errors(caplog)) == 2 * len(FORMATS)
    assert all("Read-only file system" in line for line in errors(caplog))
    with pytest.raises(OSError, match="Read-only"):
        create_run_dir(disk, 1)


@pytest.mark.parametrize("removed", ["run_dir", "output_dir"])
def test_deleted_directory(tmp_path: Path, removed: str, caplog: pytest.LogCaptureFixture) -> None:
    output_dir = tmp_path / "out"
    run_dir = create_run_dir(output_dir, 0)
    writers = Opened(FORMATS, WriterContext(run_dir=run_dir, step_count_per_record=2))
    write_step(writers, 0)
    shutil.rmtree(run_dir if removed == "run_dir" else output_dir)
    for step in (1, 2, 3):
        write_step(writers, step)
    writers.close()
    # The Parquet data set does not lie in the run directory.
    hit = FORMATS if removed == "output_dir" else FORMATS[:2]
    lost = {name: lost for name, (lost, _) in losses(writers).items()}
    assert all(lost[name] >= 3 * ROWS for name in hit)
    assert len(errors(caplog)) == 2 * len(hit)
    assert all("No such file or directory" in line for line in errors(caplog))
    assert not run_dir.exists(), "a directory that somebody removed was made again"


def test_immutable_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_dir = create_run_dir(tmp_path, 0)
    if subprocess.run(["chattr", "+i", str(run_dir)], capture_output=True, check=False).returncode:
        pytest.skip("chattr needs root and a file system that knows it")
    try:
        writers = Opened(FORMATS[:2], WriterContext(run_dir=run_dir))
        write_step(writers, 0)
        writers.close()
    finally:
        subprocess.run(["chattr", "-i", str(run_dir)], check=True)
    assert losses(writers) == {"csv": (ROWS, 1), "tensorboard": (ROWS, 1)}
    assert all("Operation not permitted" in line or "Permission denied" in line for line in errors(caplog))


def test_too_many_open_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_dir = create_run_dir(tmp_path, 0)
    writers = Opened(FORMATS, WriterContext(run_dir=run_dir))
    write_step(writers, 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = os.open("/dev/null", os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (held, hard))
    try:
        write_step(writers, 1)
    finally:
        os.close(held)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    write_step(writers, 2)
    writers.close()
    assert losses(writers) == {"csv": (ROWS, 1), "tensorboard": (ROWS, 1), "parquet": (0, 1)}
    assert all("Too many open files" in line for line in errors(caplog))
    assert scalar_steps(run_dir) == [0, 2]
    assert parquet_steps(tmp_path) == [0, 1, 2]


FILE_SIZE_LIMIT = """
import resource, sys
sys.path[:] = {path!r}
from msmon_io import CsvWriter, Table
import msmon_io.csv_writer
msmon_io.csv_writer.REWRITE_LIMIT = {rewrite_limit}
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
names = [f"layer.{{row}}.weight" for row in range(200)]
with CsvWriter({run_dir!r}, step_count_per_record=10) as writer:
    for step in range(5):
        writer.write(Table(data_type="actv", step=step, names=names, vpp_stages=[0] * 200, ops=["norm"],
                           values=[[0.5]] * 200))
        writer.flush()
print(writer.losses.lost, writer.losses.failures)
"""


@pytest.mark.parametrize("rewrite_limit", [0, 1 << 22])
def test_a_write_that_stops_half_way(tmp_path: Path, rewrite_limit: int) -> None:
    """The limit on file size cuts a write in the middle of a line, as a full disk may."""
    code = FILE_SIZE_LIMIT.format(path=sys.path, run_dir=str(tmp_path), rewrite_limit=rewrite_limit)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    text = (tmp_path / "actv_0-9.csv").read_text()
    steps = [one.step for one in read_csv(tmp_path / "actv_0-9.csv")]
    assert done.stdout.split() == [str(200 * (5 - len(steps))), str(5 - len(steps))]
    assert 0 < len(steps) < 5
    assert text.count("\n") == 200 * len(steps) + 1
    assert text.endswith("\n")
    assert "File too large" in done.stderr


def scalar_steps(run_dir: Path) -> list[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir)).Reload()
    return [event.step for event in events.Scalars("0:layer.0.weight/rank0/grad_reduced_norm")]


def parquet_steps(output_dir: Path) -> list[int]:
    import pyarrow.dataset

    data_set = pyarrow.dataset.dataset(output_dir / "parquet", partitioning="hive")
    return sorted(set(data_set.to_table(columns=["step"])["step"].to_pylist()))
