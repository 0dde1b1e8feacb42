"""Meshes of two dimensions with two ranks in each."""

import pytest

from .launcher import Ranks
from .proof import (
    assert_all_off,
    assert_other_ranks_silent,
    assert_reduced,
    assert_rows,
    assert_unchanged,
    assert_unreduced,
    assert_verified,
    merged_rows,
    rank_rows,
)
from .tensor_parallel import PLAN
from .workload import reference_training


@pytest.fixture(scope="module")
def four_ranks():
    with Ranks(4) as ranks:
        yield ranks


def test_fsdp2_replicas_of_shards(four_ranks, proof, tmp_path):
    name = "fsdp2 mesh 2x2 (replicas of shards)"
    answers = four_ranks.run("fsdp2", "proof", output=str(tmp_path), mesh=(2, 2), names=("replicate", "shard"))
    reference = reference_training(world_size=4)
    proof.check(name, "a", assert_reduced, merged_rows(tmp_path / "all"), reference)
    proof.check(name, "b", assert_unreduced, tmp_path / "all", reference)
    proof.check(name, "c", assert_unchanged, answers)
    proof.check(name, "d", assert_other_ranks_silent, tmp_path / "first")
    proof.check(name, "e", assert_all_off, answers)
    proof.check(name, "f", assert_verified, tmp_path / "all")


def test_fsdp2_of_tensor_parallel(four_ranks, proof, tmp_path):
    name = "fsdp2 mesh 2x2 (tensor parallel)"
    answers = four_ranks.run("fsdp2", "proof", output=str(tmp_path), mesh=(2, 2), names=("shard", "tensor"))
    reference = reference_training(world_size=2)
    proof.check(name, "a", assert_reduced, merged_rows(tmp_path / "all"), reference)
    proof.check(name, "b", assert_parts_of_own_gradients, tmp_path / "all", reference)
    proof.check(name, "c", assert_unchanged, answers)
    proof.check(name, "d", assert_other_ranks_silent, tmp_path / "first")
    proof.check(name, "e", assert_all_off, answers)
    proof.check(name, "f", assert_verified, tmp_path / "all")


def assert_parts_of_own_gradients(output_dir, reference):
    """A gradient before the reduce-scatter is whole but for the tensor-parallel split."""
    for step, expected in enumerate(reference):
        for rank in range(4):
            own, part = expected.unreduced[rank // 2][-1], rank % 2
            rows = rank_rows(output_dir, rank)
            local = {name: _local(name, tensor, part) for name, tensor in own.items()}
            assert_rows(rows, "grad_unreduced", step, local)


def _local(name, tensor, part):
    layer, kind = name.split(".")
    if layer not in PLAN or (layer, kind) == ("fc2", "bias"):
        return tensor
    return tensor.chunk(2, dim=0 if layer == "fc1" else 1)[part]
