"""Losses and weights with probes in compiled graphs against those without, and rows against those of eager mode.

`make test-compiled` runs the whole table and prints it; `make test` a few of its lines.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch

from tests.compiled.models import HUGGING_FACE
from tests.compiled.training import Trained, make, train, wrong

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:UserWarning")
WHOLE = bool(os.environ.get("MSMON_WHOLE_TABLE"))
KINDS = ["mlp", "gpt", "llama", "encoder", "vit", "resnet", "lstm", "gpt2", "qwen", "mixtral"]
PLAIN = [(kind, dtype, "plain") for kind in KINDS for dtype in ("fp32", "bf16", "autocast")]
# In eager mode torch has no `nn.LSTM` under autocast on a CPU.
PLAIN.remove(("lstm", "autocast", "plain"))
WAYS = [
    *((kind, dtype, "blocks") for kind in ("gpt", "llama", "vit") for dtype in ("fp32", "bf16")),
    *(("gpt", dtype, way) for way in ("checkpointed", "dropout", "dynamic") for dtype in ("fp32", "bf16", "autocast")),
    ("encoder", "fp32", "dropout"),
    ("encoder", "bf16", "dropout"),
    ("llama", "fp32", "dynamic"),
]
SMOKE = [("mlp", "fp32", "plain"), ("gpt", "autocast", "blocks")]
CASES = [
    (*case, inside)
    for case in ([*PLAIN, *WAYS] if WHOLE else SMOKE)
    # The values that are stored are among all of them: the first alone where there is something new to see.
    for inside in (["stored", "all"] if case[0] in ("mlp", "gpt") or case[1:] == ("fp32", "plain") else ["all"])
]


@pytest.fixture(scope="module")
def table() -> Callable[[str], None]:
    """Prints a line; the heading before the first."""
    print(
        f"\n\n{'model':9} {'dtype':9} {'way':13} {'inside':7} equal  breaks+ graphs+ kernels- {'rows':>11}  exact wrong"
    )
    return lambda line: print(line, end=" ")


_seen: dict[tuple[str, str, str], tuple[Trained, Trained]] = {}


def references(kind: str, dtype: str, way: str) -> tuple[Trained, Trained]:
    """The compiled training without a monitor, and eager mode with one."""
    key = (kind, dtype, way)
    if key not in _seen:
        _seen.clear()
        model = make(kind, dtype, checkpointed=True) if way == "checkpointed" else None
        of_eager = train(kind, dtype, "eager", inside="", model=model)
        _seen[key] = train(kind, dtype, way, fullgraph=kind != "mixtral"), of_eager
    return _seen[key]


@pytest.mark.parametrize(("kind", "dtype", "way", "inside"), CASES)
def test_training_is_the_same_and_rows_are_right(kind, dtype, way, inside, table):
    base, eager = references(kind, dtype, way)
    seen = train(kind, dtype, way, inside=inside, fullgraph=kind != "mixtral")
    expected = {key for key in eager.rows if key[2] == 0}
    assert expected
    found = expected & seen.rows.keys()
    others = wrong(seen, eager, dtype) if way != "dropout" else []
    how = seen.how
    exact = how["stored"] / max(1, sum(how.values()))
    gone = sum((base.kernels - seen.kernels).values())
    table(
        f"\n{kind:9} {dtype:9} {way:13} {inside:7} {seen.equals(base)!s:6} {seen.breaks - base.breaks:7} "
        f"{seen.graphs - base.graphs:7} {gone:8} {len(found):5}/{len(expected):5}  {exact:5.2f} {len(others):5}"
    )
    assert seen.equals(base)
    assert seen.breaks == base.breaks
    assert seen.graphs == base.graphs
    assert gone == 0
    assert others == []
    assert seen.monitored is not None
    assert seen.monitored.recorder.doubled() == []
    # transformers makes masks where it is compiled.
    extra = {key[1] for key in seen.rows.keys() - eager.rows.keys()}
    assert all("mask" in name or "input_2" in name for name in extra) if kind in HUGGING_FACE else not extra
    missing = seen.monitored.missing()
    assert all(missing.get(key[:2], "").startswith("inside a compiled graph: ") for key in expected - found)
    assert seen.monitored.coverage.to_dict()["switched_off"] == []
    if inside == "all":
        assert len(found) >= (0.95 if kind in ("gpt", "llama", "encoder") else 0.8) * len(expected)


def test_there_is_the_version_that_was_proved():
    from msmon_hooks.torch.compiled.interfaces import PROVED

    assert torch.__version__.startswith(PROVED)
