"""Which steps compile something: the first sampled one, and none that start, stop or change sampling later."""

from __future__ import annotations

import logging
import os

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters

from msmon_hooks import Clock, Coverage, Request, Schedule
from tests.compiled.models import GPT, batch
from tests.compiled.training import compiled
from tests.hooks.recorder import Monitored

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
ASKED = {"activations": True, "activation_gradients": True, "inside_compiled": "all"}
ROWS = 97
WHOLE = bool(os.environ.get("MSMON_WHOLE_TABLE"))


class Loop:
    """A training whose compilations are counted; `before`: the monitor is set before anything is compiled."""

    def __init__(self, way: str, *, before: bool = True, **schedule: int) -> None:
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        self.model = GPT()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        if before:
            self.watch(Schedule(**schedule))
        self.run = compiled(self.model, way, "aot_eager")

    def watch(self, schedule: Schedule) -> None:
        self.monitored = Monitored(self.model, self.optimizer, clock=Clock(schedule=schedule), **ASKED)
        self.monitored.recorder.step_end = lambda event: None  # type: ignore[method-assign]

    def steps(self, count: int) -> list[tuple[int, int]]:
        """Graphs that were compiled and rows that were recorded in each step."""
        found = []
        for number in range(count):
            graphs = counters["stats"].get("unique_graphs", 0)
            inputs, wanted = batch("gpt", number)
            F.cross_entropy(self.run(inputs).flatten(0, 1), wanted.flatten()).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            rows = 0
            if hasattr(self, "monitored"):
                rows = len([key for key in self.monitored.recorder.rows if key[0].startswith("actv")])
                self.monitored.recorder.rows.clear()
            found.append((counters["stats"]["unique_graphs"] - graphs, rows))
        return found


@pytest.fixture(params=["plain", "blocks"] if WHOLE else ["blocks"])
def way(request):
    return request.param


def test_cadence(way):
    loop = Loop(way, start_step=1, step_interval=3)
    assert loop.steps(8) == [(1, 0), (1, ROWS), (0, 0), (0, 0), (0, ROWS), (0, 0), (0, 0), (0, ROWS)]
    loop.monitored.clock.reschedule(Schedule(step_interval=2))
    assert loop.steps(4) == [(0, ROWS), (0, 0)] * 2
    loop.monitored.close()


def test_stop_and_start(way):
    loop = Loop(way, step_interval=2)
    assert loop.steps(2) == [(1, ROWS), (1, 0)]
    attachment, clock, recorder = loop.monitored.attachment, loop.monitored.clock, loop.monitored.recorder
    for round_ in range(3):
        attachment.reattach(None, recorder, Coverage())
        # Once more for a model without the other hooks.
        assert loop.steps(2) == [(1 if round_ == 0 else 0, 0), (0, 0)]
        clock.reschedule(Schedule(start_step=clock.step, step_interval=2))
        attachment.reattach(Request(**ASKED), recorder, Coverage())  # type: ignore[arg-type]
        assert loop.steps(2) == [(0, ROWS), (0, 0)]
    loop.monitored.close()


def test_taken_off(way):
    from torch._inductor import config

    from msmon_hooks.torch.compiled.gate import GATE

    before = config.joint_custom_pre_pass
    loop = Loop(way)
    loop.steps(1)
    assert GATE.marks != ""
    loop.monitored.close()
    assert GATE.marks == ""
    assert config.joint_custom_pre_pass is before
    assert not any(
        hooks for module in loop.model.modules() for hooks in (module._forward_hooks, module._forward_pre_hooks)
    )
    assert loop.steps(3) == [(1, 0), (0, 0), (0, 0)]


def test_set_later(way, caplog):
    loop = Loop(way, before=False)
    assert loop.steps(2) == [(1, 0), (0, 0)]
    with caplog.at_level(logging.INFO, "msmon"):
        loop.watch(Schedule(step_interval=2))
    assert [record.message for record in caplog.records if "compiled once more" in record.message]
    assert loop.steps(4) == [(1, ROWS), (1, 0), (0, ROWS), (0, 0)]
    assert any("compiled once more" in note for note in loop.monitored.notes)
    loop.monitored.close()


def test_an_evaluation_in_a_sampled_step_has_no_marks_and_no_rows(way):
    loop = Loop(way)
    loop.steps(1)
    loop.model.eval()
    with torch.no_grad():
        loop.run(batch("gpt", 0)[0])
    loop.model.train()
    assert loop.steps(2)[1] == (0, ROWS)
    loop.monitored.close()


