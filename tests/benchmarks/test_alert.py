"""How long the rules take for a step, and sorting for a large run."""

import json
import time
import tracemalloc

import numpy as np
import pytest

from msmon_alert import (
    AnomalyConstant,
    AnomalyDead,
    AnomalyFrozen,
    AnomalyNan,
    AnomalyOverwritten,
    AnomalySpike,
    AnomalyTurbulence,
    AnomalyVanish,
    Monitor,
    find_anomaly_files,
    first_anomalies,
)

VALUES = 100_000
STATS = ["min", "max", "mean", "norm", "nans", "zeros"]
KINDS = [
    "actv",
    "actv_grad",
    "grad_unreduced",
    "grad_reduced",
    "exp_avg",
    "exp_avg_sq",
    "param_origin",
    "param_updated",
]
DOCUMENTED = [AnomalyTurbulence(10.0), AnomalyNan()]
CONSTANT_STATE = [*DOCUMENTED, AnomalyVanish(), AnomalyDead(), AnomalyConstant(), AnomalyFrozen(), AnomalyOverwritten()]
RULES = {"documented": DOCUMENTED, "constant_state": CONSTANT_STATE, "spike": [AnomalySpike()],
         "all": [*CONSTANT_STATE, AnomalySpike()]}  # fmt: skip
LIMIT_S = 0.05


def steps(tags, stats):
    """Tables of a healthy run, without end."""
    generator = np.random.default_rng(0)
    base = generator.lognormal(size=(tags, len(stats)))
    while True:
        values = base * generator.lognormal(sigma=0.1, size=base.shape)
        if "zeros" in stats:
            values[:, stats.index("zeros")] = 0.3 + 0.01 * generator.random(tags)
            values[:, stats.index("nans")] = 0
        yield values


@pytest.mark.benchmark(timer=time.process_time)
@pytest.mark.parametrize("stats", [STATS, ["norm"]], ids=["six statistics", "norm alone"])
@pytest.mark.parametrize("rules", RULES)
def test_one_step_of_100_000_values(benchmark, rules, stats):
    """Processor time of one core; windows are full, tags are an equal list of new strings in every step."""
    count = VALUES // len(stats)
    monitor = Monitor(RULES[rules])
    tables = steps(count, stats)
    clock = iter(range(10**9))

    def next_step():
        tags = [f"0:layers.{i // 8}.mlp.weight/rank0/{KINDS[i % 8]}" for i in range(count)]
        return (next(clock), tags, stats, next(tables)), {}

    for _ in range(40 if benchmark.enabled else 1):
        arguments, _ = next_step()
        monitor.observe(*arguments)
    alerts = benchmark.pedantic(monitor.observe, setup=next_step, rounds=30 if benchmark.enabled else 1)
    assert isinstance(alerts, list)
    benchmark.extra_info["tags"] = count
    if benchmark.enabled and rules in ("documented", "constant_state"):
        assert benchmark.stats.stats.median <= LIMIT_S


def write_files(folder, files, records):
    """Anomaly files as a large run leaves them: every rank has the same tensors."""
    for rank in range(files):
        directory = folder / f"rank{rank}"
        directory.mkdir()
        lines = []
        for number in range(records):
            tag = f"0:layers.{number % 60}.mlp.linear_fc1.weight/rank{rank}/grad_reduced"
            step, call = 1000 - number // 60, number % 60
            record = {"rank": rank, "step": step, "micro_step": None, "pp_stage": rank % 8, "vpp_stage": 0,
                      "call_id": call, "tag_name": tag, "message": f"Rule AnomalyNan reports {tag}", "group_mates": [0],
                      "rule": "AnomalyNan", "stats": {"norm": {"rule": "AnomalyNan", "value": "nan", "history": None}},
                      "value": "nan", "history": None}  # fmt: skip
            lines.append(f"{json.dumps(f'{tag}_step_{step}_call_{call}')}: {json.dumps(record)}")
        (directory / "anomaly.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


@pytest.mark.benchmark(timer=time.process_time)
def test_sorting_a_million_records(benchmark, tmp_path):
    """2,000 files of 500 records, against `json.load` of the same files; and the memory that it takes."""
    files, records = (2000, 500) if benchmark.enabled else (20, 50)
    write_files(tmp_path, files, records)
    paths = find_anomaly_files(tmp_path)
    tracemalloc.start()
    first_anomalies(paths[:20], 1000)
    few = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    first_anomalies(paths[: max(200, files // 10)], 1000)
    many = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    begin = time.process_time()
    for path in paths:
        with open(path) as file:
            json.load(file)
    parsing = time.process_time() - begin
    found = benchmark.pedantic(first_anomalies, args=(paths, 1000), rounds=1)
    assert (found.seen, found.files, found.notes) == (files * records, files, ())
    assert len(found.first) == min(1000, files * records)
    assert min(record["step"] for record in found.first.values()) == 1000 - (records - 1) // 60
    benchmark.extra_info["peak memory of 20 and of 200 files, MB"] = (few / 1e6, many / 1e6)
    if benchmark.enabled:
        benchmark.extra_info["time over json.load"] = benchmark.stats.stats.median / parsing
        print(
            f"\nsorting: {benchmark.stats.stats.median:.1f} s, {benchmark.stats.stats.median / parsing:.1f} times "
            f"json.load of the same files; peak memory {few / 1e6:.1f} MB for 20 files, {many / 1e6:.1f} MB for 200"
        )
        assert many < 1.5 * few
