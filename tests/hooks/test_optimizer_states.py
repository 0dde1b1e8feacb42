"""Where optimizers keep the state of a parameter, in which form, and what is said of what cannot be read."""

from __future__ import annotations

import gc
import weakref
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from msmon_hooks.torch import state_tensors
from msmon_hooks.torch.moments import StateReader
from msmon_hooks.torch.packed_tensors import from_codes
from msmon_stats import features

from .oracle import norm
from .recorder import Monitored


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def step(model: nn.Module, optimizer: Any) -> None:
    model(torch.ones(3, 4)).square().mean().backward()
    optimizer.step()
    for parameter in model.parameters():
        parameter.grad = None


def moments_of(model: nn.Module, optimizer: Any, steps: int = 3, **request: Any) -> Monitored:
    with Monitored(model, optimizer, moments=True, **request) as monitored:
        for _ in range(steps):
            step(model, optimizer)
    return monitored


def rows(monitored: Monitored, at: int = 2) -> dict[tuple[str, str], float]:
    return {(kind, name): value for (kind, name, step, _), value in monitored.recorder.rows.items() if step == at}


# Optimizers inside of others


class Container(torch.optim.Optimizer):
    """As torchtitan's: an optimizer by type, whose own state stays empty."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = list(optimizers)
        super().__init__([p for one in optimizers for group in one.param_groups for p in group["params"]], {})

    def step(self) -> None:
        for one in self.optimizers:
            one.step()


class Plain:
    """No optimizer by type."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.by_kind = {type(one).__name__: [one] for one in optimizers}

    def step(self) -> None:
        for kind in self.by_kind.values():
            for one in kind:
                one.step()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has no Muon yet")
@pytest.mark.parametrize("container", [Container, Plain])
def test_containers(container: Any) -> None:
    model = mlp()
    matrices, vectors = ([p for p in model.parameters() if (p.dim() > 1) is big] for big in (True, False))
    optimizer = container(torch.optim.Muon(matrices, lr=0.01), torch.optim.AdamW(vectors))
    monitored = moments_of(model, optimizer, sign_agreement=features.sign_agreement)
    assert {key for key in rows(monitored) if key[0] != "other"} == {
        ("state", "0.weight.momentum_buffer"),
        ("state", "2.weight.momentum_buffer"),
        *((kind, name) for kind in ("exp_avg", "exp_avg_sq") for name in ("0.bias", "2.bias")),
    }
    # The same batch again and again: gradients agree with their momentum, but not in every element.
    directions = {name: value for (kind, name), value in rows(monitored).items() if kind == "other"}
    assert set(directions) == {name for name, _ in model.named_parameters()}
    assert {name for name, value in directions.items() if value == 1.0} != set(directions)
    assert monitored.missing() == {
        (kind, f"{layer}.weight"): f"nothing named {kind}; its state has momentum_buffer"
        for kind in ("exp_avg", "exp_avg_sq")
        for layer in (0, 2)
    }


class Wrapper:
    """Hands on to an optimizer that it holds under some name, and made late."""

    def __init__(self, make: Any, attribute: str) -> None:
        self._make = make
        self._attribute = attribute
        self.state: dict = defaultdict(dict)

    @property
    def anything(self) -> Any:
        raise AssertionError("a property of a foreign object was asked")

    def step(self) -> None:
        inner = vars(self).get(self._attribute)
        if inner is None:
            inner = self._make()
            setattr(self, self._attribute, inner)
        inner.step()


ATTRIBUTES = ("optim", "optimizer", "original_optimizer", "base_optimizer", "_base_optimizer", "wrapped")


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_wrappers_by_any_name(attribute: str) -> None:
    model = mlp()
    wrapper = Wrapper(lambda: torch.optim.Adam(model.parameters()), attribute)
    if attribute == "optimizer":
        # Taken for an accelerate-like wrapper, whose inner one is the one that steps.
        wrapper.step()
    monitored = moments_of(model, wrapper)
    assert {key[1] for key in rows(monitored) if key[0] == "exp_avg"} == {name for name, _ in model.named_parameters()}
    assert monitored.missing() == {}


def test_a_wrapper_with_a_state_of_its_own_from_the_beginning() -> None:
    class Lookahead(Wrapper):
        def __init__(self, parameters: list[nn.Parameter]) -> None:
            super().__init__(None, "fast")
            self.fast = torch.optim.Adam(parameters)
            for parameter in parameters:
                self.state[parameter] = {"slow": parameter.detach().clone(), "exp_avg_sq": torch.ones(1)}

    model = mlp()
    monitored = moments_of(model, Lookahead(list(model.parameters())))
    found = rows(monitored)
    assert {key for key in found if key[1].startswith("0.bias")} == {
        ("exp_avg", "0.bias"),
        ("exp_avg_sq", "0.bias"),
        ("state", "0.bias.slow"),
        ("state", "0.bias.Adam.exp_avg_sq"),
    }
    assert monitored.missing() == {}


