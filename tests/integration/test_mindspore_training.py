"""The ways to train with MindSpore, each unchanged by the monitor, and what is recorded of it."""

import gc
import json
import logging
import weakref

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops
from mindspore import dataset as datasets
from mindspore.experimental import optim as experimental

import msmon_io
import msmon_stats
from msmon.mindspore import TrainerMon

from .mindspore_models import batches, build, mlp, train, weight_bytes
from .run_files import coverage, run_dir, table

EVERYTHING = {
    "wg_distribution": True,
    "xy_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "mg_direction": True,
    "stack_info": True,
    "recording_l2_features": True,
    "l2_targets": {"linear_hook": []},
    "ops": ["min", "max", "mean", "norm", "nans", "zeros"],
}


# Ways to train. Each returns the losses, bit by bit.


def functional(model, optimizer):
    return train("mlp", model, optimizer)


def accumulating(model, optimizer):
    return train("mlp", model, optimizer, 2)


def one_step_cell(model, optimizer):
    step = nn.TrainOneStepCell(nn.WithLossCell(model, nn.MSELoss()), optimizer)
    label = Tensor(np.zeros((5, 2), np.float32))
    return [step(batch, label).asnumpy().tobytes() for batch in batches("mlp")[:4]]


def model_train(model, optimizer):
    data = {"batch": np.stack([batch.asnumpy() for batch in batches("mlp")[:4]]), "label": np.zeros((4, 5, 2), "f4")}
    losses = []

    class Losses(mindspore.Callback):
        def on_train_step_end(self, run_context):
            losses.append(run_context.original_args().net_outputs.asnumpy().tobytes())

    trainer = mindspore.Model(model, nn.MSELoss(), optimizer)
    stream = datasets.NumpySlicesDataset(data, shuffle=False)
    trainer.train(1, stream, callbacks=Losses(), dataset_sink_mode=False)
    return losses


def adam_weight_decay(model):
    return nn.AdamWeightDecay(model.trainable_params(), 1e-2, weight_decay=0.1)


OPTIMIZERS = {
    "nn.Adam": lambda model: nn.Adam(model.trainable_params(), 1e-2),
    "nn.Adam in groups": lambda model: nn.Adam(
        [{"params": [model.fc2.bias], "lr": 1e-3}, {"params": [model.fc1.weight, model.fc1.bias, model.fc2.weight]}],
        1e-2,
    ),
    "nn.AdamWeightDecay": adam_weight_decay,
    "experimental.AdamW": lambda model: experimental.AdamW(model.trainable_params(), 1e-2),
    "mint.SGD": lambda model: mint.optim.SGD(model.trainable_params(), 1e-2, momentum=0.9),
    "nn.Momentum": lambda model: nn.Momentum(model.trainable_params(), 1e-2, 0.9),
}
WAYS = [
    (functional, "nn.Adam"),
    (functional, "nn.Adam in groups"),
    (functional, "nn.AdamWeightDecay"),
    (functional, "experimental.AdamW"),
    (functional, "mint.SGD"),
    (functional, "nn.Momentum"),
    (accumulating, "nn.Adam"),
    (one_step_cell, "nn.Adam"),
    (model_train, "nn.AdamWeightDecay"),
]


