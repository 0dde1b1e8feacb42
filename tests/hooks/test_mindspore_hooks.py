"""What the hooks see of MindSpore Cells, parameters and optimizers: whole sequences, and the odd cases."""

import contextlib
import copy
import itertools
import pickle

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops
from mindspore.common import api

from msmon_hooks import Clock, Coverage, Elements, Guarded, Request, Sides, Targets
from msmon_hooks.call_hooks import BeforeCall
from msmon_hooks.mindspore import attach
from msmon_hooks.mindspore.adam import AdamGroups
from msmon_hooks.mindspore.call_hooks import CallHooks
from msmon_hooks.mindspore.moments import Moments
from msmon_hooks.modules import ModuleHooks
from msmon_hooks.parameters import Weight


class Recorder:
    """An observer that keeps copies: every row with its value, in the order in which it was recorded."""

    def __init__(self):
        self.values, self.rows, self.scales = [], [], []

    def measure(self, tensors, scale=None):
        first = len(self.values)
        self.values += [np.array(tensor.asnumpy(), copy=True) for tensor in tensors]
        self.scales += [None if scale is None else float(Tensor(scale).asnumpy()) for _ in tensors]
        return list(range(first, len(self.values)))

    def put(self, values):
        return self.measure([values])[0]

    def record(self, refs, handles):
        self.rows += zip(refs, handles, strict=True)

    def step_end(self, event):
        self.rows.append((event, -1))

    def names(self, data_type):
        return [ref.name for ref, _ in self.rows if getattr(ref, "data_type", "") == data_type]

    def value(self, data_type, name, micro_step=0):
        (found,) = {
            handle
            for ref, handle in self.rows
            if getattr(ref, "data_type", "") == data_type and ref.name == name and ref.micro_step in (None, micro_step)
        }
        return self.values[found]


ALL = {
    "activations": True,
    "activation_gradients": True,
    "weight_gradients": True,
    "weights": True,
    "moments": True,
}


def hooked(model, optimizer, clock=None, coverage=None, **request):
    recorder = Recorder()
    hooks = attach([model], optimizer, Request(**request), clock or Clock(), recorder, coverage or Coverage())
    return recorder, hooks


def sgd(model):
    return nn.SGD(model.trainable_params(), 0.1)


def step(model, optimizer, *args, **kwargs):
    def loss(*args, **kwargs):
        output = model(*args, **kwargs)
        leaves = output.values() if isinstance(output, dict) else output if isinstance(output, tuple) else (output,)
        return sum((leaf * leaf).sum() for leaf in leaves if isinstance(leaf, Tensor))

    value, gradients = mindspore.value_and_grad(loss, None, optimizer.parameters)(*args, **kwargs)
    optimizer(gradients)
    return value.asnumpy().tobytes(), gradients


def some(*shape, seed=0):
    return Tensor(np.random.RandomState(seed).randn(*shape).astype(np.float32))


def test_the_whole_sequence_of_a_step():
    model = nn.SequentialCell(nn.Dense(3, 2), nn.ReLU())
    recorder, hooks = hooked(model, sgd(model), **ALL)
    _, gradients = step(model, hooks._optimizer, some(4, 3))
    hooks.close()
    seen = [
        (ref.data_type, ref.name) if hasattr(ref, "data_type") else ("step end", ref.step) for ref, _ in recorder.rows
    ]
    assert seen[:6] == [
        ("actv", "0.input"),
        ("actv", "0.output"),
        ("actv", "1.input"),
        ("actv", "1.output"),
        ("actv", ".input"),
        ("actv", ".output"),
    ]
    # A tensor that two modules see has a row under each name.
    assert sorted(seen[6:-7]) == [
        ("actv_grad", ".output"),
        ("actv_grad", "0.output"),
        ("actv_grad", "1.input"),
        ("actv_grad", "1.output"),
        ("grad_unreduced", "0.bias"),
        ("grad_unreduced", "0.weight"),
    ]
    assert seen[-7:] == [
        ("param_origin", "0.weight"),
        ("param_origin", "0.bias"),
        ("grad_reduced", "0.weight"),
        ("grad_reduced", "0.bias"),
        ("param_updated", "0.weight"),
        ("param_updated", "0.bias"),
        ("step end", 0),
    ]
    for name, gradient in zip(("0.weight", "0.bias"), gradients, strict=True):
        np.testing.assert_array_equal(recorder.value("grad_unreduced", name), gradient.asnumpy())
        np.testing.assert_array_equal(recorder.value("grad_reduced", name), gradient.asnumpy())
    changed = recorder.value("param_origin", "0.weight") - recorder.value("param_updated", "0.weight")
    np.testing.assert_allclose(changed, 0.1 * gradients[0].asnumpy(), rtol=1e-4, atol=1e-6)