def test_zero_redundancy_optimizer() -> None:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model = mlp()
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
        monitored = moments_of(model, optimizer)
    finally:
        distributed.destroy_process_group()
    assert {key[1] for key in rows(monitored) if key[0] == "exp_avg_sq"} == {
        name for name, _ in model.named_parameters()
    }


class Sharpened(torch.optim.Optimizer):
    """As SAM implementations: keeps the weights in the state that it shares with what it wraps, and takes them out."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {})
        self.base_optimizer = torch.optim.Adam(self.param_groups)
        self.state = self.base_optimizer.state

    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["old"] = parameter.detach().clone()
            del self.state[parameter]["old"]
        self.base_optimizer.step()


def test_a_wrapper_that_shares_the_state_of_what_it_wraps() -> None:
    model = mlp()
    monitored = moments_of(model, Sharpened(model.parameters()))
    assert {key[1] for key in rows(monitored) if key[0] == "exp_avg"} == {name for name, _ in model.named_parameters()}


def test_optimizers_that_hooks_of_the_gradient_call() -> None:
    """One for each parameter, which is nowhere but in the hook."""
    model = mlp()
    optimizers = {parameter: torch.optim.Adam([parameter]) for parameter in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    reader = StateReader(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1))
    assert all(not reader.of(parameter).tensors for parameter in model.parameters())
    model(torch.ones(3, 4)).sum().backward()
    for parameter in model.parameters():
        assert reader.of(parameter).get("exp_avg") is optimizers[parameter].state[parameter]["exp_avg"]


def test_histograms_of_an_inner_adam() -> None:
    model = mlp()
    seen = []

    def histograms(m: torch.Tensor, v: torch.Tensor, **settings: Any) -> torch.Tensor:
        seen.append((m.shape, v.shape, settings["betas"], float(settings["step"])))
        return torch.ones(1)

    container = Container(torch.optim.Adam(model.parameters(), betas=(0.7, 0.8)))
    with Monitored(model, container, adam_histograms=histograms):
        for _ in range(3):
            step(model, container)
    assert [one[2:] for one in seen] == [((0.7, 0.8), 1.0)] * 4 + [((0.7, 0.8), 2.0)] * 4


# Forms of states


class Own(torch.optim.Optimizer):
    """Updates nothing; its states are what it is told."""

    def __init__(self, parameters: Any, state: Any) -> None:
        super().__init__(list(parameters), {})
        self.make = state

    def step(self, closure: Any = None) -> None:
        for index, parameter in enumerate(self.param_groups[0]["params"]):
            if not self.state[parameter]:
                self.state[parameter].update(self.make(index, parameter))


def test_quantised_block_by_block() -> None:
    book = torch.linspace(-1, 1, 256)

    def state(index: int, parameter: torch.Tensor) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(index)
        made: dict[str, Any] = {"step": 1}
        for number in (1, 2):
            made[f"state{number}"] = torch.randint(256, parameter.shape, generator=generator, dtype=torch.uint8)
            made[f"qmap{number}"] = book
            blocks = -(-parameter.numel() // 256)
            made[f"absmax{number}"] = torch.rand(blocks, generator=generator)
        return made

    model = nn.Sequential(nn.Linear(4, 150), nn.Linear(150, 2))
    optimizer = Own(model.parameters(), state)
    monitored = moments_of(model, optimizer, steps=2)
    found = rows(monitored, 1)
    assert {kind for kind, _ in found} == {"exp_avg", "exp_avg_sq"}
    for name, parameter in model.named_parameters():
        for number, kind in ((1, "exp_avg"), (2, "exp_avg_sq")):
            codes, scales = (optimizer.state[parameter][f"{key}{number}"] for key in ("state", "absmax"))
            values = [book[code] * scales[place // 256] for place, code in enumerate(codes.flatten().tolist())]
            assert found[kind, name] == pytest.approx(norm(torch.stack(values)), rel=1e-6)
    with pytest.raises(ValueError, match="6 scales for 10 quantised values"):
        from_codes(torch.zeros(10, dtype=torch.uint8), book, torch.ones(6))


class Wrapped(torch.Tensor):
    """A tensor without values of its own, as quantisation makes them."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapped:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=torch.float32)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"{function} is not implemented\nby this class\nand never will be")


class Halved(Wrapped):
    def dequantize(self) -> torch.Tensor:
        return self.inner * 2


class Broken(Wrapped):
    def dequantize(self) -> torch.Tensor:
        raise RuntimeError("no kernel for this device\nDispatch keys: ...\nmore of them")


