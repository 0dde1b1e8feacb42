"""Several MindSpore optimizers that train together: whose gradients, moments and weights, and when a step is over."""

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from msmon_hooks import Clock, Coverage, Request
from msmon_hooks.mindspore import attach
from msmon_hooks.mindspore.adam import adam_settings
from msmon_hooks.mindspore.grads.data_parallel import DataParallelGradients
from msmon_hooks.optimizer_group import OptimizerGroup
from msmon_hooks.parameters import Weight

from .test_mindspore_hooks import ALL, Recorder, Trainer, some


class Watched:
    """A training that is recorded, and what the optimizers hold around each of their calls."""

    def __init__(self, models, optimizers):
        self.recorder, self.coverage = Recorder(), Coverage()
        request = Request(**ALL)
        self.hooks = attach(models, optimizers, request, Clock(), self.recorder, self.coverage)

    def steps(self):
        """One dictionary a step: data type and name of each row to its value."""
        self.hooks.close()
        found, rows = [], {}
        for ref, handle in self.recorder.rows:
            if handle == -1:
                found.append(rows)
                rows = {}
            elif ref.data_type not in ("actv", "actv_grad"):
                rows[ref.data_type, f"{ref.vpp_stage}:{ref.name}"] = self.recorder.values[handle]
        return found

    @property
    def ends(self):
        return [ref for ref, handle in self.recorder.rows if handle == -1]


def kept(optimizer):
    """What an optimizer keeps, by the names of its rows."""
    if isinstance(optimizer, nn.Adam):
        return {"exp_avg": optimizer.moment1, "exp_avg_sq": optimizer.moment2}
    return {"state": optimizer.moments}


class Expected:
    """Calls optimizers, and writes down by MindSpore's own means what the rows of the step should be."""

    def __init__(self, names):
        self.names = {id(parameter): name for name, parameter in names.items()}
        self.parameters = names
        self.steps, self.rows, self.called = [], {}, set()

    def call(self, optimizer, gradients):
        parameters = list(optimizer.parameters)
        for at, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            name = self.names[id(parameter)]
            self.rows["param_origin", name] = parameter.asnumpy().copy()
            self.rows["grad_unreduced", name] = self.rows["grad_reduced", name] = gradient.asnumpy().copy()
            if id(optimizer) in self.called:
                for key, values in kept(optimizer).items():
                    row = f"{name}.moments" if key == "state" else name
                    self.rows[key, row] = values[at].asnumpy().copy()
        self.called.add(id(optimizer))
        optimizer(gradients)

    def end(self):
        updated = {("param_updated", name): one.asnumpy().copy() for name, one in self.parameters.items()}
        self.steps.append(self.rows | updated)
        self.rows = {}

    def weights(self):
        return [parameter.asnumpy().tobytes() for parameter in self.parameters.values()]


def check(found, expected):
    assert len(found) == len(expected)
    for rows, wanted in zip(found, expected, strict=True):
        assert sorted(rows) == sorted(wanted)
        for key, value in wanted.items():
            np.testing.assert_array_equal(rows[key], value, err_msg=str(key))


def pair(first, second):
    return [nn.Adam(first.trainable_params(), 1e-2), nn.Momentum(second.trainable_params(), 0.1, 0.9)]


def both_at_once(expected, optimizers, model, *_):
    """One backward, then both."""
    parameters = [one for optimizer in optimizers for one in optimizer.parameters]
    grad = mindspore.value_and_grad(lambda x: ops.square(model(x)).mean(), None, parameters)
    for step in range(3):
        _, gradients = grad(some(4, 3, seed=step))
        expected.call(optimizers[0], gradients[:2])
        expected.call(optimizers[1], gradients[2:])
        expected.end()


def second_first(expected, optimizers, model, *_):
    """Gradients of each on its own, and the order is another one than in the list."""
    first, second = (
        mindspore.value_and_grad(lambda x: ops.square(model(x)).mean(), None, one.parameters) for one in optimizers
    )
    for step in range(3):
        expected.call(optimizers[1], second(some(4, 3, seed=step))[1])
        expected.call(optimizers[0], first(some(4, 3, seed=step))[1])
        expected.end()