def test_gradients_of_activations_are_right():
    model = nn.SequentialCell(nn.Dense(3, 2), nn.Tanh())
    recorder, hooks = hooked(model, sgd(model), **ALL)
    step(model, hooks._optimizer, some(4, 3))
    hooks.close()
    output = recorder.value("actv", ".output")
    np.testing.assert_allclose(recorder.value("actv_grad", "1.output"), 2 * output, rtol=1e-6)
    np.testing.assert_allclose(recorder.value("actv_grad", "1.input"), 2 * output * (1 - output**2), rtol=1e-5)


class Branches(nn.Cell):
    """Keyword inputs, a dict, a nested tuple, None, an integer tensor, and a tensor that nobody uses."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(3, 3)

    def construct(self, x, scale=1.0, mask=None, index=None):
        h = self.dense(x)
        return {"main": h * scale, "parts": (h + mask, None, (x,)), "index": index, "unused": h * 2}


def test_dicts_keywords_and_integers_have_rows():
    model = nn.SequentialCell([Branches()])
    branches = model[0]
    coverage = Coverage()
    optimizer = sgd(model)
    recorder, hooks = hooked(branches, optimizer, coverage=coverage, **ALL)

    def loss(x, mask, index):
        output = branches(x, scale=2.0, mask=mask, index=index)
        return output["main"].sum() + output["parts"][0].sum()

    grad = mindspore.value_and_grad(loss, None, optimizer.parameters)
    x, mask, index = some(2, 3), some(2, 3, seed=1), Tensor([1, 2], mindspore.int32)
    optimizer(grad(x, mask, index)[1])
    hooks.close()
    assert recorder.names("actv")[2:] == [
        ".input_0",
        ".input_mask",
        ".input_index",
        ".output_main",
        ".output_parts_0",
        ".output_parts_2_0",
        ".output_index",
        ".output_unused",
    ]
    np.testing.assert_array_equal(recorder.value("actv", ".input_index"), [1, 2])
    np.testing.assert_array_equal(recorder.value("actv_grad", ".output_main"), np.ones((2, 3)))
    np.testing.assert_array_equal(recorder.value("actv_grad", "dense.output"), np.full((2, 3), 3.0))
    assert {".output_index", ".input_index", ".output_unused"}.isdisjoint(recorder.names("actv_grad"))
    # Inputs need no gradient: that is no anomaly, and nothing is missing.
    inputs = {ref.name: ref.requires_grad for ref, _ in recorder.rows if getattr(ref, "is_input", False)}
    assert inputs == {".input_0": False, ".input_mask": False, ".input_index": False, "dense.input": False}


def test_inputs_get_rows_of_gradients_where_they_are_differentiated():
    model = nn.Dense(3, 2)
    recorder, hooks = hooked(model, sgd(model), **ALL)
    x = some(2, 3)
    for _ in range(2):
        _, (of_input, gradients) = mindspore.value_and_grad(lambda x: model(x).sum(), 0, hooks._optimizer.parameters)(x)
        hooks._optimizer(gradients)
    hooks.close()
    assert recorder.names("actv_grad").count(".input") == 2
    handles = [handle for ref, handle in recorder.rows if getattr(ref, "key", ())[:3:2] == ("actv_grad", ".input")]
    np.testing.assert_array_equal(of_input.asnumpy(), recorder.values[handles[-1]])
    assert not x.hooks()


class Twice(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(3, 3)

    def construct(self, x):
        return self.dense(self.dense(x))


def test_a_second_call_and_tied_weights():
    model = Twice()
    recorder, hooks = hooked(model, sgd(model), **ALL)
    step(model, hooks._optimizer, some(2, 3))
    hooks.close()
    assert recorder.names("actv") == [
        "dense.input",
        "dense.output",
        "dense@1.input",
        "dense@1.output",
        ".input",
        ".output",
    ]
    assert recorder.names("grad_unreduced").count("dense.weight") == 1

    class Tied(nn.Cell):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(5, 3)
            self.head = nn.Dense(3, 5, has_bias=False)
            self.head.weight = self.embedding.embedding_table

        def construct(self, tokens):
            return self.head(self.embedding(tokens))

    tied = Tied()
    recorder, hooks = hooked(tied, sgd(tied), **ALL)
    step(tied, hooks._optimizer, Tensor([[0, 1]], mindspore.int32))
    assert hooks.describe()[0]["name"] == "embedding.embedding_table"
    assert hooks.describe()[0]["aliases"] == ["head.weight"]
    hooks.close()
    assert recorder.names("grad_reduced") == ["embedding.embedding_table"]


def test_targets_frozen_weights_and_optimizers_of_some():
    model = nn.SequentialCell(nn.Dense(3, 3), nn.Dense(3, 3), nn.Dense(3, 3))
    model[0].weight.requires_grad = False
    coverage = Coverage()
    optimizer = nn.SGD([model[0].bias, *model[1].trainable_params()], 0.1)
    targets = Targets({"0": Sides(), "1": Sides(elements={"output": Elements(length=1, index=0)}), "2": Sides()})
    recorder, hooks = hooked(model, optimizer, coverage=coverage, targets=targets, **ALL)
    step(model, optimizer, some(2, 3))
    hooks.close()
    assert recorder.names("actv") == ["0.input", "0.output", "1.output", "2.input", "2.output"]
    assert recorder.names("grad_reduced") == ["0.bias", "1.weight", "1.bias"]
    document = coverage.to_dict()
    entries = [*document["missing"], *document["apart"]]
    reasons = {(e["name"], e["reason"]) for e in entries if e["data_type"] == "grad_reduced"}
    # Nobody has told the coverage of rows here.
    assert {entry for entry in reasons if entry[1] != "no gradient"} == {
        ("0.weight", "frozen"),
        ("2.weight", "not in the optimizer that was given"),
        ("2.bias", "not in the optimizer that was given"),
    }


class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(3, 3)
        self.drop = nn.Dropout(p=0.3)

    def construct(self, x):
        return ops.tanh(self.drop(self.dense(x)))


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_is_not_a_second_call(reentrant):
    results = []
    for monitored in (False, True):
        mindspore.set_seed(7)
        model = nn.SequentialCell(nn.Dense(3, 3), Block(), Block(), nn.Dense(3, 2))
        model.set_train()
        for block in (model[1], model[2]):
            block.recompute(use_reentrant=reentrant)
        optimizer = sgd(model)
        recorder, hooks = hooked(model, optimizer, **ALL) if monitored else (None, None)
        losses = [step(model, optimizer, some(4, 3, seed=seed))[0] for seed in range(2)]
        results.append((losses, [parameter.asnumpy().tobytes() for parameter in model.get_parameters()]))
        if monitored:
            hooks.close()
    assert results[0] == results[1]
    first = list(itertools.takewhile(lambda ref: hasattr(ref, "data_type"), (ref for ref, _ in recorder.rows)))
    names = [(ref.data_type, ref.name) for ref in first]
    assert len(names) == len(set(names))
    assert {name for data_type, name in names if data_type == "actv"} >= {"1.dense.input", "1.dense.output", "2.output"}
    assert {ref.micro_step for ref in first if ref.data_type == "actv"} == {0}
    gradients = {name for data_type, name in names if data_type == "actv_grad"}
    assert gradients >= {"1.input", "1.output", "2.output", "1.dense.output", "2.dense.output"}
    assert [name for data_type, name in names if data_type == "grad_reduced"] == [
        name for name, _ in model.parameters_and_names()
    ]


class Trainer(nn.TrainOneStepWithLossScaleCell):
    """MindSpore's own, with a way to find overflows that the CPU has."""

    def get_overflow_status(self, status, compute_output):
        return Tensor(not all(np.isfinite(gradient.asnumpy()).all() for gradient in compute_output))


