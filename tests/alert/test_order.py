"""The order of events: which anomaly came first."""

import itertools
import random

import pytest

from msmon_alert.ordering import FirstRecords
from msmon_alert.record import phase


def record(step=0, micro=0, kind="actv", vpp=0, pp=0, call=0, rank=0):
    return {"step": step, "micro_step": micro, "pp_stage": pp, "vpp_stage": vpp, "call_id": call, "rank": rank,
            "tag_name": f"{vpp}:fc/rank{rank}/{kind}", "message": "", "group_mates": []}  # fmt: skip


def first(records, count=1000):
    held = FirstRecords(count)
    for number, one in enumerate(records):
        held.add(str(number), one)
    return [int(key) for key, _ in held]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (record(step=1, kind="param_updated", call=9), record(step=2, kind="param_origin")),
        (record(micro=0, kind="actv_grad"), record(micro=1, kind="actv")),
        (record(kind="param_origin", call=9), record(kind="actv")),
        (record(kind="actv", call=9), record(kind="actv_grad")),
        (record(kind="grad_unreduced", call=9), record(kind="exp_avg")),
        (record(kind="grad_reduced", call=9), record(kind="param_updated")),
        # forward: small stages first, virtual before pipeline stages
        (record(pp=0, call=9), record(pp=1)),
        (record(vpp=0, pp=1, call=9), record(vpp=1, pp=0)),
        # backward and the rest: large stages first
        (record(kind="actv_grad", pp=1, call=9), record(kind="actv_grad", pp=0)),
        (record(kind="actv_grad", vpp=1, pp=0, call=9), record(kind="actv_grad", vpp=0, pp=1)),
        (record(kind="param_updated", pp=1, call=9), record(kind="param_updated", pp=0)),
        (record(call=1, rank=9), record(call=2, rank=0)),
        (record(call=1, rank=0), record(call=1, rank=1)),
        # a record without micro-step takes the last one of its step; weights before the step take the first
        (record(micro=2, kind="actv", call=1), record(micro=None, kind="grad_reduced", call=0)),
        (record(micro=1, kind="actv_grad", call=9), record(micro=None, kind="exp_avg", call=0)),
        (record(micro=None, kind="param_origin", call=9), record(micro=0, kind="actv", call=0)),
        (record(micro=3, kind="param_origin", call=9), record(micro=0, kind="actv", call=0)),
    ],
)
def test_earlier_and_later(earlier, later):
    assert first([earlier, later]) == [0, 1]
    assert first([later, earlier]) == [1, 0]


def test_last_micro_step_is_that_of_the_step_not_of_the_run():
    records = [
        record(step=1, micro=None, kind="grad_reduced", call=5),
        record(step=1, micro=1, kind="actv_grad", call=9),
        record(step=1, micro=1, kind="grad_unreduced", call=2),
        record(step=0, micro=7),
    ]
    assert first(records) == [3, 2, 0, 1]


def test_phases():
    assert [
        phase({"tag_name": f"0:a/rank0/{kind}"})
        for kind in ("param_origin", "actv", "input", "output", "actv_grad", "input_grad", "output_grad", "acc_grad",
                     "pre_grad", "post_grad", "grad_unreduced", "grad_reduced", "exp_avg", "exp_avg_sq", "other",
                     "param_updated", "linear_hook", "never_heard_of")
    ] == [0, 1, 1, 1, *[2] * 8, *[3] * 6]  # fmt: skip


def test_a_phase_that_is_said_goes_before_the_data_type():
    said = record(kind="never_heard_of", call=3) | {"phase": "forward"}
    assert phase(said) == 1
    assert first([record(kind="grad_reduced", micro=0, call=1), said]) == [1, 0]
    assert phase(said | {"phase": "sideways"}) == 3


def naive(records):
    """The order written down as one sort over everything."""
    last = {}
    for one in records:
        if phase(one) != 0 and one["micro_step"] is not None:
            last[one["step"]] = max(last.get(one["step"], 0), one["micro_step"])

    def place(pair):
        number, one = pair
        part = phase(one)
        micro = one["micro_step"]
        if part == 0:
            micro = 0
        elif micro is None:
            micro = last.get(one["step"], 0)
        sign = 1 if part == 1 else -1
        return (
            one["step"],
            micro,
            part,
            sign * one["vpp_stage"],
            sign * one["pp_stage"],
            one["call_id"],
            one["rank"],
            number,
        )

    return [number for number, _ in sorted(enumerate(records), key=place)]


@pytest.mark.parametrize("seed", range(20))
def test_heaps_find_what_sorting_everything_finds(seed):
    chance = random.Random(seed)
    kinds = ["param_origin", "actv", "actv_grad", "grad_reduced", "exp_avg", "param_updated"]
    records = [
        record(
            step=chance.randrange(1 + seed % 7),
            micro=chance.choice([None, 0, 1, 2]),
            kind=chance.choice(kinds),
            vpp=chance.randrange(2),
            pp=chance.randrange(3),
            call=chance.randrange(5),
            rank=chance.randrange(3),
        )
        for _ in range(300)
    ]
    expected = naive(records)
    for count in (1, 2, 7, 50, 299, 300, 1000):
        assert first(records, count) == expected[:count]


def test_memory_depends_on_the_count_alone():
    held = FirstRecords(10)
    chance = random.Random(0)
    largest = 0
    for number in range(20_000):
        held.add(str(number), record(step=chance.randrange(5000), micro=chance.choice([None, 0]), call=number))
        largest = max(largest, sum(map(len, held._steps.values())))
    assert largest <= 10 * 2 * 2
    assert len(list(held)) == 10


def test_a_key_that_comes_again_has_one_place_and_the_newest_record():
    held = FirstRecords(3)
    for text in ("first", "again"):
        for call in (2, 1, 0):
            held.add(f"call {call}", record(call=call) | {"message": text})
    assert [(key, one["message"]) for key, one in held] == [(f"call {call}", "again") for call in range(3)]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rank": None}, "rank is None, not an integer"),
        ({"step": "3"}, "step is '3', not an integer"),
        ({"call_id": True}, "call_id is True, not an integer"),
        ({"micro_step": 1.5}, "micro_step is 1.5, not an integer"),
        ({"tag_name": 4}, "tag_name is 4, not a string"),
        ({"pp_stage": [0]}, r"pp_stage is \[0\], not an integer"),
    ],
)
def test_records_that_lack_a_field(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        FirstRecords(1).add("a", record() | change)
    missing = record()
    del missing[next(iter(change))]
    if "micro_step" in change:
        FirstRecords(1).add("a", missing)
    else:
        with pytest.raises(ValueError, match="is None, not"):
            FirstRecords(1).add("a", missing)


def test_counts_that_make_no_sense():
    for count in (0, -1):
        with pytest.raises(ValueError, match=f"count: {count} is not allowed; it takes an integer >= 1"):
            FirstRecords(count)
    assert list(itertools.islice(FirstRecords(1), 1)) == []
