"""Writers by name: ours, those of other packages, and what is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

from msmon_io import MemoryWriter, WriterContext, open_writer, read_csv, writer_names

from .tables import Opened, table

PLUGIN = """
class Recorder:
    def __init__(self, context):
        self.context = context
        self.calls = []
    def write(self, table):
        self.calls.append(("write", table.step))
    def flush(self):
        self.calls.append(("flush",))
    def close(self):
        self.calls.append(("close",))
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that registers a writer."""
    site = tmp_path / "site"
    (site / "recorder-1.0.dist-info").mkdir(parents=True)
    (site / "recorder_plugin.py").write_text(PLUGIN)
    (site / "recorder-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: recorder\nVersion: 1.0\n")
    points = "[msmon_io.writers]\nrecorder = recorder_plugin:Recorder\ncsv = recorder_plugin:Recorder\n"
    (site / "recorder-1.0.dist-info/entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(site)


@pytest.mark.usefixtures("plugin")
def test_writers_of_other_packages(tmp_path: Path) -> None:
    assert writer_names() == ["csv", "tensorboard", "parquet", "api", "recorder"]
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    context = WriterContext(run_dir=run_dir, rank=3, ndigits=2)
    writers = Opened(["recorder", "csv", "api", "tensorboard"], context)
    for step in range(3):
        writers.write(table(step=step, values=[[1.23456], [0.00123456]]))
    writers.close()
    recorder = writers["recorder"]
    assert recorder.context is context  # type: ignore[attr-defined]
    steps = [call for step in range(3) for call in (("write", step), ("flush",))]
    assert recorder.calls == [*steps, ("close",)]  # type: ignore[attr-defined]
    (one,) = read_csv(run_dir / "grad_reduced_1-1.csv")
    assert one.rows() == [[1.23], [0.0012]]
    assert len(list(run_dir.glob("events*"))) == 1
    memory = writers["api"]
    assert isinstance(memory, MemoryWriter)
    assert memory.metrics("grad_reduced")["0:fc1.weight/rank3/grad_reduced"] == {"norm": 1.23456}


def test_unknown_formats(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="format: 'cvs' is not known; there are 'csv', 'tensorboard', 'parquet', 'api'"
    ):
        open_writer("cvs", WriterContext(run_dir=tmp_path))


def test_the_newest_step_in_memory() -> None:
    writer = MemoryWriter(rank=1)
    assert writer.metrics("actv") == {}
    writer.write(table(step=0, names=["gone"]))
    writer.write(table(step=1, names=["fc1.weight"], ops=["norm", "shape", "max"], text={"shape": ["[8, 4]"]}))
    writer.write(table(step=1, names=["fc2.weight"], vpp_stages=[1]))
    writer.write(table(data_type="actv", step=1, names=["fc1.input"] * 2, micro_steps=[0, 1]))
    writer.flush()
    writer.close()
    reduced = writer.metrics("grad_reduced")
    assert reduced == {
        "0:fc1.weight/rank1/grad_reduced": {"norm": 1.0, "shape": "[8, 4]", "max": 1.015625},
        "1:fc2.weight/rank1/grad_reduced": {"norm": 1.0},
    }
    assert list(reduced["0:fc1.weight/rank1/grad_reduced"]) == ["norm", "shape", "max"]
    assert list(writer.metrics("actv")) == ["0:fc1.input:0/rank1/actv", "0:fc1.input:1/rank1/actv"]


MISSING = """
import sys
sys.path[:] = {path!r}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
before = set(sys.modules)
from pathlib import Path
import msmon_io
from msmon_io import CsvWriter, Table, WriterContext, open_writer, convert_to_parquet, csv2tensorboard_by_step
run_dir = Path({run_dir!r})
with CsvWriter(run_dir) as writer:
    writer.write(Table(data_type="actv", step=0, names=["w"], vpp_stages=[0], ops=["norm"], values=[[1.0]]))
heavy = {{"numpy", "torch", "mindspore", "pandas", "pyarrow", "tensorboard", "rich", "tqdm", "multiprocessing"}}
assert not heavy & (set(sys.modules) - before), heavy & set(sys.modules)
def message(call):
    try:
        call()
    except ImportError as error:
        return str(error)
from msmon_io import *
print(message(lambda: open_writer("tensorboard", WriterContext(run_dir=run_dir))))
print(message(lambda: msmon_io.ParquetWriter))
print(message(lambda: csv2tensorboard_by_step(run_dir.parent)))
print(message(lambda: convert_to_parquet(run_dir.parent)))
from msmon_io import progress_bar
with progress_bar(1, "converting") as advance:
    advance(1)
"""


def test_attrs_alone_is_enough_for_csv(tmp_path: Path) -> None:
    run_dir = tmp_path / "Dec03_21-34-40-rank0-a"
    run_dir.mkdir()
    refused = ("numpy", "tensorboard", "pyarrow", "rich", "tqdm", "google_crc32c", "torch", "pandas")
    code = MISSING.format(path=sys.path, refused=refused, run_dir=str(run_dir))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    needs = {
        "tensorboard": "TensorBoard files need tensorboard: pip install 'msmon-io[tensorboard]'",
        "parquet": "Parquet files need pyarrow: pip install 'msmon-io[parquet]'",
    }
    assert done.stdout.splitlines() == [needs["tensorboard"], needs["parquet"]] * 2
    assert (run_dir / "actv_0-0.csv").is_file()
    assert done.stderr == ""
    # The same check does fail where something heavy is imported.
    broken = code.replace("import msmon_io\n", "import msmon_io, pyarrow\n", 1)
    broken = broken.replace(repr(refused), "()")
    failed = subprocess.run([sys.executable, "-c", broken], capture_output=True, text=True, timeout=60, check=False)
    assert failed.returncode == 1
    assert "pyarrow" in failed.stderr
