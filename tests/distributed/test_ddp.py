"""DistributedDataParallel."""

import json

import pytest

from .proof import (
    assert_reduced,
    assert_unchanged,
    assert_unreduced,
    coverage,
    merged_rows,
    prove_claims,
    rank_rows,
    run_info,
)
from .workload import reference_training

VARIANTS = {
    "ddp": {},
    "ddp static_graph": {"static_graph": True},
    "ddp gradient_as_bucket_view": {"gradient_as_bucket_view": True},
    "ddp find_unused_parameters": {"find_unused_parameters": True},
    "ddp comm hook": {"comm_hook": True},
    "ddp no_sync": {"grad_acc_steps": 2},
    "ddp given by its inner module": {"inner": True},
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
        assert run_info(tmp_path / "all", rank)["engine"] == ("plain" if variant.get("inner") else "ddp")
        assert coverage(tmp_path / "all", rank)["missing"] == []
    assert not list(tmp_path.rglob("partials"))


def test_gradients_reduced_by_hand(ranks, proof, tmp_path):
    answers = ranks.run("ddp", "proof_by_hand", output=str(tmp_path))
    reference = reference_training()
    for expected in reference:
        for rank, (gradients,) in expected.unreduced.items():
            expected.unreduced[rank] = [{name: gradient / 2 for name, gradient in gradients.items()}]
    prove_claims(proof, "all_reduce by hand", answers, tmp_path, reference)


def test_dp_group_writes_once(ranks, tmp_path):
    answers = ranks.run("ddp", "proof", output=str(tmp_path / "0"), dp_group=True)
    assert_unchanged(answers)
    reference = reference_training()
    first, second = (rank_rows(tmp_path / "0" / "all", rank) for rank in (0, 1))
    assert_reduced(first, reference)
    assert {key[0] for key in first} - {key[0] for key in second} == {"grad_reduced"}
    assert_reduced(merged_rows(tmp_path / "0" / "all"), reference)
    # The first rank has no monitor: the first that has one writes.
    ranks.run("ddp", "proof", output=str(tmp_path / "1"), dp_group=True, config={"module_ranks": [1]})
    assert_reduced(rank_rows(tmp_path / "1" / "all", 1), reference)


def test_who_shares_a_parameter(ranks):
    """A communication hook may do something else than take the mean, or let the ranks go different ways."""
    equal = {"equal_over": {"data": "0:2"}}
    mean = {**equal, "summed_over": {"data": "0:2"}, "divided_by": 2}
    assert ranks.run("ddp", "layouts")[0] == {
        "": mean,
        "allreduce_hook": mean,
        "fp16_compress_hook": {**mean, "dtype": "torch.float16"},
        "powerSGD_hook": equal,
        "post_localSGD_hook": None,
    }


def test_shorter_accumulation_than_announced(ranks, tmp_path):
    """The last accumulation of an epoch often is; DDP knows which backward it reduces."""
    answers = ranks.run("ddp", "proof", output=str(tmp_path), grad_acc_steps=2, announced=3)
    assert_unchanged(answers)
    assert_unreduced(tmp_path / "all", reference_training(grad_acc_steps=2))
    assert coverage(tmp_path / "all", 0)["notes"] == []


def test_metrics_between_backward_and_step(ranks, tmp_path):
    answers = ranks.run("ddp", "metrics_in_the_middle", output=str(tmp_path))
    for rank, answer in enumerate(answers):
        for kind in ("reduced", "unreduced"):
            expected = {f"0:{n}/rank{rank}/grad_{kind}": norm for n, norm in answer[f"expected_{kind}"].items()}
            assert answer[kind] == pytest.approx(expected)
        assert f"0:fc1.output:0/rank{rank}/actv" in answer["actv"]
        assert f"0:fc1.output:0/rank{rank}/actv_grad" in answer["actv_grad"]
    assert answers[0]["expected_unreduced"] != answers[1]["expected_unreduced"]


def test_process_group_gives_the_pipeline_stage(ranks, tmp_path):
    ranks.run("ddp", "pipeline_stages", output=str(tmp_path))
    for rank in (0, 1):
        info = run_info(tmp_path, rank)
        assert (info["pp_stage"], info["parallel"]["pipeline"]) == (rank, [0, 1])
        anomalies = json.loads((tmp_path / f"anomaly_detected/rank{rank}/anomaly.json").read_text())
        assert anomalies
        assert {(one["pp_stage"], tuple(one["group_mates"])) for one in anomalies.values()} == {(rank, (0, 1))}
