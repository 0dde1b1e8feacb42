"""FSDP2 (fully_shard)."""

import pytest

from .proof import assert_reduced, assert_unchanged, coverage, merged_rows, prove_claims, run_info
from .workload import reference_training

VARIANTS = {
    "fsdp2": {},
    "fsdp2 gradient sync off": {"grad_acc_steps": 2},
    "fsdp2 reshard_after_forward=False": {"reshard": False},
    "fsdp2 mesh 2x1 (replicas)": {"mesh": (2, 1), "names": ("replicate", "shard")},
    "fsdp2 mesh 1x2 (shards)": {"mesh": (1, 2), "names": ("replicate", "shard")},
    "fsdp2 CPU offload": {"offload": True},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_proof(ranks, proof, tmp_path, name):
    variant = VARIANTS[name]
    answers = ranks.run("fsdp2", "proof", output=str(tmp_path), **variant)
    reference = reference_training(grad_acc_steps=variant.get("grad_acc_steps", 1))
    prove_claims(proof, name, answers, tmp_path, reference)
    for rank in (0, 1):
        info = run_info(tmp_path / "all", rank)
        assert info["engine"] == "fsdp2"
        assert coverage(tmp_path / "all", rank)["missing"] == []
    if variant.get("mesh") != (2, 1):
        # One element: the second rank holds nothing of it, and has no row.
        bias = next(entry for entry in info["tensors"] if entry["name"] == "head.bias")
        assert (bias["shape"], bias["numel"], bias["local_numel"]) == ([1], 1, 0)


def test_mixed_precision(ranks, proof, tmp_path):
    answers = ranks.run("fsdp2", "proof", output=str(tmp_path), bf16=True, grad_acc_steps=2)
    reference = reference_training(grad_acc_steps=2)
    prove_claims(proof, "fsdp2 bf16, gradient sync off", answers, tmp_path, reference, rtol=0.1, atol=0.05)


def test_every_micro_step_reduced(ranks, tmp_path):
    answers = ranks.run("fsdp2", "proof", output=str(tmp_path), grad_acc_steps=2, sync_each=True)
    assert_unchanged(answers)
    assert_reduced(merged_rows(tmp_path / "all"), reference_training(grad_acc_steps=2))
    assert any("after every micro-step" in note for note in coverage(tmp_path / "all", 0)["notes"])


def test_an_unknown_version_says_what_is_missing(ranks, tmp_path):
    answers = ranks.run("fsdp2", "unknown_version", output=str(tmp_path))
    assert_unchanged(answers)
    missing = coverage(tmp_path / "all", 0)["missing"]
    assert {entry["data_type"] for entry in missing} == {"grad_unreduced"}
    assert all("at a place that is not known" in entry["reason"] for entry in missing)
    assert_reduced(merged_rows(tmp_path / "all"), reference_training())
