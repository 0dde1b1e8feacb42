"""Copies of models that an engine trains, while they are monitored: as without a monitor, and they record nothing."""

import pytest

from .proof import rank_rows

ENGINES = {
    "ddp": {"engine": "ddp"},
    "fsdp1": {"engine": "fsdp1"},
    "fsdp2": {"engine": "fsdp2"},
    "tensor parallel": {"engine": "tensor_parallel"},
    "zero 1": {"engine": "deepspeed_zero", "stage": 1},
    "zero 3": {"engine": "deepspeed_zero", "stage": 3},
}


@pytest.mark.parametrize("name", ENGINES)
def test_copies(ranks, tmp_path, name):
    answers = ranks.run("copies", "copied", output=str(tmp_path), **ENGINES[name])
    for rank, answer in enumerate(answers):
        assert answer["watched"] == answer["alone"]
        assert {step for _, step, *_ in rank_rows(tmp_path, rank)} == {0, 1}
