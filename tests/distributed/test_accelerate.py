"""accelerate without DeepSpeed."""

import pytest

from .proof import prove_claims, run_info
from .workload import reference_training

VARIANTS = {
    "accelerate": {},
    "accelerate accumulate": {"grad_acc_steps": 2},
    "accelerate accumulate, inner optimizer": {"grad_acc_steps": 2, "inner_optimizer": True},
    "accelerate inner model and optimizer": {"inner_model": True, "inner_optimizer": True},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_proof(ranks, proof, tmp_path, name):
    variant = VARIANTS[name]
    answers = ranks.run("accelerate_engine", "proof", output=str(tmp_path), **variant)
    reference = reference_training(grad_acc_steps=variant.get("grad_acc_steps", 1))
    prove_claims(proof, name, answers, tmp_path, reference)
    assert run_info(tmp_path / "all", 0)["engine"] == ("plain" if variant.get("inner_model") else "ddp")
