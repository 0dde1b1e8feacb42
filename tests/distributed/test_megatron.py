"""Megatron-core, data parallel: DistributedDataParallel and its optimizers."""

from importlib.metadata import version

import pytest
import torch
from packaging.version import Version

from .proof import assert_rows, coverage, merged_rows, prove_claims, rank_rows, run_info
from .workload import STEPS, batch, loss_of, make_model, make_optimizer, reference_training

installed = Version(version("megatron-core"))
needs_split = pytest.mark.skipif(installed < Version("0.9"), reason="its distributed optimizer needs Apex")
needs_groups = pytest.mark.skipif(installed < Version("0.9"), reason="it has no groups of buckets")

# Megatron clips unless it is told not to.
CLIP = 1.0
OVERLAP = {"sync_last": True, "overlap_grad_reduce": True, "bucket_size": 100}
VARIANTS = {
    "fp32": {"grad_acc_steps": 2},
    "fp32 each micro-step, dp_group": {"grad_acc_steps": 2, "each": True, "dp_group": True},
    "fp32 overlap": {"grad_acc_steps": 2, **OVERLAP},
    "fp32 overlap, each micro-step": {"grad_acc_steps": 2, "each": True, **OVERLAP},
    "distributed optimizer": {"split": True, "grad_acc_steps": 2},
    "distributed optimizer, overlap, each micro-step": {"split": True, "grad_acc_steps": 2, "each": True, **OVERLAP},
    "distributed optimizer, given the inner model": {"split": True, "given": "inside"},
    "average in collective": {"average_in_collective": True},
}


def _cases(variants):
    return [pytest.param(name, marks=needs_split if one.get("split") else ()) for name, one in variants.items()]


@pytest.mark.parametrize("name", _cases(VARIANTS))
def test_proof(megatron_ranks, proof, tmp_path, name):
    variant = dict(VARIANTS[name])
    each = variant.pop("each", False)
    config = {"monitor_mbs_grad": each}
    answers = megatron_ranks.run("megatron_core", "proof", output=str(tmp_path), config=config, **variant)
    reference = reference_training(grad_acc_steps=variant.get("grad_acc_steps", 1), clip=CLIP)
    prove_claims(proof, f"megatron {installed} {name}", answers, tmp_path, reference, each_micro_step=each)
    for rank in (0, 1):
        assert run_info(tmp_path / "all", rank)["engine"] == "megatron"
        found = coverage(tmp_path / "all", rank)
        assert (found["missing"], found["notes"], found["skipped_steps"]) == ([], [], [])
    if variant.get("split") and "bucket_size" in variant:
        cut = [entry for entry in run_info(tmp_path / "all", 0)["tensors"] if 0 < entry["local_numel"] < entry["numel"]]
        assert {entry["name"] for entry in cut} == {"fc1.weight", "fc2.weight"}
    has_rows = any(key[0] == "grad_reduced" for key in rank_rows(tmp_path / "all", 1))
    assert has_rows != variant.get("dp_group", False)


HALF = {
    "bf16": {"precision": "bfloat16"},
    "bf16 reduced in bf16": {"precision": "bfloat16", "reduce_in_fp32": False},
    "bf16 distributed optimizer, overlap": {"precision": "bfloat16", "split": True, **OVERLAP},
    "fp16": {"precision": "float16", "optimizer": {"loss_scale": 64.0}},
    "fp16 distributed optimizer": {"precision": "float16", "split": True, "optimizer": {"loss_scale": 64.0}},
}


@pytest.mark.parametrize("name", _cases(HALF))
def test_half_precision(megatron_ranks, proof, tmp_path, name):
    variant = HALF[name]
    answers = megatron_ranks.run("megatron_core", "proof", output=str(tmp_path), grad_acc_steps=2, **variant)
    reference = mixed_reference(getattr(torch, variant["precision"]), variant.get("optimizer", {}).get("loss_scale", 1))
    loose = not variant.get("reduce_in_fp32", True)
    tolerances = {"rtol": 5e-2, "atol": 5e-2} if loose else {"rtol": 1e-4, "atol": 5e-3}
    prove_claims(proof, f"megatron {installed} {name}", answers, tmp_path, reference, **tolerances)


