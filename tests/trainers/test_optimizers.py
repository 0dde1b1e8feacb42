"""Optimizers of other packages: trained as without a monitor, rows of what they keep, true reasons for the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import distributed, nn

from msmon.pytorch import TrainerMon

from .optimizer_training import CONFIG, MOMENTS, STEPS, Case, build, train, written

BOTH = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}
FACTORED = {"exp_avg_sq_row": "state", "exp_avg_sq_col": "state"}
NAMES = [name for name, _ in build().named_parameters()]
MATRICES = ["0.weight", "3.weight"]


def matrices(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.dim() > 1]


def vectors(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.dim() < 2]


def muon_groups(model: nn.Module) -> list[dict[str, Any]]:
    return [{"params": matrices(model), "use_muon": True}, {"params": vectors(model), "use_muon": False}]


def low_rank(model: nn.Module, **more: Any) -> list[dict[str, Any]]:
    ranks = {"rank": 2, "update_proj_gap": 2, "scale": 0.25, "proj_type": "std"}
    return [{"params": matrices(model), **ranks, **more}, {"params": vectors(model)}]


def every(*names: str, **reasons: str) -> dict[tuple[str, str], str]:
    """The same reasons for some parameters, by data type."""
    return {(kind, name): reason for kind, reason in reasons.items() for name in names or NAMES}


def dequantized(state: Mapping[Any, Any], path: str) -> torch.Tensor | None:
    """As torchao reads its own tensors."""
    tensor = state.get(path)
    return tensor.dequantize() if hasattr(type(tensor), "tensor_attrs") else tensor


def by_bitsandbytes(state: Mapping[Any, Any], path: str) -> torch.Tensor | None:
    """As bitsandbytes reads its own blocks."""
    from bitsandbytes.functional import dequantize_blockwise

    tensor, number = state.get(path), path[-1]
    if tensor is None or tensor.dtype != torch.uint8:
        return tensor
    parts = tensor.unbind() if state[f"absmax{number}"].dim() > 1 else [tensor]
    scales = state[f"absmax{number}"].reshape(len(parts), -1)
    values = [
        dequantize_blockwise(one, absmax=own.contiguous(), code=state[f"qmap{number}"], blocksize=256)
        for one, own in zip(parts, scales, strict=True)
    ]
    return torch.stack(values) if len(parts) > 1 else values[0]


def bitsandbytes(name: str, tensors: Mapping[str, str], **options: Any) -> Case:
    def make(package: Any, model: nn.Module) -> Any:
        return getattr(package, name)(model.parameters(), lr=1e-3, **options)

    return Case(package="bitsandbytes.optim", make=make, tensors=tensors, read=by_bitsandbytes)


def schedule_free(package: Any, name: str, model: nn.Module) -> Any:
    optimizer = getattr(package, name)(model.parameters(), lr=1e-3)
    optimizer.train()
    return optimizer


def pytorch_optimizer(name: str, tensors: Mapping[str, str], **more: Any) -> Case:
    return Case(
        package="pytorch_optimizer", make=lambda p, m: getattr(p, name)(m.parameters()), tensors=tensors, **more
    )


def heavyball(name: str, tensors: Mapping[str, str], **more: Any) -> Case:
    def make(package: Any, model: nn.Module) -> Any:
        return getattr(package, name)(model.parameters(), lr=1e-3)

    return Case(package="heavyball", make=make, tensors=tensors, **more)


CASES = {
    **{
        f"torchao {name}": Case(
            package="torchao.optim",
            make=lambda p, m, name=name: getattr(p, name)(m.parameters()),
            tensors=BOTH,
            read=dequantized,
        )
        for name in ("AdamW8bit", "AdamW4bit", "AdamWFp8")
    },
    "bitsandbytes Adam": bitsandbytes("Adam", {"state1": "exp_avg", "state2": "exp_avg_sq"}),
    "bitsandbytes AdamW8bit": bitsandbytes("AdamW8bit", {"state1": "exp_avg", "state2": "exp_avg_sq"}, min_8bit_size=1),
    "bitsandbytes PagedAdamW8bit": bitsandbytes(
        "PagedAdamW8bit", {"state1": "exp_avg", "state2": "exp_avg_sq"}, min_8bit_size=1
    ),
    "bitsandbytes Lion8bit": bitsandbytes("Lion8bit", {"state1": "exp_avg"}, min_8bit_size=1),
    "bitsandbytes RMSprop8bit": bitsandbytes("RMSprop8bit", {"state1": "exp_avg_sq"}, min_8bit_size=1),
    # Two first moments in one tensor, and a momentum that nothing says is one.
    "bitsandbytes AdEMAMix8bit": bitsandbytes(
        "AdEMAMix8bit", {"state1": "state", "state2": "exp_avg_sq"}, min_8bit_size=1
    ),
    "bitsandbytes SGD8bit": bitsandbytes("SGD8bit", {"state1": "state"}, momentum=0.9, min_8bit_size=1),
    "schedulefree AdamW": Case(
        package="schedulefree",
        make=lambda p, m: schedule_free(p, "AdamWScheduleFree", m),
        tensors={"z": "state", "exp_avg_sq": "exp_avg_sq"},
    ),
    "schedulefree SGD": Case(
        package="schedulefree", make=lambda p, m: schedule_free(p, "SGDScheduleFree", m), tensors={"z": "state"}
    ),
    "pytorch_optimizer AdaBelief": pytorch_optimizer("AdaBelief", {"exp_avg": "exp_avg", "exp_avg_var": "state"}),
    "pytorch_optimizer AdamG": pytorch_optimizer("AdamG", {"m": "exp_avg", "v": "exp_avg_sq", "r": "state"}),
    "pytorch_optimizer AdaMuon": Case(
        package="pytorch_optimizer",
        make=lambda p, m: p.AdaMuon(muon_groups(m)),
        tensors={**BOTH, "m": "exp_avg", "v": "exp_avg_sq"},
    ),
    "pytorch_optimizer AggMo": pytorch_optimizer(
        "AggMo",
        {f"momentum_buffer/{beta}": "state" for beta in (0.0, 0.9, 0.99)},
        reasons={
            (kind, name): f"nothing named {wanted}; its state has momentum_buffer.0.0, momentum_buffer.0.9, "
            "momentum_buffer.0.99"
            for kind, wanted in (*zip(MOMENTS, MOMENTS, strict=True), ("other", "momentum"))
            for name in NAMES
        },
    ),
    "pytorch_optimizer CAME": pytorch_optimizer(
        "CAME",
        {**BOTH, **FACTORED, "exp_avg_res_row": "state", "exp_avg_res_col": "state"},
        reasons=every(*MATRICES, exp_avg_sq="factored: exp_avg_sq_row, exp_avg_sq_col"),
    ),
    "pytorch_optimizer Lookahead": Case(
        package="pytorch_optimizer",
        make=lambda p, m: p.Lookahead(torch.optim.AdamW(m.parameters()), k=2),
        tensors={**BOTH, "slow_params": "state"},
        states=lambda optimizer: [optimizer.state, optimizer.optimizer.state],
    ),
    "pytorch_optimizer MADGRAD": pytorch_optimizer("MADGRAD", {"grad_sum_sq": "state", "s": "state", "x0": "state"}),
    "pytorch_optimizer NorMuon": Case(
        package="pytorch_optimizer",
        make=lambda p, m: p.NorMuon(muon_groups(m)),
        tensors={**BOTH, "momentum_buffer": "state", "second_momentum_buffer": "state"},
        momentum="momentum_buffer",
    ),
    "pytorch_optimizer OrthoGrad": Case(
        package="pytorch_optimizer",
        make=lambda p, m: p.OrthoGrad(p.AdamP(m.parameters())),
        tensors=BOTH,
        states=lambda optimizer: [optimizer.optimizer.state],
        inner=lambda optimizer: optimizer.optimizer,
    ),
    "pytorch_optimizer ScalableShampoo": pytorch_optimizer(
        "ScalableShampoo",
        {
            "momentum": "state",
            "pre_conditioner/statistics": "state",
            "pre_conditioner/pre_conditioners": "state",
            "graft/momentum": "state",
        },
        momentum="momentum",
    ),
    "pytorch_optimizer SOAP": pytorch_optimizer(
        "SOAP", {**BOTH, "GG/0": "state", "GG/1": "state", "Q/0": "state", "Q/1": "state"}
    ),
    "ranger21": Case(
        package="ranger21",
        make=lambda p, m: p.Ranger21(
            m.parameters(), lr=1e-3, num_epochs=3, num_batches_per_epoch=3, use_warmup=False, logging_active=False
        ),
        tensors={
            "grad_ma": "exp_avg",
            "variance_ma": "exp_avg_sq",
            "lookahead_params": "state",
            "neg_grad_ma": "state",
            "max_variance_ma": "state",
        },
    ),
    "galore_torch AdamW": Case(
        package="galore_torch",
        make=lambda p, m: p.GaLoreAdamW(low_rank(m)),
        tensors={**BOTH, "projector/ortho_matrix": "state"},
        reasons={
            ("other", "0.weight"): "gradient (64, 64) and momentum (64, 2) differ in shape",
            ("other", "3.weight"): "gradient (8, 64) and momentum (2, 64) differ in shape",
        },
    ),
    "galore_torch Adafactor": Case(
        package="galore_torch",
        make=lambda p, m: p.GaLoreAdafactor(low_rank(m)),
        tensors={"exp_avg_sq": "exp_avg_sq", **FACTORED, "projector/ortho_matrix": "state"},
        reasons=every(*MATRICES, exp_avg_sq="factored: exp_avg_sq_row, exp_avg_sq_col"),
    ),
    "apollo_torch": Case(
        package="apollo_torch",
        make=lambda p, m: p.APOLLOAdamW(low_rank(m, proj="random", scale_type="channel")),
        tensors={**BOTH, "projector/ortho_matrix": "state"},
        reasons={
            ("other", "0.weight"): "gradient (64, 64) and momentum (64, 2) differ in shape",
            ("other", "3.weight"): "gradient (8, 64) and momentum (2, 64) differ in shape",
        },
    ),
    "heavyball AdamW": heavyball(
        "AdamW", {"0/update_by_adam_exp_avg_0": "exp_avg", "0/update_by_adam_exp_avg_sq_0": "exp_avg_sq"}
    ),
    "heavyball SOAP": heavyball(
        "SOAP",
        {
            "0/scale_by_soap_exp_avg_2": "exp_avg",
            "0/scale_by_soap_exp_avg_sq_2": "exp_avg_sq",
            **{f"0/scale_by_soap_{matrix}_3/{side}": "state" for matrix in ("Q", "GG") for side in (0, 1)},
        },
    ),
    "heavyball Muon": heavyball(
        "Muon",
        {"0/nesterov_ema_momentum_2": "state"},
        momentum="0/nesterov_ema_momentum_2",
        reasons={
            (kind, name): f"nothing named {kind}; its state has "
            f"{'0.step, ' if name == '0.weight' else ''}0.nesterov_ema_momentum_2, 0.is_initialized"
            for kind in MOMENTS
            for name in NAMES
        },
    ),
    "muon": Case(
        package="muon",
        make=lambda p, m: p.SingleDeviceMuonWithAuxAdam(muon_groups(m)),
        tensors={**BOTH, "momentum_buffer": "state"},
        momentum="momentum_buffer",
    ),
    "prodigyopt": Case(
        package="prodigyopt",
        make=lambda p, m: p.Prodigy(m.parameters(), slice_p=2),
        tensors={**BOTH, "s": "state", "p0": "state"},
    ),
    "lion_pytorch": Case(
        package="lion_pytorch", make=lambda p, m: p.Lion(m.parameters()), tensors={"exp_avg": "exp_avg"}
    ),
    "adam_mini": Case(
        package="adam_mini",
        make=lambda p, m: p.Adam_mini(m.named_parameters(), dim=64, n_heads=4),
        tensors={"m": "exp_avg", "v": "exp_avg_sq"},
    ),
    "adabelief_pytorch": Case(
        package="adabelief_pytorch",
        make=lambda p, m: p.AdaBelief(m.parameters(), print_change_log=False, rectify=False),
        tensors={"exp_avg": "exp_avg", "exp_avg_var": "state"},
    ),
    "optimi Ranger": Case(
        package="optimi",
        make=lambda p, m: p.Ranger(m.parameters(), lr=1e-3),
        tensors={**BOTH, "la_param": "state"},
    ),
    "transformers Adafactor": Case(
        package="transformers.optimization",
        make=lambda p, m: p.Adafactor(m.parameters(), lr=1e-3, relative_step=False, scale_parameter=False),
        tensors={"exp_avg_sq": "exp_avg_sq", **FACTORED},
        reasons=every(*MATRICES, exp_avg_sq="factored: exp_avg_sq_row, exp_avg_sq_col"),
    ),
}


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    """Some compile their update: it is long to compile, and the same to read."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.mark.parametrize("name", CASES)
def test_optimizer(name: str, write_config: Any, output_dir: Any) -> None:
    case = CASES[name]
    package = pytest.importorskip(case.package)
    unmonitored = train(case, package)
    monitored = train(case, package, write_config(**CONFIG))
    assert monitored == unmonitored
    rows, coverage = written(output_dir)
    kinds = (*MOMENTS, "state", "other")
    found = {row: value for row, value in rows.items() if row[0] in kinds}
    expected = monitored.rows
    assert found.keys() == expected.keys()
    for row, value in expected.items():
        assert found[row] == pytest.approx(value, rel=1e-5, abs=1e-12), row
    for kind in ("grad_unreduced", "grad_reduced", "param_origin", "param_updated"):
        assert {row[1:] for row in rows if row[0] == kind} == {(n, step) for n in NAMES for step in range(4)}
    assert coverage["notes"] == []
    entries = [*coverage["missing"], *coverage["apart"]]
    reasons = {(entry["data_type"], entry["name"]): entry["reason"] for entry in entries}
    last = {row[:2] for row in expected if row[2] == 3}
    assert reasons.keys() == {(kind, name) for kind in (*MOMENTS, "other") for name in NAMES} - last
    # Of a moment that it does not keep an alarm would say nothing.
    assert {entry["kind"] for entry in coverage["apart"]} <= {"not kept by the optimizer"}
    assert {entry["data_type"] for entry in coverage["missing"]} <= {"other"}
    for (kind, parameter), reason in reasons.items():
        keys = monitored.keys[parameter]
        wanted = "momentum" if kind == "other" else kind
        default = f"nothing named {wanted}; its state has {', '.join(map(str, keys))}"
        assert reason == case.reasons.get((kind, parameter), default)


def test_quantised_states_of_sharded_parameters(write_config: Any, output_dir: Any) -> None:
    """A DTensor with a quantised tensor in it."""
    optimizers = pytest.importorskip("torchao.optim")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model = fully_shard(build(), mesh=init_device_mesh("cpu", (1,)))
        optimizer = optimizers.AdamW8bit(model.parameters())
        expected = {}
        with TrainerMon(str(write_config(**CONFIG)), params_have_main_grad=False) as monitor:
            monitor.set_monitor(model, 1, optimizer)
            for step in range(STEPS):
                model(torch.randn(16, 64)).square().mean().backward()
                for name, parameter in model.named_parameters():
                    for moment in MOMENTS if step else ():
                        part = optimizer.state[parameter][moment]._local_tensor
                        part = part.dequantize() if type(part) is not torch.Tensor else part
                        expected[moment, name, step] = float(part.norm())
                optimizer.step()
                optimizer.zero_grad()
    finally:
        distributed.destroy_process_group()
    rows, coverage = written(output_dir)
    assert {row: value for row, value in rows.items() if row[0] in MOMENTS} == pytest.approx(expected, rel=1e-5)
    assert coverage["missing"] == coverage["apart"] == []
