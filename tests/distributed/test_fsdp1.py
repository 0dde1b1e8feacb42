"""FullyShardedDataParallel (FSDP1)."""

import pytest

from msmon.merging import merge_ranks

from .proof import assert_reduced, assert_unchanged, coverage, merged_rows, prove_claims, rank_rows, run_info
from .workload import reference_training

VARIANTS = {
    "fsdp1": {},
    "fsdp1 one flat parameter": {"nested": False},
    "fsdp1 SHARD_GRAD_OP": {"strategy": "SHARD_GRAD_OP"},
    "fsdp1 NO_SHARD": {"strategy": "NO_SHARD"},
    "fsdp1 no_sync": {"grad_acc_steps": 2},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_proof(ranks, proof, tmp_path, name):
    variant = VARIANTS[name]
    answers = ranks.run("fsdp1", "proof", output=str(tmp_path), **variant)
    reference = reference_training(grad_acc_steps=variant.get("grad_acc_steps", 1))
    prove_claims(proof, name, answers, tmp_path, reference)
    infos = [run_info(tmp_path / "all", rank) for rank in (0, 1)]
    sharded = name != "fsdp1 NO_SHARD"
    for first, second in zip(infos[0]["tensors"], infos[1]["tensors"], strict=True):
        assert first["shape"] == second["shape"]
        held = first["local_numel"] + second["local_numel"]
        assert held == first["numel"] * (1 if sharded else 2)
    for rank in (0, 1):
        assert infos[rank]["engine"] == "fsdp1"
        assert coverage(tmp_path / "all", rank)["missing"] == []
        assert bool(list((tmp_path / "all").glob(f"*rank{rank}-*/partials/steps_2-2.bin"))) == sharded


def test_shape_column_is_of_the_local_part(ranks, tmp_path):
    ranks.run("fsdp1", "proof", output=str(tmp_path), config={"ops": ["norm", "shape", "dtype"]})
    for rank in (0, 1):
        run_dir = next((tmp_path / "all").glob(f"*rank{rank}-*"))
        lines = (run_dir / "grad_reduced_0-0.csv").read_text().splitlines()[1:]
        found = {line.split(",")[1]: line.split(",", 4)[4] for line in lines}
        held = [entry for entry in run_info(tmp_path / "all", rank)["tensors"] if entry["local_numel"]]
        assert found == {entry["name"]: f"[{entry['local_numel']}],torch.float32" for entry in held}


def test_mixed_precision(ranks, proof, tmp_path):
    answers = ranks.run("fsdp1", "proof", output=str(tmp_path), bf16=True)
    prove_claims(proof, "fsdp1 bf16", answers, tmp_path, reference_training(), rtol=0.1, atol=0.05)


def test_every_micro_step_reduced(ranks, tmp_path):
    answers = ranks.run(
        "fsdp1",
        "proof",
        output=str(tmp_path),
        grad_acc_steps=2,
        no_sync=False,
        config={"monitor_mbs_grad": True},
    )
    assert_unchanged(answers)
    assert_reduced(merged_rows(tmp_path / "all"), reference_training(grad_acc_steps=2))
    notes = coverage(tmp_path / "all", 0)["notes"]
    assert any("after every micro-step" in note for note in notes)
    assert any("monitor_mbs_grad: not with fsdp1" in note for note in notes)
    assert {key[3] for key in rank_rows(tmp_path / "all", 0) if key[0] == "grad_unreduced"} == {0}


def test_ignored_modules_are_the_ranks_own(ranks, tmp_path):
    answers = ranks.run("fsdp1", "proof", output=str(tmp_path), ignored=True)
    assert_unchanged(answers)
    rows = [rank_rows(tmp_path / "all", rank) for rank in (0, 1)]
    key = ("grad_reduced", 0, "norm.weight", 0)
    assert rows[0][key] == rows[0][("grad_unreduced", *key[1:])]
    assert rows[0][key] != rows[1][key]


def test_flat_parameters_are_refused(ranks, tmp_path):
    for message in ranks.run("fsdp1", "refusal", output=str(tmp_path)):
        assert "use_orig_params=True" in message
        assert "set_monitor" in message


def test_an_unknown_version_says_what_is_missing(ranks, tmp_path):
    answers = ranks.run("fsdp1", "unknown_version", output=str(tmp_path))
    assert_unchanged(answers)
    missing = coverage(tmp_path / "all", 1)["missing"]
    assert {entry["data_type"] for entry in missing} == {"grad_unreduced"}
    assert all("are not known" in entry["reason"] for entry in missing)
    assert {key[0] for key in rank_rows(tmp_path / "all", 1)} >= {"grad_reduced", "exp_avg", "param_updated"}
    # Nobody knows which parts these are, so nothing is called whole.
    report = merge_ranks(tmp_path / "all")
    assert report.rows == 0
    assert report.incomplete