def one_again(expected, optimizers, model, *_):
    """The first three times, then the second: a step each."""
    first, second = (
        mindspore.value_and_grad(lambda x: ops.square(model(x)).mean(), None, one.parameters) for one in optimizers
    )
    for step in range(6):
        expected.call(optimizers[0], first(some(4, 3, seed=step))[1])
        if step % 3 == 2:
            expected.call(optimizers[1], second(some(4, 3, seed=step))[1])
        expected.end()


@pytest.mark.parametrize("way", [both_at_once, second_first, one_again])
def test_two_over_one_network(way):
    weights = []
    for watch in (False, True):
        mindspore.set_seed(4)
        model = nn.SequentialCell(nn.Dense(3, 5), nn.Tanh(), nn.Dense(5, 2))
        optimizers = pair(model[0], model[2])
        expected = Expected({f"0:{name}": one for name, one in model.parameters_and_names()})
        watched = Watched([model], optimizers) if watch else None
        way(expected, optimizers, model)
        weights.append(expected.weights())
    assert weights[0] == weights[1]
    check(watched.steps(), expected.steps)
    document = watched.coverage.to_dict()
    assert not document["notes"]
    reason = "nothing named exp_avg_sq; its state has moments"
    assert {entry["name"]: entry["reason"] for entry in document["apart"]} == {"2.weight": reason, "2.bias": reason}


def test_the_two_of_a_gan():
    """They take turns: a step is a turn of each."""
    weights = []
    for watch in (False, True):
        mindspore.set_seed(5)
        generator, discriminator = nn.Dense(3, 4), nn.SequentialCell(nn.Dense(4, 5), nn.Tanh(), nn.Dense(5, 1))
        models = [generator, discriminator]
        names = {f"{at}:{name}": one for at, model in enumerate(models) for name, one in model.parameters_and_names()}
        expected, optimizers = Expected(names), pair(generator, discriminator)
        watched = Watched(models, optimizers) if watch else None

        def judges(noise, real):
            return (discriminator(generator(noise)) - discriminator(real)).mean()  # noqa: B023

        def fools(noise):
            return -discriminator(generator(noise)).mean()  # noqa: B023

        judging = mindspore.value_and_grad(judges, None, optimizers[1].parameters)
        fooling = mindspore.value_and_grad(fools, None, optimizers[0].parameters)
        for step in range(3):
            noise, real = some(4, 3, seed=step), some(4, 4, seed=step)
            expected.call(optimizers[1], judging(noise, real)[1])
            expected.call(optimizers[0], fooling(noise)[1])
            expected.end()
        weights.append(expected.weights())
    assert weights[0] == weights[1]
    check(watched.steps(), expected.steps)


def test_a_cell_skips_one_of_two():
    """A step is skipped where each of the updates was."""
    networks = [nn.Dense(3, 2), nn.Dense(3, 2)]
    optimizers = [nn.SGD(network.trainable_params(), 0.1) for network in networks]
    watched = Watched(networks, optimizers)
    scale = nn.FixedLossScaleUpdateCell(8.0)
    trainers = [
        Trainer(nn.WithLossCell(network, nn.MSELoss()), optimizer, scale)
        for network, optimizer in zip(networks, optimizers, strict=True)
    ]
    good, bad, label = some(4, 3), Tensor(np.full((4, 3), np.inf, np.float32)), some(4, 2, seed=1)
    for batches in ((good, good), (bad, good), (bad, bad), (good, bad)):
        for trainer, batch in zip(trainers, batches, strict=True):
            trainer(batch, label)
    assert [end.skipped for end in watched.ends] == [False, False, True, False]
    assert [("param_updated", "0:weight") in rows for rows in watched.steps()] == [True, True, False, True]


@pytest.mark.parametrize(("first", "second"), [(8.0, 8.0), (8.0, 1.0), (4.0, 8.0)])
def test_scales_of_optimizers(first, second, caplog):
    networks = [nn.Dense(3, 2), nn.Dense(3, 2)]
    scales = (first, second)
    optimizers = [
        nn.SGD(network.trainable_params(), 0.1, loss_scale=scale)
        for network, scale in zip(networks, scales, strict=True)
    ]
    watched = Watched(networks, optimizers)
    for network, optimizer, scale in zip(networks, optimizers, scales, strict=True):
        grad = mindspore.value_and_grad(lambda x: network(x).sum() * scale, None, optimizer.parameters)  # noqa: B023
        optimizer(grad(some(2, 3))[1])
    watched.hooks.close()
    recorder = watched.recorder
    of_rows = {
        (ref.data_type, ref.vpp_stage): recorder.scales[handle] or 1.0
        for ref, handle in recorder.rows
        if handle != -1 and ref.data_type in ("grad_reduced", "actv_grad")
    }
    assert [of_rows["grad_reduced", stage] for stage in (0, 1)] == [first, second]
    same = first == second
    assert [of_rows["actv_grad", stage] for stage in (0, 1)] == ([first, second] if same else [1.0, 1.0])
    assert ("made with loss_scale" in caplog.text) is not same