def test_a_loss_scale_is_undone_and_a_skipped_step_counts():
    data, label = some(4, 3), some(4, 2, seed=1)
    norms = {}
    for scale in (1.0, 1024.0):
        mindspore.set_seed(2)
        model = nn.Dense(3, 2)
        optimizer = sgd(model)
        coverage = Coverage()
        recorder, hooks = hooked(model, optimizer, coverage=coverage, **ALL)
        trainer = Trainer(nn.WithLossCell(model, nn.MSELoss()), optimizer, nn.FixedLossScaleUpdateCell(scale))
        trainer(data, label)
        trainer(Tensor(np.full((4, 3), np.inf, np.float32)), label)
        trainer(data, label)
        hooks.close()
        handles = [h for ref, h in recorder.rows if getattr(ref, "data_type", "") in ("grad_unreduced", "actv_grad")]
        unscaled = [recorder.values[h] / (recorder.scales[h] or 1.0) for h in handles]
        norms[scale] = [float(np.linalg.norm(value)) for value in unscaled if np.isfinite(value).all()]
        assert coverage.to_dict()["skipped_steps"] == [1]
        assert [ref.step for ref, _ in recorder.rows if hasattr(ref, "last_micro_step")] == [0, 1, 2]
    assert norms[1.0] == pytest.approx(norms[1024.0], rel=1e-5)
    assert len(norms[1.0]) >= 4


