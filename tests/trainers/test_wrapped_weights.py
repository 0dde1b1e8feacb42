"""Weights that torchao wraps: statistics are those of the values that they stand for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import msmon_stats
from msmon_stats.torch import PartialBuffer

pytest.importorskip("torchao")

VALUES = torch.randn(64, 64, generator=torch.manual_seed(0))


def float8_in_training() -> torch.Tensor:
    from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
    from torchao.float8.float8_training_tensor import LinearMMConfig

    return hp_tensor_to_float8_dynamic(VALUES, torch.float8_e4m3fn, LinearMMConfig())


def cast_while_gathered() -> torch.Tensor:
    from torchao.float8.float8_training_tensor import LinearMMConfig
    from torchao.float8.fsdp_utils import WeightWithDynamicFloat8CastTensor

    return nn.Parameter(WeightWithDynamicFloat8CastTensor(VALUES, LinearMMConfig(), torch.float8_e4m3fn))


def int8_in_training() -> torch.Tensor:
    from torchao.prototype.quantized_training import Int8QuantizedTrainingLinearWeight

    return Int8QuantizedTrainingLinearWeight.from_float(VALUES)


def quantised(config: str) -> torch.Tensor:
    from torchao import quantization

    layer = nn.Linear(64, 64, bias=False)
    layer.weight = nn.Parameter(VALUES.clone())
    quantization.quantize_(layer, getattr(quantization, config)())
    return layer.weight


MADE = {
    "float8": float8_in_training,
    "cast": cast_while_gathered,
    "int8": int8_in_training,
    "float8 weight only": lambda: quantised("Float8WeightOnlyConfig"),
    "int8 weight only": lambda: quantised("Int8WeightOnlyConfig"),
}


@pytest.mark.parametrize("kind", MADE)
def test_statistics_are_those_of_the_values(kind):
    tensor = MADE[kind]()
    assert type(tensor) not in (torch.Tensor, nn.Parameter)
    buffer = PartialBuffer()
    assert buffer.measure([tensor], 1e-8) == [0]
    count, *_, squares = buffer.transfer().matrix()[0].tolist()
    assert count == VALUES.numel()
    assert squares**0.5 == pytest.approx(VALUES.norm().item(), rel=5e-3)
    assert msmon_stats.linear_features(tensor)[1] == pytest.approx(torch.linalg.matrix_norm(VALUES, 2).item(), rel=2e-2)
