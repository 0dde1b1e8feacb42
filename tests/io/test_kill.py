"""`kill -9` at random moments: complete lines, and at most the step in flight and the one being written are lost."""

import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from msmon_io import BrokenLine, CsvWriter, create_run_dir, find_run_dir, read_csv, stream_batches, stream_path
from msmon_io.files import write_whole

from .tables import table

# Each "training step" is handed over and then said on stdout, so what stdout says is the least that was handed over.
TRAINING = """
import sys
sys.path[:] = {path!r}
from msmon_io import Background, Table, WriterContext
from pathlib import Path
from tests.io.tables import Opened
writers = Opened({formats!r}, WriterContext(run_dir=Path({run_dir!r}), step_count_per_record={record}))
names = [f"model.layers.{{row}}.weight" for row in range({rows})]
background = Background()
def job(step):
    values = [[step + 0.123456, row + 0.123456] for row in range({rows})]
    writers.write(Table(data_type="grad_reduced", step=step, names=names, vpp_stages=[0] * {rows},
                        ops=["min", "norm"], values=values))
step = 0
while True:
    background.submit(job, step)
    sys.stdout.write(f"{{step}}\\n")
    sys.stdout.flush()
    step += 1
"""


def run_and_kill(run_dir: Path, seed: int, *, formats: list[str], record: int, rows: int) -> int:
    """Let it train, kill it at a random moment, and return the last step that it said it had handed over."""
    code = TRAINING.format(path=sys.path, run_dir=str(run_dir), formats=formats, record=record, rows=rows)
    chance = random.Random(seed)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = b""
        last = chance.randrange(2, 15)
        while b"\n%d\n" % last not in said:
            said += os.read(process.stdout.fileno(), 1 << 16)
        # A random moment within the steps that follow.
        select.select([], [], [], chance.random() * 0.03)
        process.send_signal(signal.SIGKILL)
        said += process.stdout.read()
    return int(said.split(b"\n")[-2])


@pytest.mark.parametrize(("record", "rows"), [(1, 3000), (7, 1000), (1000, 3000)])
def test_csv(tmp_path: Path, record: int, rows: int) -> None:
    # A file of very many steps is appended to: there the last line may be cut, and the reader passes it over.
    is_appended = record == 1000
    for seed in range(4):
        run_dir = create_run_dir(tmp_path, seed)
        handed_over = run_and_kill(run_dir, seed, formats=["csv"], record=record, rows=rows)
        steps: list[int] = []
        for path in sorted(run_dir.glob("*.csv"), key=lambda path: int(path.stem.split("_")[2].split("-")[0])):
            text = path.read_text()
            if not is_appended:
                assert text.endswith("\n"), "a line was cut"
                assert text.count("\n") % rows == 1, "a step was cut"
            broken: list[BrokenLine] = []
            tables = list(read_csv(path, on_broken=broken.append))
            assert len(broken) <= is_appended
            if is_appended and len(tables[-1]) < rows:
                cut = tables.pop()
                assert cut.rows() == [[cut.step + 0.123456, row + 0.123456] for row in range(len(cut))]
            for one in tables:
                steps.append(one.step)
                assert one.rows() == [[one.step + 0.123456, row + 0.123456] for row in range(rows)]
        assert steps == list(range(len(steps)))
        # Handed over and not there: the one being written. The step in flight had not been handed over.
        assert handed_over - steps[-1] <= 1
        leftovers = list(run_dir.glob(".*"))
        assert len(leftovers) <= 1
        if leftovers:
            stamp = run_dir.name[:14]
            assert find_run_dir(tmp_path, seed, stamp, stamp) == run_dir
            assert not list(run_dir.glob(".*"))


def test_tensorboard_and_parquet(tmp_path: Path) -> None:
    import pyarrow.parquet
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for seed in range(2):
        run_dir = create_run_dir(tmp_path, 0)
        handed_over = run_and_kill(run_dir, seed, formats=["tensorboard", "parquet"], record=1, rows=300)
        events = EventAccumulator(str(run_dir)).Reload()
        tags = events.Tags()["scalars"]
        steps = [event.step for event in events.Scalars("0:model.layers.0.weight/rank0/grad_reduced_norm")]
        assert steps == list(range(len(steps)))
        assert len(tags) == 600
        assert handed_over - steps[-1] <= 1
        (part,) = tmp_path.glob(f"parquet/*/*/{run_dir.name}_0.parquet")
        streamed = pyarrow.Table.from_batches(stream_batches(stream_path(part)))
        for columns in (streamed, pyarrow.parquet.read_table(part)):
            found = sorted(set(columns["step"].to_pylist()))
            assert found == list(range(len(found)))
            assert columns.num_rows == 300 * len(found)
        assert handed_over - streamed["step"][-1].as_py() <= 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_killed_between_writing_and_renaming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The moment that chance seldom finds: the new file is half written, the old one still in place."""

    def die(path: Path, *parts: bytes) -> None:
        half = parts[0][: len(parts[0]) // 2]
        write_whole(path.with_name(f".{path.name}.0.tmp"), half)
        os.kill(os.getpid(), signal.SIGKILL)

    def train(patch: Callable[[], None]) -> int:
        child = os.fork()
        if child == 0:
            writer = CsvWriter(tmp_path, step_count_per_record=5)
            writer.write(table(step=0))
            writer.flush()
            patch()
            writer.write(table(step=1))
            writer.flush()
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    code = train(lambda: monkeypatch.setattr("msmon_io.csv_writer.write_whole", die))
    assert code == -signal.SIGKILL
    path = tmp_path / "grad_reduced_0-4.csv"
    assert [one.step for one in read_csv(path)] == [0]
    with CsvWriter(tmp_path, step_count_per_record=5) as writer:
        writer.write(table(step=1))
    assert [one.step for one in read_csv(path)] == [0, 1]