def test_the_scale_of_an_optimizer_is_undone():
    model = nn.Dense(3, 2)
    optimizer = nn.SGD(model.trainable_params(), 0.1, loss_scale=8.0)
    recorder, hooks = hooked(model, optimizer, **ALL)
    grad = mindspore.value_and_grad(lambda x: model(x).sum() * 8.0, None, optimizer.parameters)
    optimizer(grad(some(2, 3))[1])
    hooks.close()
    for data_type in ("grad_unreduced", "grad_reduced", "actv_grad"):
        handles = [h for ref, h in recorder.rows if getattr(ref, "data_type", "") == data_type]
        assert handles
        assert {recorder.scales[h] for h in handles} == {8.0}


def test_moments_of_optimizers_without_a_kernel_here():
    """``mint.optim.AdamW`` cannot update on a CPU: what stands in for its update is written into its state."""
    for kind in (mint.optim.AdamW, mint.optim.Adam):
        model = nn.Dense(3, 2)
        optimizer = kind(model.trainable_params(), lr=1e-2, betas=(0.8, 0.95), eps=1e-6)
        moments = Moments(optimizer)
        assert moments.of(model.bias).tensors == {}
        optimizer.exp_avg[1].set_data(some(2))
        optimizer.exp_avg_sq[1].set_data(some(2, seed=1) ** 2)
        optimizer.state_step.set_data(Tensor([3.0], mindspore.float32))
        found = moments.of(model.bias).tensors
        np.testing.assert_array_equal(found["exp_avg"].asnumpy(), some(2).asnumpy())
        np.testing.assert_array_equal(found["exp_avg_sq"].asnumpy(), some(2, seed=1).asnumpy() ** 2)
        settings = AdamGroups(optimizer).settings(Weight(name="bias", vpp_stage=0, index=1, parameter=model.bias))
        assert (settings.betas, settings.eps, float(settings.step.asnumpy()[0])) == ((0.8, 0.95), 1e-6, 3.0)


