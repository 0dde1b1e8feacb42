"""Whatever fails inside the monitor on whichever rank: the ranks train on, bit for bit the same, and nobody hangs."""

import os

import pytest

SEEDS = int(os.environ.get("MSMON_FAULT_SEEDS", "3"))
ENGINES = {
    "ddp": {"engine": "ddp", "grad_acc_steps": 2},
    "fsdp1": {"engine": "fsdp1", "grad_acc_steps": 2},
    "fsdp2": {"engine": "fsdp2", "grad_acc_steps": 2},
    "tensor parallel": {"engine": "tensor_parallel"},
    **{f"zero {n}": {"engine": "deepspeed_zero", "stage": n, "grad_acc_steps": 2} for n in range(4)},
}


@pytest.mark.parametrize("name", ENGINES)
def test_random_calls_fail(ranks, tmp_path, name):
    answers = ranks.run("faulty", "trained", output=str(tmp_path), seeds=list(range(SEEDS)), **ENGINES[name])
    for answer in answers:
        for outcome, raised, errors in answer["monitored"]:
            assert outcome == answer["alone"], raised
            assert len(errors) == len(set(errors)), errors
            assert bool(errors) == bool(raised), (errors, raised)
    assert any(raised for answer in answers for _, raised, _ in answer["monitored"])