def test_a_second_model_of_the_class_has_its_own_rows(way):
    first, second = Loop(way), None
    assert first.steps(1) == [(1, ROWS)]
    torch.manual_seed(1)
    first.model, model = GPT(), first.model
    second = Monitored(first.model, torch.optim.SGD(first.model.parameters(), lr=0.1), **ASKED)
    run = compiled(first.model, way, "aot_eager")
    F.cross_entropy(run(batch("gpt", 0)[0]).flatten(0, 1), batch("gpt", 0)[1].flatten()).backward()
    rows = second.recorder.rows
    assert len([key for key in rows if key[0].startswith("actv")]) == ROWS
    assert not first.monitored.recorder.rows
    assert model is not first.model
    second.close()
    first.monitored.close()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_backends_that_run_marks(backend):
    from tests.compiled.training import train, wrong

    for kind in ("gpt", "resnet"):
        base = train(kind, way="plain", backend=backend)
        eager = train(kind, way="eager", inside="")
        seen = train(kind, way="plain", backend=backend, inside="stored")
        assert seen.equals(base)
        assert seen.rows.keys() == eager.rows.keys()
        assert wrong(seen, eager, "fp32") == []
        assert (seen.graphs, seen.breaks) == (base.graphs, base.breaks)


def test_another_backend_has_its_entries(caplog):
    from tests.compiled.training import train

    listed = []

    def custom(graph, inputs):
        assert not any("msmon" in str(node.target) for node in graph.graph.nodes)
        listed.append([node.name for node in graph.graph.nodes if node.op == "placeholder"])
        return graph

    train("resnet", backend=custom, steps=1)  # type: ignore[arg-type]
    seen = train("resnet", backend=custom, inside="all", steps=1)  # type: ignore[arg-type]
    assert {key[1] for key in seen.rows} == {".input", ".output"}
    assert any("of the backend custom only the entries" in note for note in seen.monitored.notes)
    # Kernels follow the order in which a graph lists its inputs.
    assert listed[0] == listed[1]


def test_a_pass_of_the_program_is_kept():
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    from tests.compiled.training import train

    class Theirs(CustomGraphPass):
        calls = 0

        def __call__(self, graph):
            assert not any("msmon" in str(node.target) for node in graph.nodes)
            Theirs.calls += 1

        def uuid(self):
            return "theirs"

    with config.patch(joint_custom_pre_pass=Theirs()):
        seen = train("mlp", inside="stored", steps=1)
    assert Theirs.calls == 1
    assert any(key[1] == "net.0.output" for key in seen.rows)


def test_a_failing_pass_ends_only_the_rows(monkeypatch, caplog):
    from msmon_hooks.torch.compiled import compiler
    from tests.compiled.training import train

    def fails(*args):
        raise RuntimeError("no")

    monkeypatch.setattr(compiler, "strip", fails)
    base = train("mlp", steps=2)
    seen = train("mlp", inside="all", steps=2)
    assert seen.equals(base)
    assert "activations inside of compiled graphs" in seen.monitored.coverage.to_dict()["switched_off"]


def test_a_backend_that_fails_with_marks_is_given_the_graph_without(monkeypatch):
    from msmon_hooks.torch.compiled import compiler
    from msmon_hooks.torch.compiled.operator import MARK
    from tests.compiled.training import train

    original = compiler.place_marks

    def spoil(graph_module, entry):
        found = original(graph_module, entry)
        for node in graph_module.graph.nodes:
            if node.target is MARK:
                node.args = (node.args[0], 3)
        graph_module.recompile()
        return found

    base = train("mlp", backend="aot_eager", steps=2)
    monkeypatch.setattr(compiler, "place_marks", spoil)
    seen = train("mlp", backend="aot_eager", inside="all", steps=2)
    assert seen.equals(base)
    assert (seen.graphs, seen.breaks) == (base.graphs, base.breaks)
    assert "activations inside of compiled graphs" in seen.monitored.coverage.to_dict()["switched_off"]


def test_a_version_that_nobody_has_tried(monkeypatch):
    """A small model is compiled, and decides."""
    from msmon_hooks.torch import attach
    from msmon_hooks.torch.compiled import compiler, trial
    from tests.compiled.training import train, without_caches

    monkeypatch.setattr(trial, "PROVED", ("0.1",))
    monkeypatch.setattr(trial, "_verdict", [])
    with without_caches():
        assert trial.objection(attach) == ""
        monkeypatch.setattr(compiler, "strip", lambda graph: None)
        monkeypatch.setattr(trial, "_verdict", [])
        assert trial.objection(attach).endswith("4 of 4 rows are missing")
    seen = train("mlp", backend="aot_eager", inside="all", steps=1)
    assert any(note.startswith("inside_compiled is off: torch 2.") for note in seen.monitored.notes)
    assert "net.0.output" not in {key[1] for key in seen.rows}