def test_one_state_that_cannot_be_read_costs_its_row() -> None:
    kinds = (lambda x: x, Halved, Broken, Wrapped)

    def state(index: int, parameter: torch.Tensor) -> dict[str, Any]:
        return {"exp_avg": kinds[index](torch.full(parameter.shape, 0.5)), "exp_avg_sq": torch.ones(parameter.shape)}

    model = mlp()
    monitored = moments_of(model, Own(model.parameters(), state), sign_agreement=features.sign_agreement)
    found = rows(monitored)
    first = {name: value for (kind, name), value in found.items() if kind == "exp_avg"}
    assert first == {"0.weight": pytest.approx(0.5 * 32**0.5), "0.bias": pytest.approx(8**0.5)}
    assert len([key for key in found if key[0] == "exp_avg_sq"]) == 4
    assert {name for kind, name in found if kind == "other"} == {"0.weight", "0.bias"}
    broken = "a Broken could not be dequantised: RuntimeError: no kernel for this device"
    unknown = "a Wrapped says nothing of how to get its values"
    assert monitored.missing() == {
        ("exp_avg", "2.weight"): broken,
        ("exp_avg", "2.bias"): unknown,
        ("other", "2.weight"): broken,
        ("other", "2.bias"): unknown,
    }
    assert monitored.notes == []


def test_what_is_in_lists_mappings_and_objects() -> None:
    class Preconditioner:
        def __init__(self) -> None:
            self.matrix = torch.eye(4)
            self.sizes = (4, 4)

        @property
        def root(self) -> torch.Tensor:
            raise AssertionError("a property of a foreign object was asked")

    def state(index: int, parameter: torch.Tensor) -> dict[Any, Any]:
        return {
            "step": torch.tensor(1.0),
            "mask": torch.ones(parameter.shape, dtype=torch.bool),
            "scale": torch.ones(3),
            "Q": [torch.eye(2), None, torch.eye(3)],
            "left": Preconditioner(),
            0: {"update_by_adam_exp_avg_0": parameter.detach() * 3, "max_exp_avg_sq": parameter.detach() ** 2},
        }

    model = nn.Linear(4, 1, bias=False)
    monitored = moments_of(model, Own(model.parameters(), state))
    assert {key: pytest.approx(value) for key, value in rows(monitored).items()} == {
        ("exp_avg", "weight"): norm(model.weight * 3),
        ("state", "weight.Q.0"): 2**0.5,
        ("state", "weight.Q.2"): 3**0.5,
        ("state", "weight.left.matrix"): 2.0,
        ("state", "weight.0.max_exp_avg_sq"): norm(model.weight**2),
    }
    keys = ["mask", "scale", "Q", "left", "0.update_by_adam_exp_avg_0", "0.max_exp_avg_sq"]
    assert monitored.missing() == {
        ("exp_avg_sq", "weight"): f"nothing named exp_avg_sq; its state has {', '.join(keys)}"
    }


def test_names_mean_it_only_beside_others_and_with_the_size_of_the_parameter() -> None:
    states = [
        {"m": torch.ones(8, 4), "vmean": torch.ones(())},
        {"v": torch.ones(8), "state1": torch.ones(8)},
        {"m": torch.ones(1, 8), "v": torch.ones(1, 8)},
        {
            "grad_ma": torch.ones(2),
            "variance_ma": torch.ones(2),
            "neg_grad_ma": torch.ones(2),
            "exp_avg_var": torch.ones(2),
        },
    ]
    model = mlp()
    monitored = moments_of(model, Own(model.parameters(), lambda index, parameter: states[index]))
    assert set(rows(monitored)) == {
        ("exp_avg", "0.weight"),
        ("state", "0.bias.v"),
        ("state", "0.bias.state1"),
        ("state", "2.weight.m"),
        ("state", "2.weight.v"),
        ("exp_avg", "2.bias"),
        ("exp_avg_sq", "2.bias"),
        ("state", "2.bias.neg_grad_ma"),
        ("state", "2.bias.exp_avg_var"),
    }


# Direction


