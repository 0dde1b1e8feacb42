"""Layers that are unfrozen later have rows from then on, whatever the engine."""

import pytest
import torch

from .proof import assert_rows, coverage, merged_rows, rank_rows
from .unfrozen import ADDED, UNFROZEN_AT
from .workload import STEPS


@pytest.mark.parametrize("engine", ["ddp", "fsdp1", "fsdp2", "zero0"])
def test_unfrozen(ranks, tmp_path, engine):
    answers = ranks.run("unfrozen", "trained", engine=engine, output=str(tmp_path))
    found = merged_rows(tmp_path)
    for rank, answer in enumerate(answers):
        assert answer["monitored"] == answer["alone"]
        own = rank_rows(tmp_path, rank)
        for step in range(STEPS):
            expected = {
                kind: {name: torch.tensor(values) for name, values in gradients.items()}
                for kind, gradients in answer["reference"][step].items()
            }
            assert_rows(found, "grad_reduced", step, expected["whole"], rtol=1e-4)
            assert_rows(own, "grad_unreduced", step, expected["own"], rtol=1e-4)
            for data_type in ("param_origin", "param_updated"):
                names = {key[2] for key in found if key[:2] == (data_type, step)}
                assert names == set(expected["whole"]), (data_type, step)
        moments = {key[2] for key in found if key[0] == "exp_avg" and key[1] > UNFROZEN_AT}
        assert set(ADDED) <= moments
        document = coverage(tmp_path, rank)
        assert document["missing"] == []
        assert document["switched_off"] == []


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_zero_does_not_train(ranks, tmp_path, stage):
    """ZeRO updates what was trained at `deepspeed.initialize`: other gradients are computed and consumed by nobody."""
    answers = ranks.run("unfrozen", "trained", engine=f"zero{stage}", output=str(tmp_path))
    for rank, answer in enumerate(answers):
        assert answer["monitored"] == answer["alone"]
        missing = coverage(tmp_path, rank)["missing"]
        assert {entry["name"] for entry in missing} == {*ADDED}
        assert {entry["reason"] for entry in missing} == {"not in the optimizer that was given"}
        assert not {key[2] for key in rank_rows(tmp_path, rank)} & {*ADDED}