@pytest.mark.parametrize(("way", "name"), WAYS, ids=[f"{way.__name__} {name}" for way, name in WAYS])
def test_training_is_unchanged_and_complete(way, name, write_config, output_dir):
    config = write_config(**EVERYTHING)
    results = []
    weights = {}
    for monitored in (False, True):
        model, _ = build("mlp")
        optimizer = OPTIMIZERS[name](model)
        monitor = TrainerMon(config) if monitored else None
        if monitor is not None:
            monitor.set_monitor(model, 2 if way is accumulating else 1, optimizer)
        losses = way(model, optimizer)
        results.append((losses, weight_bytes(model)))
        if monitor is not None:
            monitor.close()
            weights = {parameter.name: parameter.asnumpy() for parameter in optimizer.parameters}
    assert results[0] == results[1]
    assert len(results[0][0]) == (8 if way is accumulating else 4)
    found = coverage(output_dir)
    kept = ("exp_avg", "exp_avg_sq") if "Adam" in name else ("state",)
    for data_type in ("grad_unreduced", "grad_reduced", "param_origin", "param_updated", *kept, "other"):
        assert found["seen"][data_type] == 4, data_type
    assert found["seen"]["actv"] == 8
    # The momentum of SGD is no average: it has rows under its own name.
    momentum = {"mint.SGD": "momentum_buf", "nn.Momentum": "moments"}.get(name)
    assert found["missing"] == []
    reasons = {entry["reason"] for entry in found["apart"]}
    expected = {f"nothing named {one}; its state has {momentum}" for one in ("exp_avg", "exp_avg_sq")}
    assert reasons == (expected if momentum else set())
    directory = run_dir(output_dir)
    # No moments before the first update; later those that stand before the update.
    assert not (directory / f"{kept[0]}_0-0.csv").exists()
    before, after = table(directory, "param_origin", 2), table(directory, "param_updated", 2)
    assert table(directory, "param_origin", 3)["fc1.weight"]["norm"] == after["fc1.weight"]["norm"]
    # The in-place operators of mint.optim do nothing on MindSpore's CPU: there these optimizers update no weight.
    trains = not name.startswith("mint")
    assert (results[1][1] != weight_bytes(build("mlp")[0])) is trains
    assert (before["fc1.weight"]["norm"] != after["fc1.weight"]["norm"]) is trains
    last = table(directory, "param_updated", 3)
    for key, array in weights.items():
        assert float(last[key]["norm"]) == pytest.approx(np.linalg.norm(array.astype("f8")), rel=1e-5)
    assert set(table(directory, kept[0], 3)) == {f"{key}.{momentum}" if momentum else key for key in weights}


def test_moments_are_those_before_the_update(write_config, output_dir):
    for name, first, second in (
        ("nn.Adam", "moment1", "moment2"),
        ("nn.AdamWeightDecay", "moments1", "moments2"),
        ("experimental.AdamW", "exp_avg", "exp_avg_sq"),
    ):
        model, _ = build("mlp")
        optimizer = OPTIMIZERS[name](model)
        with TrainerMon(write_config(mv_distribution=True, format="api", ops=["norm"])) as monitor:
            monitor.set_monitor(model, 1, optimizer)
            train("mlp", model, optimizer, steps=2)
            stood = {
                data_type: {
                    parameter.name: float(np.linalg.norm(moment.asnumpy().astype("f8")))
                    for parameter, moment in zip(optimizer.parameters, getattr(optimizer, attribute), strict=True)
                }
                for data_type, attribute in (("exp_avg", first), ("exp_avg_sq", second))
            }
            train("mlp", model, optimizer, steps=1)
            monitor._session.pipeline.drain()
            for data_type, norms in stood.items():
                metrics = monitor._session.pipeline.metrics(data_type)
                assert len(metrics) == 4, name
                for parameter, norm in norms.items():
                    found = metrics[f"0:{parameter}/rank0/{data_type}"]["norm"]
                    assert found == pytest.approx(norm, rel=1e-6), (name, parameter)