def mixed_reference(dtype, loss_scale):
    """The training in one process: a model in half precision, sums and weights in single precision."""
    model, masters = make_model().to(dtype), make_model().to(dtype).float()
    optimizer = make_optimizer(masters.parameters())
    recorded = reference_training(steps=STEPS, grad_acc_steps=2)
    names = [name for name, _ in masters.named_parameters()]
    for step, now in enumerate(recorded):
        sums = {rank: [{n: torch.zeros_like(p) for n, p in masters.named_parameters()}] for rank in (0, 1)}
        for rank in (0, 1):
            for micro_step in range(2):
                model.zero_grad()
                loss = loss_of(model(batch(step, rank, micro_step).to(dtype))) / 2
                (loss * loss_scale).backward()
                for name, parameter in model.named_parameters():
                    sums[rank][0][name] += parameter.grad.float() / loss_scale
        now.unreduced.clear()
        now.unreduced.update(sums)
        for name, master in masters.named_parameters():
            master.grad = (sums[0][0][name] + sums[1][0][name]) / 2
        torch.nn.utils.clip_grad_norm_(masters.parameters(), CLIP)
        now.tables["grad_reduced"] = {n: p.grad.clone() for n, p in masters.named_parameters()}
        now.tables["param_origin"] = {n: p.detach().clone() for n, p in masters.named_parameters()}
        for moment in ("exp_avg", "exp_avg_sq"):
            states = {n: optimizer.state[p] for n, p in masters.named_parameters()}
            now.tables[moment] = {n: states[n][moment].clone() for n in names if states[n]}
        optimizer.step()
        now.tables["param_updated"] = {n: p.detach().clone() for n, p in masters.named_parameters()}
        for parameter, master in zip(model.parameters(), masters.parameters(), strict=True):
            parameter.data.copy_(master)
    return recorded


@pytest.mark.parametrize("split", [False, pytest.param(True, marks=needs_split)])
def test_skipped_steps(megatron_ranks, tmp_path, split):
    """A loss scale that is far too high: Megatron skips steps until it is low enough."""
    scaling = {"initial_loss_scale": 2.0**20, "min_loss_scale": 1.0, "loss_scale_window": 1000, "hysteresis": 1}
    first, _ = megatron_ranks.run(
        "megatron_core", "skipping", output=str(tmp_path), steps=8, precision="float16", split=split, optimizer=scaling
    )
    skipped = [number for number, done in enumerate(first) if not done]
    assert 0 < len(skipped) < 8
    found = merged_rows(tmp_path)
    steps = {
        data_type: {key[1] for key in found if key[0] == data_type} for data_type in ("param_origin", "grad_reduced")
    }
    assert steps["param_origin"] == set(range(8))
    assert steps["grad_reduced"] == set(range(8)) - set(skipped)
    for rank in (0, 1):
        assert coverage(tmp_path, rank)["skipped_steps"] == skipped
        assert {key[1] for key in rank_rows(tmp_path, rank) if key[0] == "grad_unreduced"} == set(range(8))
    # The scale halves from step to step; what is recorded does not.
    applied = [number for number in range(8) if number not in skipped]
    norms = [found["grad_reduced", number, "fc2.weight", 0]["norm"] for number in applied]
    assert max(norms) <= CLIP
    for number in skipped:
        before, after = (found["param_origin", at, "fc2.weight", 0] for at in (number, number + 1))
        assert before == after


@needs_groups
def test_parameters_of_no_bucket(megatron_ranks, tmp_path):
    """A version whose buckets have another form: said clearly, and everything else is recorded."""
    megatron_ranks.run("megatron_core", "unknown_buckets", output=str(tmp_path))
    found = coverage(tmp_path, 0)
    # There are no moments yet.
    missing = {entry["data_type"] for entry in found["missing"]} - {"exp_avg", "exp_avg_sq"}
    assert missing == {"grad_unreduced"}
    assert [note for note in found["notes"] if "grad_unreduced is missing of 8 parameters" in note]
    reference = reference_training(steps=1, clip=CLIP)
    assert_rows(merged_rows(tmp_path), "grad_reduced", 0, reference[0].tables["grad_reduced"])