def test_one_that_raises_ends_the_step():
    class Raises(nn.SGD):
        def construct(self, gradients):
            raise ValueError("on purpose")

    networks = [nn.Dense(3, 2), nn.Dense(3, 2)]
    optimizers = [nn.SGD(networks[0].trainable_params(), 0.1), Raises(networks[1].trainable_params(), 0.1)]
    watched = Watched(networks, optimizers)
    for _ in range(2):
        for network, optimizer in zip(networks, optimizers, strict=True):
            grad = mindspore.value_and_grad(lambda x: network(x).sum(), None, optimizer.parameters)  # noqa: B023
            gradients = grad(some(2, 3))[1]
            if isinstance(optimizer, Raises):
                with pytest.raises(ValueError, match="on purpose"):
                    optimizer(gradients)
            else:
                optimizer(gradients)
    assert [(end.step, end.skipped) for end in watched.ends] == [(0, True), (1, True)]
    watched.hooks.close()


def test_gradients_that_are_not_as_many_as_the_parameters_of_their_optimizer():
    class Lenient(nn.Optimizer):
        def construct(self, gradients):
            return True

    model = nn.SequentialCell(nn.Dense(3, 5), nn.Dense(5, 2, has_bias=False))
    optimizers = [Lenient(0.1, model[0].trainable_params()), nn.SGD(model[1].trainable_params(), 0.1)]
    watched = Watched([model], optimizers)
    parameters = model.trainable_params()
    _, gradients = mindspore.value_and_grad(lambda x: model(x).sum(), None, parameters)(some(2, 3))
    optimizers[0](gradients)
    optimizers[1](gradients[2:])
    (rows,) = watched.steps()
    assert {name for data_type, name in rows if data_type == "grad_reduced"} == {"0:1.weight"}
    assert any("there are 2 parameters, and 3 gradients" in note for note in watched.coverage.to_dict()["notes"])


def test_settings_are_those_of_the_optimizer_of_the_parameter():
    model = nn.SequentialCell(nn.Dense(3, 2), nn.Dense(2, 2), nn.Dense(2, 2))
    group = OptimizerGroup(
        [
            nn.Momentum(model[0].trainable_params(), 0.1, 0.9),
            nn.Adam(model[1].trainable_params(), beta1=0.8),
            nn.Adam(model[2].trainable_params(), beta1=0.7),
        ]
    )
    settings = adam_settings(group)
    found = [settings(Weight(name="w", vpp_stage=0, index=0, parameter=layer.weight)) for layer in model]
    assert found[0] is None
    assert [one.betas[0] for one in found[1:]] == pytest.approx([0.8, 0.7])


@pytest.mark.parametrize(("width", "known"), [(3, True), (2, False)])
def test_a_reducer_says_whose_gradients_it_has_by_their_shapes(width, known):
    model = nn.SequentialCell(nn.Dense(2, 2), nn.Dense(2, width), nn.Dense(width, 1, has_bias=False))
    coverage, ready = Coverage(), []
    group = OptimizerGroup([nn.SGD(layer.trainable_params(), 0.1) for layer in model])
    source = DataParallelGradients([model], group, micro_steps=2, coverage=coverage)
    for layer in model:
        gradients = [ops.ones_like(parameter) for parameter in layer.trainable_params()]
        source.reduces_now(source.weights(), gradients, lambda entries, complete: ready.extend(entries))
    names = ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight"] if known else ["2.weight"]
    assert [weight.name for weight, _ in ready] == names
    assert all(tuple(gradient.shape) == tuple(weight.parameter.shape) for weight, gradient in ready)
    assert any("may be those of several" in note for note in coverage.to_dict()["notes"]) is not known