def test_several_optimizers(write_config, output_dir):
    """Each parameter has the moments of its own, in the files as in the optimizer."""
    model, _ = build("mlp")
    optimizers = [
        nn.Adam(model.fc1.trainable_params(), 1e-2),
        nn.Momentum(model.fc2.trainable_params(), 1e-2, 0.9),
    ]
    parameters = [one for optimizer in optimizers for one in optimizer.parameters]
    grad = mindspore.value_and_grad(lambda batch: model(batch).pow(2).mean(), None, parameters)
    with TrainerMon(write_config(mv_distribution=True, wg_distribution=True, ops=["norm"])) as monitor:
        monitor.set_monitor(model, 1, optimizer=optimizers)
        for batch in batches("mlp")[:3]:
            before = [optimizers[0].moment1[0], optimizers[0].moment2[0], optimizers[1].moments[0]]
            before = [float(np.linalg.norm(one.asnumpy())) for one in before]
            _, gradients = grad(batch)
            for optimizer, own in zip(optimizers, (gradients[:2], gradients[2:]), strict=True):
                optimizer(own)
    directory = run_dir(output_dir)
    found = [
        table(directory, "exp_avg", 2)["fc1.weight"],
        table(directory, "exp_avg_sq", 2)["fc1.weight"],
        table(directory, "state", 2)["fc2.weight.moments"],
    ]
    assert [float(row["norm"]) for row in found] == pytest.approx(before, rel=1e-5)
    norms = [float(row["norm"]) for row in table(directory, "grad_reduced", 2).values()]
    assert norms == pytest.approx([float(np.linalg.norm(one.asnumpy())) for one in gradients], rel=1e-5)


def test_a_nan_is_found_where_it_began(write_config, output_dir, caplog):
    rules = {"rules": [{"rule_name": "AnomalyNan", "args": {}}], "dump": True}
    config = write_config(wg_distribution=True, xy_distribution=True, ops=["norm", "min", "max", "nans"], alert=rules)

    def poison(step, batch):
        return Tensor(np.full(batch.shape, np.nan, np.float32)) if step == 2 else batch

    for change, expected in ((lambda step, batch: batch, None), (poison, ("0:fc1.input:0/rank0/actv", 2))):
        model, optimizer = build("mlp")
        with TrainerMon(config) as monitor:
            monitor.set_monitor(model, 1, optimizer)
            train("mlp", model, optimizer, change=change)
        records = json.loads((output_dir / "anomaly_detected" / "rank0" / "anomaly.json").read_text())
        first = next(iter(records.values()), None)
        assert (first and (first["tag_name"], first["step"])) == (expected and expected)
        if expected:
            assert first["stats"]
            names = {record["tag_name"] for record in records.values() if record["step"] == 2}
            assert "0:fc1.weight/rank0/grad_reduced" in names


def test_only_one_value_is_nan_and_min_and_max_do_not_show_it(write_config, output_dir):
    config = write_config(xy_distribution=True, ops=["min", "max", "nans", "norm"])

    def poison(step, batch):
        values = batch.asnumpy().copy()
        values[0, 0] = np.nan
        return Tensor(values)

    model, optimizer = build("mlp")
    with TrainerMon(config) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        train("mlp", model, optimizer, steps=1, change=poison)
    row = table(run_dir(output_dir), "actv", 0)["fc1.input"]
    assert (row["nans"], row["norm"], row["min"]) == ("1", "nan", "nan")


def test_formats(write_config, output_dir):
    model, optimizer = build("mlp")
    with TrainerMon(write_config(wg_distribution=True, xy_distribution=True, format="api")) as monitor:
        monitor.set_monitor(model, 1, optimizer, start_iteration=7)
        assert monitor.generate_wgrad_metrics() == ({}, {})
        train("mlp", model, optimizer)
        reduced, unreduced = monitor.generate_wgrad_metrics()
        activations, gradients = monitor.generate_xy_metrics()
    assert list(reduced) == [
        f"0:{name}/rank0/grad_reduced" for name in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
    ]
    assert {tag.replace("unreduced", "reduced") for tag in unreduced} == set(reduced)
    assert "0:fc1.input:0/rank0/actv" in activations
    assert "0:fc2.output:0/rank0/actv_grad" in gradients
    assert not output_dir.exists()

    config = write_config(mv_distribution=True, ur_distribution=True, format=["tensorboard", "csv"])
    with TrainerMon(config) as monitor:
        monitor.set_monitor(model, 1, optimizer, start_iteration=11)
        train("mlp", model, optimizer)
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(run_dir(output_dir)))
    events.Reload()
    scalars = events.Tags()["scalars"]
    assert "0:fc1.weight/rank0/exp_avg_norm" in scalars
    assert [event.step for event in events.Scalars("0:fc1.weight/rank0/exp_avg_norm")] == [11, 12, 13, 14]
    assert any(tag.endswith("/adam_update") for tag in events.Tags()["images"])
    # The optimizer was updated before, so its moments are there from the first step on.
    assert (run_dir(output_dir) / "exp_avg_11-11.csv").exists()


