"""Optimizer state that is no moment: each rank's part, and what merging makes of the parts."""

import json

import pytest
import torch

from msmon.merging import merge_ranks

from .proof import rank_rows
from .workload import STEPS, batch, loss_of, make_model

LAST = STEPS - 1


def momenta() -> dict[str, float]:
    """Of the training on the batches of both ranks, before its last step."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(LAST):
        optimizer.zero_grad()
        loss_of(model(torch.cat([batch(step, 0), batch(step, 1)]))).backward()
        optimizer.step()
    return {
        f"{name}.momentum_buffer": float(optimizer.state[parameter]["momentum_buffer"].norm())
        for name, parameter in model.named_parameters()
    }


@pytest.mark.parametrize("engine", ["ddp", "fsdp1", "fsdp2"])
def test_parts(ranks, tmp_path, engine):
    answers = ranks.run("optimizer_states", "kept", engine=engine, output=str(tmp_path))
    for rank, kept in enumerate(answers):
        rows = rank_rows(tmp_path, rank)
        found = {key[2]: row["norm"] for key, row in rows.items() if key[:2] == ("state", LAST)}
        assert found == pytest.approx(kept, rel=1e-6)
    report = merge_ranks(tmp_path)
    assert report.incomplete == {}
    (merged,) = report.run_dirs
    assert json.loads((merged / "coverage.json").read_text())["missing"] == []
    rows = rank_rows(tmp_path / "merged", 0)
    found = {key[2]: row["norm"] for key, row in rows.items() if key[:2] == ("state", LAST)}
    whole = momenta()
    if engine == "ddp":
        # The same on every rank. Else nobody knows how such a tensor is cut.
        whole |= {f"{name.removesuffix('momentum_buffer')}factor": 4000**0.5 for name in whole}
    assert found == pytest.approx(whole, rel=1e-5)
