"""Rows of a page stand in the order of the model, grouped by layer."""

import pytest

from msmon.reading import open_run
from msmon.reading.index import TensorKey, build_index
from msmon.reading.model_order import WHOLE_MODEL, layer_sequence, layers_of, model_order

from .files import write_rank


@pytest.mark.parametrize(
    ("names", "layers"),
    [
        (
            ["emb.weight", "blocks.0.fc.weight", "blocks.10.fc.bias", "head.weight"],
            ["emb", "blocks.0", "blocks.10", "head"],
        ),
        (
            [".input", ".output", "blocks.1.output", "blocks.1.act.output_0"],
            [WHOLE_MODEL, WHOLE_MODEL, "blocks.1", "blocks.1"],
        ),
        (["0.weight", "0.bias", "2.weight"], ["0", "0", "2"]),
        # What all numbered names have in common says nothing.
        (["module.0.layers.3.w.weight", "module.0.layers.4.w.weight"], ["module.0.layers.3", "module.0.layers.4"]),
        # One numbered layer only: its number is still the layer.
        (["net.0.weight", "net.0.bias", "out.weight"], ["net.0", "net.0", "out"]),
        (["rnn.output_1_0", "rnn@1.output", "attention.input_mask"], ["rnn", "rnn", "attention"]),
        (["weight"], [WHOLE_MODEL]),
    ],
)
def test_layers(names: list[str], layers: list[str]) -> None:
    assert layers_of([TensorKey(0, 0, name) for name in names]) == layers


def test_layers_of_stages_are_apart() -> None:
    assert layers_of([TensorKey(0, 0, "layers.0.w"), TensorKey(1, 0, "layers.0.w")]) == [
        "pp0/0:layers.0",
        "pp1/0:layers.0",
    ]


def test_backward_data_types_are_turned_round(tmp_path) -> None:
    forward = ["emb.weight", "layers.0.weight", "layers.1.weight"]
    write_rank(tmp_path / "a", {"grad_unreduced": [(0, name, 1.0) for name in reversed(forward)]})
    run = open_run(tmp_path / "a")
    index = build_index(run, "grad_unreduced")
    keys = index.tensors()[0]
    order = model_order(run, {"grad_unreduced": index})
    assert [key.name for key in keys] == forward[::-1]
    assert [keys[at].name for at in layer_sequence(keys, layers_of(keys), order)] == forward


def test_run_json_gives_the_order_and_stages_come_virtual_first(tmp_path) -> None:
    for rank in (0, 1):
        for_rank = [{"name": name, "vpp_stage": 0, "numel": 1} for name in ("b.weight", "a.weight")]
        rows = {"grad_reduced": [(0, "a.weight", 1.0), (0, "b.weight", 1.0)]}
        write_rank(tmp_path, rows, rank=rank, info={"pp_stage": rank, "tensors": for_rank})
    run = open_run(tmp_path)
    index = build_index(run, "grad_reduced")
    keys = index.tensors()[0]
    sequence = layer_sequence(keys, layers_of(keys), model_order(run, {"grad_reduced": index}))
    assert [keys[at].label() for at in sequence] == ["b.weight", "a.weight", "pp1/0:b.weight", "pp1/0:a.weight"]