def test_evaluations_are_not_recorded_and_interval_and_times_hold(write_config, output_dir):
    model, optimizer = build("mlp")
    config = write_config(xy_distribution=True, wg_distribution=True, start_step=1, step_interval=2, collect_times=2)
    original = nn.Cell.__call__
    monitor = TrainerMon(config)
    monitor.set_monitor(model, 1, optimizer)
    assert nn.Cell.__call__ is not original
    grad = mindspore.value_and_grad(lambda batch: model(batch).sum(), None, optimizer.parameters)
    for batch in batches("mlp")[:6]:
        _, gradients = grad(batch)
        model(batch)
        optimizer(gradients)
        model(batch)
    # Both samples were taken, and everything came off by itself.
    assert nn.Cell.__call__ is original
    assert not any(key.startswith("_msmon") for _, cell in model.cells_and_names() for key in vars(cell))
    assert not any(parameter.hooks() for parameter in model.get_parameters())
    monitor.close()
    files = {path.name for path in run_dir(output_dir).glob("*.csv")}
    assert {name for name in files if name.startswith("actv_")} >= {"actv_1-1.csv", "actv_3-3.csv"}
    assert "actv_5-5.csv" not in files
    assert {row["micro_step"] for row in table(run_dir(output_dir), "actv", 3).values()} == {"0"}


def test_an_adapter_with_torchs_interface(write_config, output_dir):
    class Module:
        """What a torch-like adapter offers, over real Cells and tensors."""

        def __init__(self, cell, children=()):
            self.cell, self.children = cell, dict(children)
            self.before, self.after = [], []

        def named_modules(self, prefix=""):
            yield prefix, self
            for name, child in self.children.items():
                yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

        def named_parameters(self):
            for name, child in self.children.items():
                for key, parameter in child.cell.parameters_and_names():
                    yield f"{name}.{key}", parameter

        def register_forward_pre_hook(self, hook, *, with_kwargs=False):
            self.before.append(hook)
            return Removal(self.before, hook)

        def register_forward_hook(self, hook, *, with_kwargs=False):
            self.after.append(hook)
            return Removal(self.after, hook)

        def __call__(self, *args):
            for hook in self.before:
                hook(self, args, {})
            output = self.forward(*args)
            for hook in self.after:
                hook(self, args, {}, output)
            return output

        def forward(self, x):
            if not self.children:
                return self.cell(x)
            for child in self.children.values():
                x = child(x)
            return x

    class Layer(Module):
        def forward(self, x):
            return super().forward(x)

    class Removal:
        def __init__(self, hooks, hook):
            self.hooks, self.hook = hooks, hook

        def remove(self):
            self.hooks.remove(self.hook)

    class Optimizer:
        def __init__(self, parameters):
            self.param_groups = [{"params": list(parameters)}]
            self.state = {}

        def step(self, closure=None):
            if closure is not None:
                closure()
            for parameter in self.param_groups[0]["params"]:
                buffer = self.state.get(parameter, {}).get("momentum_buffer")
                buffer = parameter.grad if buffer is None else buffer * 0.9 + parameter.grad
                self.state[parameter] = {"momentum_buffer": buffer}
                ops.assign(parameter, parameter - 0.1 * buffer)

    cell = mlp()
    parts = {name: Layer(getattr(cell, name)) for name in ("fc1", "relu", "fc2")}
    model = Layer(cell, parts)
    parameters = [parameter for _, parameter in model.named_parameters()]
    optimizer = Optimizer(parameters)
    config = write_config(xy_distribution=True, wg_distribution=True, mv_distribution=True, param_distribution=True)
    with TrainerMon(config, params_have_main_grad=False) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        grad = mindspore.value_and_grad(lambda x: model(x).sum(), None, parameters)

        def backward(batch):
            for parameter, gradient in zip(parameters, grad(batch)[1], strict=True):
                parameter.grad = gradient

        first, second, third = batches("mlp")[:3]
        backward(first)
        optimizer.step()
        backward(second)
        optimizer.step()
        # What stands when the step begins is not what the update consumes.
        optimizer.step(lambda: backward(third))
        norms = [float(np.linalg.norm(parameter.grad.asnumpy())) for parameter in parameters]
    assert not any(part.before or part.after for part in (model, *parts.values()))
    assert "step" not in vars(optimizer)
    found = coverage(output_dir)
    assert {entry["data_type"] for entry in found["apart"]} == {"exp_avg", "exp_avg_sq"}
    assert found["seen"]["actv"] == 8
    directory = run_dir(output_dir)
    for data_type in ("grad_unreduced", "grad_reduced"):
        rows = table(directory, data_type, 2)
        assert [float(rows[name]["norm"]) for name, _ in model.named_parameters()] == pytest.approx(norms, rel=1e-5)
    assert set(table(directory, "state", 1)) == {f"{name}.momentum_buffer" for name, _ in model.named_parameters()}


