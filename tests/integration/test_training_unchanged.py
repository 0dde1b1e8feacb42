"""With the monitor on, losses and final weights are those of the unmonitored training, byte for byte.

The table of all engines and monitors: ``tests/distributed/test_bit_equal.py``.
"""

import csv
import logging
import warnings

import pytest
import torch

from msmon.pytorch import TrainerMon

from .residual_model import train

EVERYTHING = {
    "wg_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "monitor_mbs_grad": True,
}
MONITORS = {
    "wg": {"wg_distribution": True},
    "mbs": {"wg_distribution": True, "monitor_mbs_grad": True},
    "mv": {"mv_distribution": True},
    "param": {"param_distribution": True},
    "xy": {"xy_distribution": True, "all_xy": True},
    "forward": {"xy_distribution": True, "forward_only": True},
    "backward": {"xy_distribution": True, "backward_only": True},
    "all": EVERYTHING,
}
ALL_OPS = ["min", "max", "mean", "norm", "zeros", "nans", "std", "rms", "absmax", "infs", "shape", "dtype"]


@pytest.fixture(scope="module")
def unmonitored():
    return {name: train(name) for name in ("AdamW", "SGD", "Adagrad")}


def attached(write_config, **fields):
    def attach(model, optimizer):
        monitor = TrainerMon(write_config(**fields), params_have_main_grad=False)
        monitor.set_monitor(model, 2, optimizer)
        return monitor

    return attach


@pytest.mark.parametrize("monitor", MONITORS)
def test_bit_equal(monitor, unmonitored, write_config, output_dir, caplog):
    fields = {**MONITORS[monitor], "ops": ALL_OPS, "alert": {"rules": [{"rule_name": "AnomalyNan"}], "dump": True}}
    state = torch.get_rng_state()
    with warnings.catch_warnings(), caplog.at_level(logging.INFO, "msmon"):
        warnings.simplefilter("error")
        assert train("AdamW", attach=attached(write_config, **fields)) == unmonitored["AdamW"]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert any("saw" in record.getMessage() for record in caplog.records)
    torch.set_rng_state(state)
    assert list(output_dir.glob("*-rank0-*/*.csv"))


@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad"])
def test_other_optimizers(optimizer, unmonitored, write_config, output_dir):
    attach = attached(write_config, **EVERYTHING, ops=ALL_OPS)
    assert train(optimizer, attach=attach) == unmonitored[optimizer]


def test_clipping_shows_between_unreduced_and_reduced(write_config, output_dir):
    """The gradient before the reduction is what backward left; the reduced one is what the optimizer consumed."""
    train("AdamW", attach=attached(write_config, wg_distribution=True, ops=["norm"], ndigits=12))
    run_dir = next(output_dir.glob("*-rank0-*"))

    def total(data_type: str) -> float:
        with (run_dir / f"{data_type}_0-0.csv").open() as file:
            return sum(float(row["norm"]) ** 2 for row in csv.DictReader(file)) ** 0.5

    assert total("grad_unreduced") > 1.05
    assert total("grad_reduced") == pytest.approx(1.0, rel=1e-4)


def test_no_rows_from_evaluation_and_none_doubled(write_config, output_dir):
    train("AdamW", attach=attached(write_config, **EVERYTHING, ops=["norm"]))
    run_dir = next(output_dir.glob("*-rank0-*"))
    for path in run_dir.glob("*.csv"):
        with path.open() as file:
            found = [(row["name"], row.get("micro_step")) for row in csv.DictReader(file)]
        assert len(found) == len(set(found)), path.name
        if path.name.startswith(("actv", "grad_unreduced")):
            assert {micro for _, micro in found} == {"0", "1"}, path.name
    with (run_dir / "actv_0-0.csv").open() as file:
        names = [row["name"] for row in csv.DictReader(file) if row["micro_step"] == "0"]
    per_layer = ["norm", "right", "left", "act", "drop"]
    expected = ["embedding.input", "embedding.output"]
    for layer in range(3):
        for module in [*(f".{name}" for name in per_layer), ""]:
            expected += [f"layers.{layer}{module}.input", f"layers.{layer}{module}.output"]
    expected += ["norm.input", "norm.output", "head.input", "head.output", ".input", ".output"]
    assert names == expected
