"""Two real trainings that differ in one layer from one step on: the comparison says which and when."""

from collections.abc import Callable
from pathlib import Path

import pytest

from msmon.cli import main
from msmon.reading.diff import diff_runs

from .conftest import CHANGED

Trained = Callable[[str], Path]


@pytest.mark.parametrize("name", CHANGED)
def test_first_difference_names_step_and_layer(trained: Trained, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, layer, step = CHANGED[name]
    plain, changed = trained("plain"), trained(name)
    result = diff_runs(plain, changed, rtol=1e-5)
    first = result.first[0]
    assert not result.equal
    assert first.step == step
    assert first.tensor.name.startswith(f"blocks.{layer}.")
    expected = {
        "gelu": ("actv", f"blocks.{layer}.mlp.act.output"),
        "bf16": ("actv", f"blocks.{layer}.attention.qkv.output"),
        "learning-rate": ("param_updated", f"blocks.{layer}.norm1.weight"),
        "dropout": ("actv", f"blocks.{layer}.mlp.drop.output"),
    }
    assert (first.data_type, first.tensor.name) == expected[name]
    # Only this layer and what depends on it, in the order in which it happened.
    assert all(difference.step == step for difference in result.first)
    assert first.a != first.b
    assert first.relative > 1e-5
    assert result.worst[0].excess >= first.excess

    # In the terminal, with the default tolerance, step and layer are named as well.
    status = main(["diff", str(plain), str(changed)])
    printed = capsys.readouterr().out
    assert f"step {step}, blocks.{layer}." in printed
    assert status == (0 if name == "gelu" else 1), "the two GELUs are within 1e-3 of each other"


def test_differences_below_the_tolerance_are_still_located(trained: Trained) -> None:
    result = diff_runs(trained("plain"), trained("gelu"), rtol=1e-3)
    assert result.equal
    assert not result.first
    assert result.onset is not None
    assert (result.onset.step, result.onset.tensor.name) == (5, "blocks.2.mlp.act.output")


def test_identical_trainings_are_equal(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    result = diff_runs(trained("plain"), trained("again"), rtol=0, atol=0)
    assert result.equal
    assert result.onset is None
    assert result.compared_values > 30_000
    assert main(["diff", str(trained("plain")), str(trained("again"))]) == 0
    assert "identical, to the last digit" in capsys.readouterr().out


def test_another_seed_differs_from_the_first_weight_on(trained: Trained) -> None:
    result = diff_runs(trained("plain"), trained("seed1"))
    first = result.first[0]
    assert (first.step, first.data_type, first.tensor.name) == (0, "param_origin", "embedding.weight")
    assert result.different_values > 0.3 * result.compared_values


def test_baseline_hides_noise_and_keeps_a_real_difference(trained: Trained) -> None:
    """Another seed is noise; a learning rate three times as large in one layer is not."""
    noise = [trained("seed1"), trained("seed2"), trained("seed3")]
    without = diff_runs(trained("plain"), trained("seed4"))
    other_seed = diff_runs(trained("plain"), trained("seed4"), baselines=noise)
    assert other_seed.different_values < 0.005 * without.different_values
    changed = diff_runs(trained("plain"), trained("learning-rate"), baselines=noise)
    assert not changed.equal
    assert {difference.tensor.name.split(".")[1] for difference in changed.worst[:3]} == {"3"}
    repeated = diff_runs(trained("plain"), trained("bf16"), baselines=[trained("again")])
    assert (repeated.first[0].step, repeated.first[0].tensor.name) == (4, "blocks.1.attention.qkv.output")


def test_without_activations_a_note_says_that_the_cause_may_lie_elsewhere(trained: Trained) -> None:
    result = diff_runs(trained("plain"), trained("gradients-only"), rtol=1e-5)
    assert result.first[0].step == 4
    assert result.first[0].data_type == "grad_unreduced"
    assert any("no activations were compared" in note for note in result.notes)
    assert any(note.startswith("only run A recorded param_origin, actv") for note in result.notes)