def test_arguments_are_checked_and_nothing_is_kept_alive(write_config, output_dir, caplog):
    caplog.set_level(logging.WARNING)
    model, optimizer = build("mlp")
    monitor = TrainerMon(write_config(wg_distribution=True, xy_distribution=True, targets={"fc3": {}}))
    with pytest.raises(TypeError, match="grad_acc_steps"):
        monitor.set_monitor(model, optimizer, 1)
    with pytest.raises(TypeError, match="optimizer"):
        monitor.set_monitor(model, 1, 3)
    with pytest.raises(TypeError, match="optimizer is an empty list"):
        monitor.set_monitor(model, 1, [])
    with pytest.raises(TypeError, match=r"optimizer must have a method __call__\(\) or step\(\), got int"):
        monitor.set_monitor(model, 1, [optimizer, 3])
    with pytest.raises(TypeError, match="model"):
        monitor.set_monitor(optimizer.parameters, 1, optimizer)
    monitor.set_monitor(model, 1, optimizer)
    monitor.set_monitor(model, 1, optimizer)
    assert "nothing in the model is called 'fc3'; near: " in caplog.text
    train("mlp", model, optimizer)
    monitor.close()
    dead = [weakref.ref(thing) for thing in (model, optimizer, monitor)]
    del model, optimizer, monitor
    gc.collect()
    assert [reference() for reference in dead] == [None, None, None]


def test_fingerprints(write_config, output_dir):
    model, optimizer = build("mlp")
    config = write_config(param_distribution=True, wg_distribution=True, ops=["fingerprint", "norm"])
    with TrainerMon(config) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        train("mlp", model, optimizer)
    found = {}
    for path in sorted(run_dir(output_dir).glob("param_updated_*.csv")):
        for one in msmon_io.read_csv(path):
            found |= dict(zip(one.names, one.text["fingerprint"], strict=True))
    weights = {
        one.name: msmon_stats.partial_many([one], fingerprint=True).asnumpy() for one in model.trainable_params()
    }
    assert found == {name: msmon_stats.fingerprints(row)[0] for name, row in weights.items()}
    assert len(set(found.values())) == len(found) == 4
