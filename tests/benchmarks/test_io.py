"""Writing and converting against the usual way with pandas and torch's SummaryWriter, in the same run.

Each benchmark takes turns with its peer and prints both medians and their ratio, and the ratio of the best rounds,
which a busy machine disturbs less. The peers do what scripts around
training monitors do: a DataFrame a step, rounded and written by `to_csv`; `read_csv`, `iterrows` and `add_scalar`.
"""

import statistics
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pandas
import pytest
from numpy.typing import NDArray

from msmon.alerts import AlertHistory
from msmon.collector import CollectedStep
from msmon.config import parse_config
from msmon.outputs import TrainingProcess
from msmon.session import Session
from msmon_hooks import Shard, StepEnd, TensorRef
from msmon_io import (
    Background,
    CsvWriter,
    ParquetWriter,
    Table,
    TensorBoardWriter,
    convert_to_parquet,
    create_run_dir,
    csv2tensorboard_by_step,
)
from msmon_stats.torch import PartialBuffer

WEIGHT_TYPES = ("grad_unreduced", "grad_reduced", "param_origin", "param_updated")
OPS = ["min", "max", "mean", "norm", "nans", "zeros"]


def names(tensors: int) -> list[str]:
    return [f"model.layers.{i // 10}.mlp.linear_{i % 10}.weight" for i in range(tensors)]


def statistics_of_gradients(tensors: int, seed: int = 0) -> NDArray[np.float64]:
    """Plausible statistics: small, of many magnitudes, no NaN, a share of zeros here and there."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(tensors, len(OPS))) * 10.0 ** random.uniform(-6, -1, (tensors, 1))
    values[:, 3] = np.abs(values[:, 3]) * 1000
    values[:, 4] = 0
    values[:, 5] = np.where(random.random(tensors) < 0.5, 0, random.random(tensors))
    return values


def table(step: int, tensors: list[str], values: NDArray[np.float64]) -> Table:
    return Table(
        data_type="grad_reduced", step=step, names=tensors, vpp_stages=[0] * len(tensors), ops=OPS, values=values
    )


def pandas_step(path: Path, step: int, tensors: list[str], values: NDArray[np.float64]) -> None:
    rows = [[0, name, step, *row] for name, row in zip(tensors, values.tolist(), strict=True)]
    frame = pandas.DataFrame(rows, columns=["vpp_stage", "name", "step", *OPS]).round(6)
    frame.to_csv(path, mode="a", header=not path.exists(), index=False)


def seconds_of(call: Callable[[int], Any], number: int = 0) -> float:
    begin = time.perf_counter()
    call(number)
    return time.perf_counter() - begin


def report(benchmark: Any, what: str, ours: list[float], peer: list[float]) -> None:
    mine, theirs = statistics.median(ours), statistics.median(peer)
    best = min(peer) / min(ours)
    benchmark.extra_info.update(ours_s=mine, peer_s=theirs, ratio=theirs / mine, best_ratio=best)
    if benchmark.enabled:
        print(
            f"\n{what}: {mine * 1e3:.1f} ms, peer {theirs * 1e3:.1f} ms, "
            f"{theirs / mine:.1f} times faster (best rounds: {best:.1f})"
        )


def in_turns(benchmark: Any, what: str, ours: Callable[[int], Any], peer: Callable[[int], Any], rounds: int) -> None:
    """Time both in turns, and give pytest-benchmark ours."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1 if benchmark.enabled else 1):
        for call, list_ in zip((ours, peer), seconds, strict=True):
            list_.append(seconds_of(call, number))
    mine, theirs = (one[1:] or one for one in seconds)  # the first round warms up
    report(benchmark, what, mine, theirs)
    benchmark.pedantic(ours, args=(rounds + 1,), rounds=1)


@pytest.mark.parametrize("tensors", [100, 1_000, 10_000])
def test_csv_of_a_step(benchmark: Any, tmp_path: Path, tensors: int) -> None:
    """Rows of one step to the disk."""
    tensor_names, values = names(tensors), statistics_of_gradients(tensors)
    with CsvWriter(create_run_dir(tmp_path, 0)) as writer:

        def ours(step: int) -> None:
            writer.write(table(step, tensor_names, values))
            writer.flush()

        def peer(step: int) -> None:
            pandas_step(tmp_path / f"grad_reduced_{step}-{step}.csv", step, tensor_names, values)

        in_turns(benchmark, f"CSV, {tensors} tensors x {len(OPS)} statistics", ours, peer, 21)