def test_a_hook_that_fails_ends_alone_and_copies_carry_nothing():
    class Broken(Recorder):
        def measure(self, tensors, scale=None):
            raise OSError("no")

    model = nn.Dense(3, 2)
    optimizer = sgd(model)
    coverage = Coverage()
    hooks = attach([model], optimizer, Request(**ALL), Clock(), Broken(), coverage)
    copied = copy.deepcopy(model)
    pickled = pickle.dumps(list(vars(model)["_msmon_call_hooks"].hooks))
    assert pickle.loads(pickled)[0]("anything") is None
    copied(some(1, 3))
    step(model, optimizer, some(4, 3))
    hooks.close()
    assert "activations: switched off after OSError: no" in coverage.to_dict()["notes"]
    assert not any(key.startswith("_msmon") for key in vars(model))


def test_a_part_that_cannot_be_set_ends_alone(monkeypatch):
    def refuse(*args):
        raise OSError("no")

    monkeypatch.setattr(ModuleHooks, "attach", refuse)
    model = nn.Dense(3, 2)
    coverage = Coverage()
    recorder, hooks = hooked(model, sgd(model), coverage=coverage, **ALL)
    step(model, hooks._optimizer, some(4, 3))
    hooks.close()
    assert "activations: switched off after OSError: no" in coverage.to_dict()["notes"]
    assert recorder.names("grad_unreduced")
    assert not recorder.names("actv")
    assert recorder.names("grad_reduced") == recorder.names("param_updated") == ["weight", "bias"]


def test_two_attachments_give_everything_back_in_any_order():
    original = nn.Cell.__call__
    first, second = CallHooks(), CallHooks()
    cell = nn.Dense(1, 1)
    first.add(cell, BeforeCall(Guarded("nothing")))
    second.add_class(nn.Dense, BeforeCall(Guarded("nothing")))
    assert nn.Cell.__call__ is not original
    first.close()
    assert nn.Cell.__call__ is not original
    second.close()
    second.close()
    assert nn.Cell.__call__ is original
    assert not any(key.startswith("_msmon") for key in vars(cell))


@contextlib.contextmanager
def _recording_ended():
    """MindSpore goes on recording a gradient after its forward has raised, which disturbs what is computed later."""
    try:
        yield
    finally:
        api._pynative_executor.clear_res()


def test_a_forward_that_raises_leaves_nothing_behind():
    class Fails(nn.Cell):
        fail = True

        def construct(self, x):
            if self.fail:
                raise ValueError("on purpose")
            return x * 2

    inner = Fails()
    model = nn.SequentialCell(nn.Dense(3, 3), inner)
    optimizer = sgd(model)
    recorder, hooks = hooked(model, optimizer, Clock(grad_acc_steps=2), **ALL)
    with pytest.raises(ValueError, match="on purpose"), _recording_ended():
        step(model, optimizer, some(2, 3))
    inner.fail = False
    step(model, optimizer, some(2, 3))
    hooks.close()
    micro_steps = {ref.micro_step for ref, _ in recorder.rows if getattr(ref, "name", "") == "1.output"}
    assert micro_steps == {1}


class RaisesOnce(nn.SGD):
    fail = True

    def construct(self, gradients):
        if self.fail:
            self.fail = False
            raise ValueError("on purpose")
        return super().construct(gradients)


def test_training_goes_on_after_a_step_that_raised():
    """It is a step without an update, and what comes next is not taken for a part of it."""
    model = nn.Dense(3, 2)
    optimizer = RaisesOnce(model.trainable_params(), 0.1)
    recorder, hooks = hooked(model, optimizer, **ALL)
    with pytest.raises(ValueError, match="on purpose"), _recording_ended():
        step(model, optimizer, some(2, 3))
    _, gradients = step(model, optimizer, some(2, 3))
    hooks.close()
    ends = [ref for ref, _ in recorder.rows if hasattr(ref, "last_micro_step")]
    assert [(end.step, end.skipped, end.last_micro_step) for end in ends] == [(0, True, 0), (1, False, 0)]
    of_last = recorder.rows[recorder.rows.index((ends[0], -1)) + 1 : -1]
    assert {ref.micro_step for ref, _ in of_last if ref.data_type == "actv"} == {0}
    (handle,) = [handle for ref, handle in of_last if (ref.data_type, ref.name) == ("grad_reduced", "bias")]
    np.testing.assert_array_equal(recorder.values[handle], gradients[1].asnumpy())


