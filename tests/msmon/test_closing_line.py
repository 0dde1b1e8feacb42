"""The last line of a run in the log."""

from __future__ import annotations

import io
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from tqdm.auto import tqdm

from msmon.pytorch import TrainerMon

Line = tuple[int, str]


@pytest.fixture
def closing_line(
    write_config: Callable[..., Path], output_dir: Path, caplog: pytest.LogCaptureFixture
) -> Callable[..., Line]:
    """Level and text of the line after a training; `model` is trained, `config` are its fields."""

    def train(model: nn.Module, steps: int = 3, **config: Any) -> Line:
        caplog.set_level(logging.INFO, "msmon")
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        with TrainerMon(str(write_config(**config)), params_have_main_grad=False) as monitor:
            monitor.set_monitor(model, 1, optimizer)
            for _ in range(steps):
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        said = [record for record in caplog.records if record.getMessage().startswith("msmon: ")]
        assert said == caplog.records[-1:]
        text = re.sub(r"; files in .*-rank0-[0-9a-f]{8}$", "; files in RUN", said[0].getMessage())
        share = re.search(r"; hooks took (\d+\.\d) % of the time", text)
        if steps:
            assert 0.1 <= float(share[1]) <= 100
            text = text.replace(share[0], "; hooks took so much")
        else:
            assert share is None
        return said[0].levelno, text

    return train


def test_what_is_in_order_is_information(closing_line: Callable[..., Line]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    assert closing_line(model, wg_distribution=True, mv_distribution=True) == (
        logging.INFO,
        "msmon: 3 steps recorded; expected 4 tensors, saw 4; apart from these 8 frozen, 4 not kept by the optimizer; "
        "hooks took so much; files in RUN",
    )


def test_what_is_missing_is_a_warning(closing_line: Callable[..., Line]) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.dead = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    assert closing_line(Branches(), wg_distribution=True) == (
        logging.WARNING,
        "msmon: 3 steps recorded; expected 8 tensors, saw 4 (no gradient: 4); hooks took so much; files in RUN",
    )


def test_a_data_type_without_rows_comes_first(
    closing_line: Callable[..., Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    from msmon_hooks.modules import ModuleHooks

    def fails(*args: Any) -> None:
        raise OSError("no")

    monkeypatch.setattr(ModuleHooks, "enter", fails)
    level, text = closing_line(nn.Linear(4, 4), wg_distribution=True, xy_distribution=True, all_xy=True)
    assert level == logging.WARNING
    assert text.startswith("msmon: no actv: activations: switched off after OSError: no; ")
    assert "; switched off: activations; " in text


def test_no_step_is_a_warning(closing_line: Callable[..., Line]) -> None:
    level, text = closing_line(nn.Linear(4, 4), steps=0, wg_distribution=True)
    assert level == logging.WARNING
    assert text.startswith("msmon: no grad_reduced: no gradient; no grad_unreduced: no gradient; 0 steps recorded; ")


def test_anomalies_are_a_warning(closing_line: Callable[..., Line]) -> None:
    model = nn.Linear(4, 4)
    model.weight.data[0, 0] = float("nan")
    rules = [{"rule_name": "AnomalyNan"}]
    level, text = closing_line(model, param_distribution=True, ops=["norm", "nans"], alert={"rules": rules})
    assert (level, text.partition(" anomalies")[0][-2:]) == (logging.WARNING, " 6")


def test_the_line_is_alone_beside_a_progress_bar(
    write_config: Callable[..., Path], output_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    handler = logging.StreamHandler(screen)
    logger = logging.getLogger("msmon")
    logger.addHandler(handler)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        with tqdm(total=2, file=screen) as bar, TrainerMon(str(write_config(wg_distribution=True))) as monitor:
            monitor.set_monitor(model, 1, optimizer)
            bar.update()
    finally:
        logger.removeHandler(handler)
    (line,) = [line for line in screen.getvalue().split("\n") if "msmon: " in line]
    # The bar was wiped out: only blanks since the last return of the carriage.
    assert line.rpartition("\r")[2].startswith("msmon: ")
