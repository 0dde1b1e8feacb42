"""DistributedDataParallel."""

import pytest

from .proof import assert_reduced, coverage, prove_claims, rank_rows, run_info
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
    prove_claims(proof, name, answers, tmp_path, reference, each_micro_step=bool(variant.get("config")))
    for rank in (0, 1):
        # Not sharded: every rank holds the whole.
        assert_reduced(rank_rows(tmp_path / "all", rank), reference)
        assert run_info(tmp_path / "all", rank)["engine"] == "ddp"
        assert coverage(tmp_path / "all", rank)["missing"] == []
    assert not list(tmp_path.rglob("partials"))
