"""Rows of steps that are alike, and of steps that are not."""

from __future__ import annotations

import random

import numpy as np

from msmon.rows import RowReader, StepRows
from msmon_hooks import TensorRef
from msmon_stats import FIELDS, fingerprints, partial, partial_many

OPS = ("norm", "min", "shape", "nans")


def ref(data_type="grad_reduced", name="w", micro_step=None, order=0, merges=False, call_id=0, shape=(2,)):
    return TensorRef(data_type, name, 0, micro_step, call_id, (order,), shape, "torch.float32", merges=merges)


def matrix(*tensors):
    return np.array([partial(np.array(tensor, float)) for tensor in tensors]).reshape(-1, len(FIELDS))


def content(rows: StepRows) -> list[tuple]:
    return [
        (t.data_type, t.names, t.vpp_stages, t.micro_steps, t.ops, dict(t.text), t.rows()) for t in rows.tables(step=3)
    ]


def test_what_is_the_same_is_made_once():
    reader = RowReader(OPS)
    refs = [ref(name="b", order=1), ref(name="a", order=0), ref("actv", "x", 1, order=1), ref("actv", "x", 0)]
    first = reader.read(tuple(refs), np.arange(4), matrix([3, 4], [1], [2], [5]))
    again = reader.read(tuple(refs), np.array([3, 2, 1, 0]), matrix([3, 4], [1], [2], [5]))
    assert again.layout is first.layout
    gradients, activations = again.tables(step=7)
    assert (gradients.step, gradients.names, gradients.rows()) == (7, ["a", "b"], [[2, 2, 0], [5, 5, 0]])
    assert (activations.micro_steps, activations.rows()) == ([0, 1], [[5, 3, 0], [1, 1, 0]])
    assert first.tables(step=7)[0].names is gradients.names


def test_rows_of_any_steps_are_those_of_a_reader_that_saw_no_other():
    """Another set of tensors, another order, shape or micro-step, an empty tensor, one without a row, merged ones."""
    chance = random.Random(0)
    known = [
        ref(data_type, name, micro_step, order, merges, call_id, shape)
        for data_type, merges in (("grad_reduced", False), ("other", True))
        for order, name in enumerate("abc")
        for micro_step in (None, 0, 1)
        for call_id in (0, 1)
        for shape in ((2,), (1, 2))
    ]
    reader = RowReader(OPS)
    steps: list[tuple] = []
    for _ in range(200):
        if steps and chance.random() < 0.5:
            refs = steps[-1]
        else:
            one_micro = chance.choice([True, False])
            refs = tuple(
                one
                for one in chance.sample(known, chance.randrange(len(known)))
                if (one.micro_step is None) == one_micro
            )
        steps.append(refs)
        numbers = matrix(*([chance.random()] * chance.choice([0, 1, 2, 2, 2]) for _ in refs))
        handles = np.array([place if chance.random() < 0.95 else -1 for place in range(len(refs))], np.intp)
        rows = reader.read(refs, handles, numbers)
        alone = RowReader(OPS).read(refs, handles, numbers)
        assert content(rows) == content(alone)
        assert rows.layout.left_out == alone.layout.left_out
        assert rows.layout.statistics.refs == alone.layout.statistics.refs
        assert np.array_equal(rows.partials, alone.partials)


def test_fingerprints_are_of_one_tensor():
    matrix = partial_many([np.ones(2), np.zeros(2), np.arange(2.0)], fingerprint=True)
    refs = (ref("other", "a", merges=True), ref("other", "a", merges=True), ref("other", "b", merges=True, order=1))
    rows = RowReader(("fingerprint", "norm")).read(refs, np.arange(3), matrix)
    (table,) = rows.tables(step=0)
    assert table.text == {"fingerprint": ["", fingerprints(matrix)[2]]}
    assert table.rows() == [[2**0.5], [1.0]]
    assert rows.partials.shape == (2, 8)
    again = RowReader(("norm", "fingerprint")).read(refs[2:], np.array([1]), matrix)
    assert again.tables(step=1)[0].text == {"fingerprint": fingerprints(matrix)[1:2]}


def test_what_has_no_row():
    refs = (ref(name="empty"), ref(name="odd", order=1), ref(name="w", order=2))
    rows = RowReader(OPS).read(refs, np.array([0, -1, 1]), matrix([], [1, 2]))
    assert [(one.name, reason) for one, reason in rows.layout.left_out] == [
        ("empty", "empty"),
        ("odd", "type not supported"),
    ]
    assert rows.tables(0)[0].names == ["w"]


def test_tensors_of_one_name_merge():
    refs = tuple(ref("other", "all_reduce.pre_0", merges=True, call_id=call) for call in range(3))
    rows = RowReader(OPS).read(refs, np.arange(3), matrix([3], [], [-4, np.nan]))
    (table,) = rows.tables(0)
    assert table.names == ["all_reduce.pre_0"]
    assert rows.partials[0].tolist() == partial(np.array([3, -4, np.nan])).tolist()
    assert rows.layout.statistics.refs == refs[:1]
