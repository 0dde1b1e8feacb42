"""What MindSpore compiles is not seen inside; the monitor says so, and the training goes on unchanged."""

import mindspore
import pytest
from mindspore import nn

from msmon.mindspore import TrainerMon

from .mindspore_models import batches, build, train, weight_bytes
from .run_files import coverage


@pytest.fixture
def trained_twice(write_config):
    """Trains without and with a monitor, and checks that losses and weights are the same, bit by bit."""
    config = write_config(xy_distribution=True, wg_distribution=True, param_distribution=True)

    def train_twice(make, run):
        results = []
        for monitored in (False, True):
            model, optimizer = make()
            if monitored:
                with TrainerMon(config) as monitor:
                    monitor.set_monitor(model, 1, optimizer)
                    losses = run(model, optimizer)
            else:
                losses = run(model, optimizer)
            results.append((losses, weight_bytes(model)))
        assert results[0] == results[1]

    return train_twice


class Compiled(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inside = nn.Dense(8, 8)

    @mindspore.jit
    def construct(self, x):
        return self.inside(x)


def with_a_compiled_cell():
    mindspore.set_seed(5)
    model = nn.SequentialCell(nn.Dense(4, 8), Compiled(), nn.Dense(8, 2))
    return model, nn.Adam(model.trainable_params(), 1e-2)


def train_mlp(model, optimizer):
    return train("mlp", model, optimizer)


def test_a_cell_compiled_by_jit(trained_twice, output_dir, caplog):
    trained_twice(with_a_compiled_cell, train_mlp)
    assert "compiled by jit, so that nothing inside is recorded: 1" in caplog.text
    found = coverage(output_dir)
    assert [(entry["name"], entry["reason"]) for entry in found["missing"]] == [
        ("1.inside", "hook did not fire: inside a Cell compiled by jit")
    ]
    assert found["seen"]["grad_unreduced"] == 6
    assert found["seen"]["actv"] == 8


def test_graph_mode(trained_twice, output_dir, caplog):
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    try:
        trained_twice(with_a_compiled_cell, train_mlp)
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    assert "MindSpore runs in graph mode" in caplog.text
    found = coverage(output_dir)
    assert found["seen"]["actv"] == 0
    assert {entry["reason"] for entry in found["missing"]} == {"hook did not fire: MindSpore runs in graph mode"}
    # The optimizer is called from Python: what it is given and what it updates is recorded all the same.
    assert found["seen"]["grad_reduced"] == found["seen"]["param_updated"] == 6


@pytest.mark.parametrize("capture", ["ast", "bytecode"])
def test_a_function_that_jit_compiles(capture, trained_twice, output_dir, caplog):
    def run(model, optimizer):
        def forward(x):
            return model(x).sum()

        grad = mindspore.value_and_grad(mindspore.jit(forward, capture_mode=capture), None, optimizer.parameters)
        losses = []
        for batch in batches("mlp")[:2]:
            loss, gradients = grad(batch)
            optimizer(gradients)
            losses.append(loss.asnumpy().tobytes())
        return losses

    trained_twice(lambda: build("mlp"), run)
    # The function says nothing of itself before it runs.
    said = [one.getMessage() for one in caplog.records if "a function that is compiled as a whole" in one.getMessage()]
    assert len(said) == 2
    assert said[1].startswith("msmon: no actv: ")
    found = coverage(output_dir)
    assert any("a function that is compiled as a whole" in note for note in found["notes"])
    assert found["seen"]["actv"] == 0
    assert found["seen"]["grad_reduced"] == found["seen"]["param_updated"] == 4