def test_csv_from_lists(benchmark: Any, tmp_path: Path) -> None:
    """The same without numpy."""
    tensors = 10_000
    tensor_names, values = names(tensors), statistics_of_gradients(tensors)
    listed: Any = values.tolist()
    with CsvWriter(create_run_dir(tmp_path, 0)) as writer:

        def ours(step: int) -> None:
            writer.write(table(step, tensor_names, listed))
            writer.flush()

        def peer(step: int) -> None:
            pandas_step(tmp_path / f"grad_reduced_{step}-{step}.csv", step, tensor_names, values)

        in_turns(benchmark, "CSV from nested lists, 10,000 tensors x 6 statistics", ours, peer, 11)


@pytest.mark.parametrize("kind", ["tensorboard", "parquet"])
def test_other_formats_of_a_step(benchmark: Any, tmp_path: Path, kind: str) -> None:
    """10,000 tensors as TensorBoard scalars against `add_scalar`; as Parquet against `to_csv`."""
    from torch.utils.tensorboard import SummaryWriter

    tensors = 10_000 if benchmark.enabled else 100
    tensor_names, values = names(tensors), statistics_of_gradients(tensors)
    run_dir = create_run_dir(tmp_path, 0)
    writer = TensorBoardWriter(run_dir) if kind == "tensorboard" else ParquetWriter(run_dir)
    summary = SummaryWriter(str(tmp_path / "peer"))  # type: ignore[no-untyped-call]

    def ours(step: int) -> None:
        writer.write(table(step, tensor_names, values))
        writer.flush()

    def peer(step: int) -> None:
        if kind == "parquet":
            pandas_step(tmp_path / "peer.csv", step, tensor_names, values)
            return
        for name, row in zip(tensor_names, values.tolist(), strict=True):
            for op, value in zip(OPS, row, strict=True):
                summary.add_scalar(f"0:{name}/rank0/grad_reduced_{op}", value, step)  # type: ignore[no-untyped-call]
        summary.flush()  # type: ignore[no-untyped-call]

    in_turns(benchmark, f"{kind}, {tensors} tensors x 6 statistics", ours, peer, 3 if kind == "tensorboard" else 9)
    writer.close()
    summary.close()  # type: ignore[no-untyped-call]


def test_wait_of_the_training_thread(benchmark: Any, tmp_path: Path) -> None:
    """What handing over 10,000 x 6 numbers costs the training, when the writer keeps up."""
    tensor_names, values = names(10_000), statistics_of_gradients(10_000)
    with CsvWriter(create_run_dir(tmp_path, 0)) as writer, Background() as background:

        def job(step: int) -> None:
            writer.write(table(step, tensor_names, values))
            writer.flush()

        waits = []
        for step in range(21 if benchmark.enabled else 2):
            begin = time.perf_counter()
            background.submit(job, step)
            waits.append(time.perf_counter() - begin)
            # The rest of a training step: the thread is in a kernel or sleeps, and the writer has the time it needs.
            assert background.drain()
        benchmark.extra_info.update(median_s=statistics.median(waits), longest_s=max(waits))
        if benchmark.enabled:
            print(f"\nwait: median {statistics.median(waits) * 1e6:.0f} us, longest {max(waits) * 1e6:.0f} us")
        assert background.waits == 0
        benchmark.pedantic(lambda: background.drain(), rounds=1)


class Ready:
    """A step's numbers, on the host already."""

    def __init__(self, numbers: NDArray[np.float64]) -> None:
        self._numbers = numbers

    def matrix(self) -> NDArray[np.float64]:
        return self._numbers


