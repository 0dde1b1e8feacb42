"""Trainers that own the training loop: Hugging Face's and Lightning's."""

import pytest

from .proof import assert_reduced, assert_unchanged, prove_claims, rank_rows, run_info
from .workload import reference_training


@pytest.mark.parametrize("micro_steps", [1, 2])
def test_hugging_face(ranks, proof, tmp_path, micro_steps):
    answers = ranks.run("hf_trainer", "proof", output=str(tmp_path), grad_acc_steps=micro_steps)
    name = "Hugging Face Trainer" + (", accumulation" if micro_steps > 1 else "")
    prove_claims(proof, name, answers, tmp_path, reference_training(grad_acc_steps=micro_steps))
    assert run_info(tmp_path / "all", 0)["engine"] == "ddp"


@pytest.mark.parametrize("micro_steps", [1, 2])
def test_lightning(ranks, proof, tmp_path, micro_steps):
    answers = ranks.run("lightning_trainer", "proof", output=str(tmp_path), grad_acc_steps=micro_steps)
    name = "Lightning Trainer, DDP" + (", accumulation" if micro_steps > 1 else "")
    prove_claims(
        proof, name, answers, tmp_path, named_as_lightning_does(reference_training(grad_acc_steps=micro_steps))
    )
    assert run_info(tmp_path / "all", 0)["engine"] == "ddp"


def test_lightning_counts_micro_steps_of_layers(ranks, tmp_path):
    """Without a wrapper Lightning calls the training step, and nobody calls the module's forward."""
    answers = ranks.run(
        "lightning_trainer",
        "proof",
        output=str(tmp_path),
        grad_acc_steps=2,
        strategy="single",
        monitor_mbs_grad=True,
        xy_distribution=True,
    )
    assert_unchanged(answers)
    rows = rank_rows(tmp_path / "all", 0)
    reference = named_as_lightning_does(reference_training(world_size=1, grad_acc_steps=2))
    assert_reduced(rows, reference)
    assert {key[3] for key in rows if key[0] == "grad_unreduced"} == {0, 1}
    assert {(key[1], key[3]) for key in rows if key[0] == "actv"} == {(step, m) for step in range(3) for m in (0, 1)}


def named_as_lightning_does(reference):
    """The workload's model is an attribute of the LightningModule."""
    for step in reference:
        micro_steps = [table for tables in step.unreduced.values() for table in tables]
        for table in [*step.tables.values(), *micro_steps]:
            for name in list(table):
                table[f"model.{name}"] = table.pop(name)
    return reference
