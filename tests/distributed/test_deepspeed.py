"""DeepSpeed, ZeRO 0 to 3."""

import pytest
import torch

from .proof import assert_rows, coverage, merged_rows, prove_claims, rank_rows, run_info
from .workload import STEPS, batch, loss_of, make_model, reference_training

# DeepSpeed clips unless it is told not to.
CLIP = 1.0
VARIANTS = {
    "zero 0": {"stage": 0, "grad_acc_steps": 2, "each": True},
    "zero 1": {"stage": 1, "grad_acc_steps": 2, "given": "inner"},
    "zero 1 overlap": {"stage": 1, "grad_acc_steps": 2, "each": True, "zero": {"overlap_comm": True}},
    "zero 1 CPU offload": {"stage": 1, "grad_acc_steps": 2, "offload": True},
    "zero 2": {"stage": 2, "grad_acc_steps": 2, "given": "optimizer"},
    "zero 2 overlap, small buckets": {
        "stage": 2,
        "grad_acc_steps": 2,
        "each": True,
        "zero": {"overlap_comm": True, "reduce_bucket_size": 100},
    },
    "zero 2 round robin": {"stage": 2, "zero": {"round_robin_gradients": True}},
    "zero 2 CPU offload": {"stage": 2, "grad_acc_steps": 2, "offload": True},
    "zero 3": {"stage": 3, "grad_acc_steps": 2, "each": True},
    "zero 3 CPU offload": {"stage": 3, "grad_acc_steps": 2, "offload": True, "zero": {"sub_group_size": 100}},
    "zero 3 no clipping": {"stage": 3, "gradient_clipping": 0.0},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_proof(ranks, proof, tmp_path, name):
    variant = dict(VARIANTS[name])
    each = variant.pop("each", False)
    answers = ranks.run("deepspeed_zero", "proof", output=str(tmp_path), config={"monitor_mbs_grad": each}, **variant)
    clip = CLIP if variant.get("gradient_clipping") is None else None
    reference = reference_training(grad_acc_steps=variant.get("grad_acc_steps", 1), clip=clip)
    prove_claims(proof, f"deepspeed {name}", answers, tmp_path, reference, each_micro_step=each)
    for rank in (0, 1):
        assert run_info(tmp_path / "all", rank)["engine"] == f"deepspeed_zero{variant['stage']}"
        found = coverage(tmp_path / "all", rank)
        assert (found["missing"], found["notes"], found["skipped_steps"]) == ([], [], [])
    entries = {entry["name"]: entry for entry in run_info(tmp_path / "all", 0)["tensors"]}
    assert entries["fc1.weight"]["shape"] == [33, 8]
    assert bool(entries["fc1.weight"]["shards"]) == (variant["stage"] > 0)


HALF = {
    "zero 0 bf16": {"stage": 0, "bf16": {"enabled": True}},
    "zero 0 fp16": {"stage": 0, "fp16": {"enabled": True, "loss_scale": 64}},
    "zero 1 bf16": {"stage": 1, "bf16": {"enabled": True}},
    "zero 1 bf16, sums in fp32": {"stage": 1, "bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}},
    "zero 1 bf16, sums in fp32, offload": {
        "stage": 1,
        "offload": True,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
    },
    "zero 1 fp16": {"stage": 1, "fp16": {"enabled": True, "loss_scale": 64}},
    "zero 2 bf16, sums in fp32": {"stage": 2, "bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}},
    "zero 2 fp16": {"stage": 2, "fp16": {"enabled": True, "initial_scale_power": 8}},
    "zero 3 bf16": {"stage": 3, "bf16": {"enabled": True}},
    "zero 3 fp16": {"stage": 3, "fp16": {"enabled": True, "initial_scale_power": 8}},
}


@pytest.mark.parametrize("name", HALF)
def test_half_precision(ranks, tmp_path, name):
    variant = HALF[name]
    first, second = ranks.run(
        "deepspeed_zero", "half_precision", output=str(tmp_path), steps=STEPS, grad_acc_steps=2, **variant
    )
    found = merged_rows(tmp_path)
    for number, step in enumerate(first["steps"]):
        # Weights and moments: DeepSpeed's own, to the last digit.
        assert_rows(found, "param_origin", number, _tensors(step["weights"]), rtol=1e-6)
        assert_rows(found, "exp_avg", number, _tensors(step["moments"]), rtol=1e-6)
        # What was consumed, from the change of the moments: unscaled and clipped.
        assert_rows(found, "grad_reduced", number, _tensors(step["gradients"]), rtol=1e-3, atol=2e-3)
        assert not step["skipped"]
    assert_unreduced_at_first(tmp_path, torch.float16 if "fp16" in variant else torch.bfloat16)
    for rank, answer in enumerate((first, second)):
        assert answer["hooks"] == 0
        assert (coverage(tmp_path, rank)["missing"], coverage(tmp_path, rank)["notes"]) == ([], [])


def _tensors(arrays):
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def assert_unreduced_at_first(output_dir, dtype):
    """At the first step all weights are known: the gradient of one process in that precision."""
    for rank in (0, 1):
        model = make_model().to(dtype)
        for micro_step in range(2):
            (loss_of(model(batch(0, rank, micro_step).to(dtype))) / 2).backward()
        expected = {name: parameter.grad for name, parameter in model.named_parameters()}
        assert_rows(rank_rows(output_dir, rank), "grad_unreduced", 0, expected, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_skipped_steps(ranks, tmp_path, stage):
    """A loss scale that is far too high: DeepSpeed skips steps until it is low enough."""
    fp16 = {"enabled": True, "initial_scale_power": 20, "hysteresis": 1, "loss_scale_window": 100}
    first, _ = ranks.run("deepspeed_zero", "half_precision", output=str(tmp_path), steps=8, stage=stage, fp16=fp16)
    skipped = [number for number, step in enumerate(first["steps"]) if step["skipped"]]
    if stage > 0:
        assert 0 < len(skipped) < 8
    found = merged_rows(tmp_path)
    for rank in (0, 1):
        assert coverage(tmp_path, rank)["skipped_steps"] == skipped
    for number, step in enumerate(first["steps"]):
        # No step is lost, and nothing was consumed in a skipped one.
        assert_rows(found, "param_origin", number, _tensors(step["weights"]), rtol=1e-6)
        assert_rows(found, "grad_reduced", number, _tensors(step["gradients"]), rtol=1e-3, atol=2e-3)
        assert ("grad_unreduced", number, "fc1.weight", 0) in rank_rows(tmp_path, 0)


def test_frozen_parameter(ranks, tmp_path):
    for stage in (2, 3):
        folder = tmp_path / str(stage)
        ranks.run("deepspeed_zero", "proof", output=str(folder), stage=stage, frozen="fc1.weight")
        found = coverage(folder / "all", 0)
        assert found["missing"] == []
        assert {(entry["name"], entry["kind"]) for entry in found["apart"]} == {("fc1.weight", "frozen")}


@pytest.mark.parametrize(("stage", "inner_optimizer"), [(1, False), (2, True), (3, False)])
def test_below_accelerate(ranks, proof, tmp_path, stage, inner_optimizer):
    variant = {"stage": stage, "inner_optimizer": inner_optimizer, "grad_acc_steps": 2}
    answers = ranks.run("accelerate_deepspeed", "proof", output=str(tmp_path), **variant)
    reference = reference_training(grad_acc_steps=2, clip=CLIP)
    prove_claims(proof, f"accelerate, deepspeed zero {stage}", answers, tmp_path, reference)
    assert run_info(tmp_path / "all", 0)["engine"] == f"deepspeed_zero{stage}"


def test_optimizer_of_an_unknown_kind(ranks, tmp_path):
    """Said clearly; gradients before the reduction and everything else are recorded."""
    ranks.run("deepspeed_zero", "unknown_optimizer", output=str(tmp_path), stage=2)
    for rank in (0, 1):
        found = coverage(tmp_path, rank)
        missing = {entry["data_type"] for entry in found["missing"]}
        assert missing == {"grad_reduced", "exp_avg", "exp_avg_sq", "param_origin", "param_updated"}
        assert [note for note in found["notes"] if note.startswith("DeepSpeed 0.") and "where _Renamed keeps" in note]
    reference = reference_training(clip=CLIP)
    for step in range(STEPS):
        for rank in (0, 1):
            own = reference[step].unreduced[rank][-1]
            assert_rows(rank_rows(tmp_path, rank), "grad_unreduced", step, own)


def test_current_gradients(ranks):
    """In the middle of a step: what the optimizer will be given, as far as it stands."""
    for stage in (0, 1, 2, 3):
        first, second = ranks.run("deepspeed_zero", "current_gradients", stage=stage)
        whole = reference_training(steps=1)[0].tables["grad_reduced"]["fc2.weight"].norm().item()
        parts = [answer.get("fc2.weight", 0.0) for answer in (first, second)]
        expected = parts[0] if stage == 0 else (parts[0] ** 2 + parts[1] ** 2) ** 0.5
        assert expected == pytest.approx(whole, rel=1e-5)