@pytest.mark.parametrize(
    "hook",
    [
        "msmon_hooks.mindspore.grads.source._Computed",
        "msmon_hooks.mindspore.optimizer_steps._Before",
        "msmon_hooks.mindspore.optimizer_steps._Raised",
        "msmon_hooks.activation_gradients._GradientOf",
        "msmon_hooks.training_forwards._RootEnters",
        "msmon_hooks.training_forwards._BackwardReaches",
        "msmon_hooks.modules._Leave",
    ],
)
def test_a_hook_fails(hook, monkeypatch):
    """Whoever called it never sees that."""
    results = []
    for fails in (False, True):
        if fails:
            monkeypatch.setattr(f"{hook}.fire", lambda self, *args, **kwargs: 1 / 0)
        mindspore.set_seed(3)
        model = nn.Dense(3, 2)
        optimizer = sgd(model)
        coverage = Coverage()
        _, hooks = hooked(model, optimizer, coverage=coverage, **ALL)
        losses = [step(model, optimizer, some(4, 3, seed=seed))[0] for seed in range(2)]
        hooks.close()
        results.append((losses, [parameter.asnumpy().tobytes() for parameter in model.get_parameters()]))
    assert results[0] == results[1]
    assert any("ZeroDivisionError" in note for note in coverage.to_dict()["notes"])


@pytest.mark.parametrize("given", [True, False])
def test_steps_that_the_program_ends(given):
    """Updates by hand, without an optimizer to be seen."""
    network = nn.Dense(2, 1)
    parameters = network.trainable_params()
    coverage = Coverage()
    recorder, hooks = hooked(network, None, coverage=coverage, **ALL)
    gradient_of = mindspore.value_and_grad(lambda x: network(x).sum(), None, parameters)
    kept = []
    for _ in range(2):
        before = parameters[0].asnumpy().copy()
        _, gradients = gradient_of(ops.ones((3, 2)))
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.assign_value(parameter - 0.1 * gradient)
        kept.append((before, gradients[0].asnumpy(), parameters[0].asnumpy().copy()))
        hooks.end_step(gradients if given else None)
    hooks.close()
    events = [event for event, handle in recorder.rows if handle == -1]
    assert [event.step for event in events] == [0, 1]
    for at, data_type in enumerate(("param_origin", "grad_reduced", "param_updated")):
        rows = [recorder.values[handle] for ref, handle in recorder.rows
                if getattr(ref, "data_type", "") == data_type and ref.name == "weight"]  # fmt: skip
        if data_type == "grad_reduced" and not given:
            assert not rows
            continue
        for row, expected in zip(rows, kept, strict=True):
            np.testing.assert_allclose(row, expected[at], rtol=1e-6)
    document = coverage.to_dict()
    assert ("monitor.step(gradients)" in document["without_rows"].get("grad_reduced", "")) is not given
    reasons = {entry["reason"] for entry in document["missing"] if entry["data_type"] == "exp_avg"}
    assert reasons == {"no optimizer was given"}


def test_a_step_by_hand_beside_those_of_an_optimizer():
    network = nn.Dense(2, 1)
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    _, hooks = hooked(network, optimizer, weights=True)
    _, gradients = mindspore.value_and_grad(lambda x: network(x).sum(), None, optimizer.parameters)(ops.ones((3, 2)))
    optimizer(gradients)
    with pytest.raises(ValueError, match="counted already"):
        hooks.end_step()
    hooks.close()