def recorded(tensors: int, shard: Shard | None) -> tuple[TensorRef, ...]:
    """What a step records: half of it activations of two micro-steps, half of it gradients and weights."""
    modules = tensors // 8
    refs: list[TensorRef] = []
    for data_type, place in (("actv", "output"), ("actv_grad", "output"), *((kind, "weight") for kind in WEIGHT_TYPES)):
        for micro_step in (0, 1) if place == "output" else (None,):
            for module in range(modules):
                refs.append(
                    TensorRef(
                        data_type,
                        f"model.layers.{module // 10}.mlp.linear_{module % 10}.{place}",
                        0,
                        micro_step,
                        len(refs),
                        (micro_step or 0, module if data_type == "actv" else -module),
                        (8, 4),
                        "torch.float32",
                        shard=shard if place == "weight" else None,
                    )
                )
    return tuple(refs)


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
@pytest.mark.parametrize("formats", [["csv"], ["csv", "tensorboard"], ["csv", "tensorboard", "parquet"]], ids="+".join)
def test_background_time_of_a_step(benchmark: Any, tmp_path: Path, formats: list[str], sharded: bool) -> None:
    """10,000 rows from the transfer to the disk: statistics, tables, coverage, alert rules, every output.

    Of the sharded ones half the rows are parts of tensors, whose partials are stored too. Processor time of the thread,
    which does not depend on what else the machine does, without the first steps.
    """
    tensors, steps = (10_000, 60) if benchmark.enabled else (80, 3)
    rules = {"rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 1e9}}], "dump": True}
    config = parse_config({"wg_distribution": True, "format": formats, "ops": OPS, "alert": rules})
    process = TrainingProcess(
        framework="torch", rank=0, world_size=1, output_dir=tmp_path, pipeline=[0], data=[0], tensor=[0]
    )
    run_dir = create_run_dir(tmp_path, 0)
    owner = Ready(np.zeros((0, 8)))
    session = Session(config, process, run_dir, PartialBuffer(), owner, AlertHistory())
    refs = recorded(tensors, Shard((8, 8), (8, 4), "0:32") if sharded else None)
    random = np.random.default_rng(0)
    numbers = np.abs(random.normal(size=(len(refs), 8))) * 10.0 ** random.uniform(-6, -1, (len(refs), 1))
    numbers[:, :4] = [32, 0, 0, 0]
    marks: list[float] = []
    for step in range(steps):
        numbers = numbers * (1 + 0.01 * random.normal(size=(len(refs), 1)))
        numbers[:, 0] = 32
        event = StepEnd(step, sampled=True)
        session.pipeline.run_later(lambda: marks.append(time.thread_time()))
        session.pipeline.submit(
            CollectedStep(event=event, refs=refs, handles=np.arange(len(refs)), transfer=Ready(numbers))
        )
    session.pipeline.run_later(lambda: marks.append(time.thread_time()))
    session.finish()
    del owner
    seconds = np.diff(marks)[5 if benchmark.enabled else 0 :]
    partials = sum(path.stat().st_size for path in run_dir.glob("partials/*")) / steps
    assert bool(partials) == sharded
    benchmark.extra_info.update(median_s=float(np.median(seconds)), partials_bytes=partials)
    if benchmark.enabled:
        print(
            f"\nbackground, {len(refs)} rows to {'+'.join(formats)}{' with partials' if sharded else ''}: "
            f"{np.median(seconds) * 1e3:.1f} ms (least {seconds.min() * 1e3:.1f}); partials {partials / 1024:.0f} KiB"
        )
    benchmark.pedantic(lambda: None, rounds=1)


def test_pictures_of_a_run(benchmark: Any, tmp_path: Path) -> None:
    """Histograms of Adam's update and ratio of 100 parameters over 200 steps, back to back."""
    parameters, steps = (100, 200) if benchmark.enabled else (3, 3)
    random = np.random.default_rng(0)
    of = table(0, names(parameters), np.zeros((parameters, len(OPS))))
    run_dir = create_run_dir(tmp_path, 0)
    seconds = []
    with TensorBoardWriter(run_dir) as writer:
        for step in range(steps):
            values = random.normal(size=(parameters, 2000)) * 0.6 * np.exp(0.2 * np.sin(step / 20))
            counts = np.array([np.histogram(row, 64, (-1.5, 1.5))[0] for row in values], np.float64)
            begin = time.thread_time()
            for kind in ("adam_update", "adam_ratio"):
                writer.add_heat_maps(attrs.evolve(of, data_type=kind, step=step), counts)
            writer.flush()
            seconds.append(time.thread_time() - begin)
        begin = time.thread_time()
    at_end, size = time.thread_time() - begin, sum(path.stat().st_size for path in run_dir.iterdir())
    benchmark.extra_info.update(seconds=sum(seconds), close_s=at_end, bytes_a_step=size / steps)
    if benchmark.enabled:
        print(
            f"\npictures, {parameters} parameters x {steps} steps: {sum(seconds) / steps * 1e3:.1f} ms a step "
            f"(most {max(seconds) * 1e3:.0f}), {at_end * 1e3:.0f} ms at the end, {size / steps / 1024:.0f} KiB a step"
        )
    benchmark.pedantic(lambda: None, rounds=1)


def write_runs(output_dir: Path, tensors: int, steps: int, ranks: int, ops: int = 1) -> None:
    values = statistics_of_gradients(tensors)[:, 3 : 3 + ops]
    tensor_names = names(tensors)
    for rank in range(ranks):
        with CsvWriter(create_run_dir(output_dir, rank)) as writer:
            for step in range(steps):
                one = Table(
                    data_type="grad_reduced",
                    step=step,
                    names=tensor_names,
                    vpp_stages=[0] * tensors,
                    ops=OPS[3 : 3 + ops],
                    values=values,
                )
                writer.write(one)


def iterrows_way(output_dir: Path, target: Path, files: int) -> None:
    from torch.utils.tensorboard import SummaryWriter

    for run_dir in sorted(output_dir.glob("*-rank*")):
        summary = SummaryWriter(str(target / run_dir.name))  # type: ignore[no-untyped-call]
        for path in sorted(run_dir.glob("*.csv"))[:files]:
            for _, row in pandas.read_csv(path).iterrows():
                for op in row.index[3:]:
                    tag = f"vp{row['vpp_stage']}:{row['name']}/{op}"
                    summary.add_scalar(tag, row[op], row["step"])  # type: ignore[no-untyped-call]
        summary.close()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("process_num", [1, 2])
def test_csv2tensorboard(benchmark: Any, tmp_path: Path, process_num: int) -> None:
    """5,000 parameters x 50 steps x 2 ranks, the norm; the peer converts two of the steps and its time is scaled."""
    tensors, steps, peer_steps = (5_000, 50, 2) if benchmark.enabled else (50, 4, 2)
    write_runs(tmp_path / "out", tensors, steps, 2)

    def ours(number: int) -> None:
        csv2tensorboard_by_step(tmp_path / "out", process_num=process_num, output_dirpath=tmp_path / f"tb{number}")

    ours(0)
    mine = [seconds_of(ours, number) for number in range(1, 4 if benchmark.enabled else 2)]
    peer = seconds_of(lambda _: iterrows_way(tmp_path / "out", tmp_path / "peer", peer_steps)) * steps / peer_steps
    report(benchmark, f"csv2tb, {tensors} x {steps} x 2, {process_num} processes", mine, [peer])
    benchmark.pedantic(ours, args=(0,), rounds=1)


def test_csv2tensorboard_is_linear_and_bounded(benchmark: Any, tmp_path: Path) -> None:
    """Four times the steps: four times the time, and no more memory."""
    sizes = ((2_000, 10), (2_000, 40)) if benchmark.enabled else ((20, 2), (20, 8))
    seconds, peaks = [], []
    for number, (tensors, steps) in enumerate(sizes):
        write_runs(tmp_path / f"out{number}", tensors, steps, 1)
        convert = lambda run, n=number: csv2tensorboard_by_step(  # noqa: E731
            tmp_path / f"out{n}", output_dirpath=tmp_path / f"tb{n}"
        )
        seconds.append(min(seconds_of(convert) for _ in range(3 if benchmark.enabled else 1)))
        tracemalloc.start()
        convert(0)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    benchmark.extra_info.update(time_ratio=seconds[1] / seconds[0], memory_ratio=peaks[1] / peaks[0])
    if benchmark.enabled:
        print(
            f"\ncsv2tb, 4 times the rows: {seconds[1] / seconds[0]:.2f} times the time, "
            f"{peaks[1] / peaks[0]:.2f} times the peak memory ({peaks[1] / 1e6:.1f} MB)"
        )
    benchmark.pedantic(convert, args=(0,), rounds=1)


def test_convert_to_parquet(benchmark: Any, tmp_path: Path) -> None:
    """2,000 tensors x 50 steps x 2 ranks x 3 statistics against pandas `read_csv` and `to_parquet`."""
    tensors, steps = (2_000, 50) if benchmark.enabled else (20, 2)
    write_runs(tmp_path / "out", tensors, steps, 2, ops=3)

    def ours(number: int) -> None:
        convert_to_parquet(tmp_path / "out", output_dirpath=tmp_path / "pq")

    def peer(number: int) -> None:
        frames = [pandas.read_csv(path) for path in sorted((tmp_path / "out").glob("*/*.csv"))]
        pandas.concat(frames).to_parquet(tmp_path / "peer.parquet")

    in_turns(benchmark, f"convert, {tensors} x {steps} x 2", ours, peer, 3)


def test_lock_held_by_the_writer(benchmark: Any, tmp_path: Path) -> None:
    """How long Python code of the training stands still at most while a step is written beside it."""
    tensor_names, values = names(10_000), statistics_of_gradients(10_000)
    gaps: list[float] = []
    with CsvWriter(create_run_dir(tmp_path, 0)) as writer:
        done = threading.Event()

        def write() -> None:
            for step in range(10 if benchmark.enabled else 1):
                writer.write(table(step, tensor_names, values))
                writer.flush()
            done.set()

        thread = threading.Thread(target=write)
        thread.start()
        last = time.perf_counter()
        while not done.is_set():
            now = time.perf_counter()
            gaps.append(now - last)
            last = now
        thread.join()
    benchmark.extra_info.update(longest_gap_s=max(gaps))
    if benchmark.enabled:
        print(f"\nlongest time without the interpreter while 10 steps are written: {max(gaps) * 1e3:.1f} ms")
    benchmark.pedantic(writer.flush, rounds=1)