def test_what_has_no_direction_says_so_although_it_had_a_row() -> None:
    """Low-rank moments, complex numbers, several momenta."""
    states = [
        {"step": 1, "exp_avg": torch.ones(2, 4), "exp_avg_sq": torch.ones(2, 4)},
        {"step": 1, "momentum_buffer": torch.ones(1, 8)},
        {"step": 1, "momentum": torch.ones(2, 8), "momentum_buffer": torch.ones(2, 8)},
        {"step": 1, "ema": torch.ones(2)},
    ]
    model = mlp()
    model.complex = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    # Behind the others in the optimizer.
    parameters = [*(p for name, p in model.named_parameters() if name != "complex"), model.complex]
    states.append({"step": 1, "exp_avg": torch.ones(2, dtype=torch.complex64)})
    optimizer = Own(parameters, lambda index, parameter: states[index])
    with Monitored(model, optimizer, moments=True, sign_agreement=features.sign_agreement) as monitored:
        for _ in range(3):
            (model(torch.ones(3, 4)).square().mean() + model.complex.abs().sum()).backward()
            optimizer.step()
    at = {number: {name for kind, name in rows(monitored, number) if kind == "other"} for number in range(3)}
    assert at[0] == {"0.weight", "0.bias", "2.weight", "2.bias", "complex"}
    assert at[1] == at[2] == {"0.bias"}
    assert {name: reason for (kind, name), reason in monitored.missing().items() if kind == "other"} == {
        "0.weight": "gradient (8, 4) and momentum (2, 4) differ in shape",
        "2.weight": "several momenta: momentum, momentum_buffer",
        "2.bias": "nothing named momentum; its state has ema",
        "complex": "a complex gradient has no sign",
    }
    assert monitored.notes == []


def test_nothing_kept_is_nothing_missing_although_the_gradients_are_gone() -> None:
    """Each parameter is updated in the backward, and its gradient cleared at once."""
    model = mlp()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    with Monitored(model, [*optimizers.values()], moments=True) as monitored:
        for _ in range(3):
            model(torch.ones(3, 4)).sum().backward()
    document = monitored.coverage.to_dict()
    assert document["missing"] == []
    assert {entry["kind"] for entry in document["apart"]} == {"not kept by the optimizer"}
    assert len(document["apart"]) == 2 * 4


# Over time


def test_a_state_that_was_loaded_and_one_that_comes_later() -> None:
    model = mlp()
    model[2].weight.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters())
    with Monitored(model, optimizer, moments=True) as monitored:
        step(model, optimizer)
        step(model, optimizer)
        assert monitored.missing() == {(kind, "2.weight"): "frozen" for kind in ("exp_avg", "exp_avg_sq")}
        old = weakref.ref(optimizer.state[model[0].weight]["exp_avg"])
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.state[model[0].weight] = {
            key: value.clone() for key, value in optimizer.state[model[0].weight].items()
        }
        gc.collect()
        assert old() is None
        model[2].weight.requires_grad_(True)
        step(model, optimizer)
        assert rows(monitored, 2)["exp_avg", "0.weight"] > 0
        assert ("exp_avg", "2.weight") not in rows(monitored, 2)
        step(model, optimizer)
        assert ("exp_avg", "2.weight") in rows(monitored, 3)
        assert monitored.missing() == {}


def test_names_are_decided_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decided = []
    original = state_tensors.moment_paths
    monkeypatch.setattr(state_tensors, "moment_paths", lambda *a, **k: decided.append(1) or original(*a, **k))
    model = mlp()
    moments_of(model, torch.optim.AdamW(model.parameters(), amsgrad=True), steps=10)
    assert len(decided) == 4


def test_nothing_is_added_to_the_optimizer() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    moments_of(model, optimizer, sign_agreement=features.sign_agreement)
    assert not optimizer.state


@pytest.mark.parametrize("of", ["a dummy", "copies"])
def test_an_optimizer_without_the_model_s_parameters_leaves_none_out(of: str) -> None:
    model = mlp()
    copies = (
        [torch.zeros(1, requires_grad=True)] if of == "a dummy" else [p.detach().clone() for p in model.parameters()]
    )
    with Monitored(model, torch.optim.SGD(copies, lr=0.1), weights=True) as monitored:
        model(torch.ones(3, 4)).sum().backward()
        monitored.attachment._optimizer.step()
    assert {name for _, name in rows(monitored, 0)} == {name for name, _ in model.named_parameters()}


def test_parameters_of_inner_optimizers_are_trained() -> None:
    model = mlp()
    inner = torch.optim.SGD(model[2].parameters(), lr=0.1)
    optimizer = Plain(torch.optim.Adam(model[0].parameters()), inner)
    optimizer.param_groups = inner.param_groups
    with Monitored(model, optimizer, weights=True) as monitored:
        step(model, optimizer)
    assert {name for _, name in rows(monitored, 0)} == {name for name, _ in model.named_parameters()}


def test_an_optimizer_that_keeps_its_state_elsewhere() -> None:
    class ByHand:
        def __init__(self, parameters: Any) -> None:
            self.parameters = list(parameters)
            self.m = [torch.zeros_like(parameter) for parameter in self.parameters]

        def step(self) -> None:
            for parameter, m in zip(self.parameters, self.m, strict=True):
                m.lerp_(parameter.grad, 0.1)

    model = mlp()
    monitored = moments_of(model, ByHand(model.parameters()))
    assert rows(monitored) == {}
    assert set(monitored.missing().values()) == {"where the optimizer keeps it is not known"}
