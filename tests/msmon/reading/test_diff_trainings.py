"""Two real trainings that differ in one layer from one step on: the comparison says which and when."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from msmon.cli import main
from msmon.reading.diff import diff_runs

from . import training
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


def test_shards_of_two_ranks_are_merged_and_equal_the_whole(tmp_path: Path) -> None:
    """FSDP2 on two processes against one process with the whole batch: other layouts, the same training."""
    if not hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard"):
        pytest.skip("FSDP2 is public since torch 2.6")
    whole, sharded = tmp_path / "whole", tmp_path / "sharded"
    processes = [
        subprocess.Popen(
            [sys.executable, training.__file__, sharded, str(rank), "2", tmp_path / "rendezvous"],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    training.train(whole, steps=4, dropout=False)
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    result = diff_runs(whole, sharded, rtol=1e-3, atol=1e-6)
    assert not result.first, result.first[0]
    names = {one.data_type for one in result.one_sided}
    assert not names & {"grad_reduced", "param_origin", "param_updated", "exp_avg", "exp_avg_sq"}
    assert result.compared_tensors > 5 * 53
    assert any(note.startswith("actv_grad, grad_unreduced cannot be compared") for note in result.notes)
    # A rank alone holds only parts: they are not taken for the whole.
    (other,) = sharded.glob("*-rank1-*")
    other.rename(tmp_path / "elsewhere")
    alone = diff_runs(whole, sharded, rtol=1e-3, atol=1e-6)
    assert not any(one.data_type == "grad_reduced" for one in alone.first)
    said = "grad_reduced: of some tensors a shard is missing"
    assert any(said in note for note in alone.notes)
