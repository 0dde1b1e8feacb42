"""Tensor parallelism by DTensor."""

from .proof import (
    assert_all_off,
    assert_other_ranks_silent,
    assert_reduced,
    assert_rows,
    assert_unchanged,
    assert_verified,
    coverage,
    merged_rows,
    rank_rows,
    run_info,
)
from .workload import reference_training

SPLIT = {"fc1.weight", "fc1.bias", "fc2.weight"}


def assert_own_gradients(output_dir, merged, reference):
    """(b): parts of one gradient on the ranks; a parameter that is not split has the whole on each."""
    for step, expected in enumerate(reference):
        whole = expected.unreduced[0][-1]
        assert_rows(merged, "grad_unreduced", step, {name: whole[name] for name in SPLIT})
        for rank in (0, 1):
            own = {key: row for key, row in rank_rows(output_dir, rank).items() if key[2] not in SPLIT}
            assert_rows(own, "grad_unreduced", step, {n: t for n, t in whole.items() if n not in SPLIT})


def test_proof(ranks, proof, tmp_path):
    answers = ranks.run("tensor_parallel", "proof", output=str(tmp_path))
    reference = reference_training(world_size=1)
    merged = merged_rows(tmp_path / "all")
    proof.check("tensor parallel", "a", assert_reduced, merged, reference)
    proof.check("tensor parallel", "b", assert_own_gradients, tmp_path / "all", merged, reference)
    proof.check("tensor parallel", "c", assert_unchanged, answers)
    proof.check("tensor parallel", "d", assert_other_ranks_silent, tmp_path / "first")
    proof.check("tensor parallel", "e", assert_all_off, answers)
    proof.check("tensor parallel", "f", assert_verified, tmp_path / "all")
    info = run_info(tmp_path / "all", 1)
    assert info["engine"] == "tensor_parallel"
    shapes = {entry["name"]: (entry["shape"], entry["local_shape"]) for entry in info["tensors"]}
    assert shapes["fc1.weight"] == ([33, 8], [16, 8])
    assert shapes["fc2.bias"] == ([6], [6])


def test_tp_group_writes_once_what_is_not_split(ranks, tmp_path):
    answers = ranks.run("tensor_parallel", "proof", output=str(tmp_path), tp_group=True)
    assert_unchanged(answers)
    first, second = (rank_rows(tmp_path / "all", rank) for rank in (0, 1))
    ours = ("grad_reduced", "exp_avg", "exp_avg_sq", "param_origin", "param_updated")
    assert {key[2] for key in second if key[0] in ours} == SPLIT
    assert {key[2] for key in first if key[0] == "grad_reduced"} > SPLIT
    assert_reduced(merged_rows(tmp_path / "all"), reference_training(world_size=1))


def test_summands_are_not_called_reduced(ranks, tmp_path):
    """With sequence parallelism torch adds the gradient of a replicated weight up inside the optimizer's step."""
    answers = ranks.run("tensor_parallel", "proof", output=str(tmp_path), sequence=True)
    assert_unchanged(answers)
    rows = rank_rows(tmp_path / "all", 0)
    assert {key[2] for key in rows if key[0] == "grad_unreduced"} >= {"norm.weight", "norm.bias"}
    assert not {key[2] for key in rows if key[0] == "grad_reduced"} & {"norm.weight", "norm.bias"}
    reasons = {entry["name"]: entry["reason"] for entry in coverage(tmp_path / "all", 0)["missing"]}
    assert set(reasons) == {"norm.weight", "norm.bias"}
    assert "summand" in reasons["norm.weight"]
