"""Sums of gradients over groups of several dimensions, and what is named where they are wrong."""

from __future__ import annotations

import pytest

from msmon import verify
from msmon_hooks.layout import Layout

from .runs import write_run

NAMES = ("a", "b", "c", "norm")
AT = 3


def own(rank, step, name):
    """A rank's gradient before the reduction."""
    return 1.0 + 0.37 * rank + 0.11 * step + 0.53 * NAMES.index(name) + 0.07 * rank * NAMES.index(name)


def run_of(path, after, layouts, *, ranks=4, **more):
    """A run with these gradients: `after(rank, step, name)`."""
    values = {
        "grad_unreduced": {name: lambda r, s, name=name: own(r, s, name) for name in NAMES},
        "grad_reduced": {name: lambda r, s, name=name: after(r, s, name) for name in NAMES},
    }
    return verify(write_run(path, values, layouts, ranks=ranks, **more))


def sequence_parallel(rank, name):
    """Two data-parallel ranks of two tensor-parallel ones; `norm` is summed over both."""
    data, tensor = [rank % 2, rank % 2 + 2], [rank // 2 * 2, rank // 2 * 2 + 1]
    summed = {"data": data, "tensor": tensor} if name == "norm" else {"data": data}
    return Layout(equal_over=summed, summed_over=summed, divided_by=2)


def right(rank, step, name):
    members = range(4) if name == "norm" else (rank % 2, rank % 2 + 2)
    return sum(own(member, step, name) for member in members) / 2


def test_sums_over_two_groups(tmp_path):
    report = run_of(tmp_path, right, sequence_parallel)
    assert {one.invariant: one.state for one in report.outcomes if one.state != "not checked"} == {
        "replicas": "holds",
        "reductions": "holds",
        "clipping": "holds",
    }


def test_a_norm_layer_that_is_not_reduced_over_the_tensor_parallel_group(tmp_path):
    def after(rank, step, name):
        if name == "norm" and step >= AT:
            return sum(own(member, step, name) for member in (rank % 2, rank % 2 + 2)) / 2
        return right(rank, step, name)

    report = run_of(tmp_path, after, sequence_parallel)
    (one,) = report.outcome("reductions").violations
    assert (one.step, one.tensor) == (AT, "norm")
    assert one.guess == "it is the sum over the group 'data' alone: the reduction over the others is missing"
    (one,) = report.outcome("replicas").violations
    assert (one.step, one.tensor) == (AT, "norm")


def test_a_rank_counted_twice(tmp_path):
    everyone = Layout(equal_over={"data": range(4)}, summed_over={"data": range(4)}, divided_by=4)

    def after(rank, step, name):
        total = sum(own(member, step, name) for member in range(4))
        return (total + (own(2, step, name) if name == "b" and step == AT else 0)) / 4

    (one,) = run_of(tmp_path, after, lambda *_: everyone).outcome("reductions").violations
    assert (one.step, one.tensor, one.minority) == (AT, "b", (2,))
    assert one.guess == "the gradient of rank 2 is in the sum twice"


@pytest.mark.parametrize(("factor", "guess"), [(4.0, "missing division by the number of ranks (4)"), (1.7, "")])
def test_all_gradients_too_large(tmp_path, factor, guess):
    everyone = Layout(equal_over={"data": range(4)}, summed_over={"data": range(4)}, divided_by=4)

    def after(rank, step, name):
        return sum(own(member, step, name) for member in range(4)) / 4 * (factor if step >= AT else 1)

    (one,) = run_of(tmp_path, after, lambda *_: everyone).outcome("reductions").violations
    assert (one.step, one.tensor) == (AT, "")
    assert f"{factor:g} times what it should be" in one.guess
    assert guess in one.guess


def test_the_program_may_sum_or_average(tmp_path):
    """Who reduces by hand chooses; the choice has to stay one."""
    given = Layout(equal_over={"data": range(4)}, summed_over={"data": range(4)})
    for number, divisor in enumerate((1, 4)):

        def after(rank, step, name, divisor=divisor):
            return sum(own(member, step, name) for member in range(4)) / divisor

        report = run_of(tmp_path / str(number), after, lambda *_: given)
        assert report.holds
        assert report.outcome("reductions").state == "holds"


def test_stages_that_clip_apart(tmp_path):
    """Each pipeline stage by a norm of its own."""

    def alone(rank, name):
        return Layout(equal_over={"data": [rank]}, summed_over={"data": [rank]}, divided_by=1)

    def after(rank, step, name):
        return own(rank, step, name) * (0.5 - 0.01 * step - (0.05 * rank if step >= AT else 0))

    report = run_of(tmp_path, after, alone, ranks=2, stages=[0, 1])
    (one,) = report.outcome("clipping").violations
    assert one.step == AT
    assert dict(one.values) == {"ranks 0": "0.47", "ranks 1": "0.42"}
    assert report.outcome("reductions").state == "holds"


def test_a_rank_that_was_not_recorded(tmp_path):
    layout = Layout(equal_over={"data": range(8)}, summed_over={"data": range(8)}, divided_by=8)
    outcome = run_of(tmp_path, right, lambda *_: layout).outcome("reductions")
    assert outcome.state == "not checked"
    assert outcome.reason == "not all ranks that the gradients are summed over were recorded"


def test_tied_weights_of_two_stages(tmp_path):
    """Each has a summand of the gradient, under a name of its own: nothing is concluded from one of them."""
    tied = {"a": 0, "b": 1}

    def layout(rank, name):
        if tied.get(name, rank) != rank:
            return None
        groups = {"data": [rank], **({"embedding": [0, 1]} if name in tied else {})}
        return Layout(equal_over=groups, summed_over=groups, divided_by=1, tied="embedding" if name in tied else "")

    def after(rank, step, name):
        # From a step on the other summand is no longer 0, as rounding is.
        return own(rank, step, name) + (name in tied and step >= AT) * 0.1

    report = run_of(tmp_path, after, layout, ranks=2, stages=[0, 1])
    assert report.outcome("reductions").state == "holds", report.first
    assert "under another name: 2 not checked" in report.outcome("reductions").reason
