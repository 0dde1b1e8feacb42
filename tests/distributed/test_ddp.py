"""DistributedDataParallel."""

import pytest

from .proof import (
    assert_all_off,
    assert_other_ranks_silent,
    assert_reduced,
    assert_unchanged,
    assert_unreduced,
    rank_rows,
)
from .workload import reference_training

VARIANTS = {
    "ddp": {},
    "ddp static_graph": {"static_graph": True},
    "ddp gradient_as_bucket_view": {"gradient_as_bucket_view": True},
    "ddp find_unused_parameters": {"find_unused_parameters": True},
    "ddp comm hook": {"comm_hook": True},
    "ddp no_sync": {"grad_acc_steps": 2},
    "ddp no_sync each micro-step": {"grad_acc_steps": 2, "config": {"monitor_mbs_grad": True}},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_proof(ranks, proof, tmp_path, name):
    variant = VARIANTS[name]
    answers = ranks.run("ddp", "proof", output=str(tmp_path), **variant)
    reference = reference_training(grad_acc_steps=variant.get("grad_acc_steps", 1))
    for rank in (0, 1):
        # Not sharded: every rank holds the whole.
        proof.check(name, "a", assert_reduced, rank_rows(tmp_path / "all", rank), reference)
    each = bool(variant.get("config"))
    proof.check(name, "b", assert_unreduced, tmp_path / "all", reference, each_micro_step=each)
    proof.check(name, "c", assert_unchanged, answers)
    proof.check(name, "d", assert_other_ranks_silent, tmp_path / "first")
    proof.check(name, "e", assert_all_off, answers)
