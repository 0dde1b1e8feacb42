"""Dynamic mode as a table of steps: which steps are collected when the file is edited at which step, on which rank."""

import json
import logging
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msmon.config import dynamic_switch
from msmon.config.dynamic_switch import DynamicSwitch
from msmon.config.start_file import Announcement, StartFile
from msmon_io import replace_file

ON = {"dynamic_on": True, "wg_distribution": True}
OFF = {"dynamic_on": False, "wg_distribution": True}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "c.json"


def write(path, mapping):
    path.write_text(mapping if isinstance(mapping, str) else json.dumps(mapping))


def samples(period, step):
    return period is not None and step in range(period.first_step, period.last_step + 1, period.config.step_interval)


def run(path, steps, edits, **options):
    """Steps collected by one rank when `edits[n]` is written during step n; `edits[-1]` before the start."""
    if -1 in edits:
        write(path, edits[-1])
    switch = DynamicSwitch(path, **options)
    switch.begin(0)
    collected = []
    for step in range(steps):
        if samples(switch.period, step):
            collected.append(step)
        if step in edits:
            write(path, edits[step])
        switch.after_step(step)
    return collected


@pytest.mark.parametrize(
    ("edits", "collected"),
    [
        # off at the start, and no file at all
        ({-1: OFF}, []),
        ({-1: {}}, []),
        ({}, []),
        # on at the start: from step 1; start_step is ignored
        ({-1: {**ON, "start_step": 5}}, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        # switched on while training: from the next step
        ({-1: OFF, 3: ON}, [4, 5, 6, 7, 8, 9]),
        ({3: ON}, [4, 5, 6, 7, 8, 9]),
        ({-1: OFF, 3: {**ON, "step_interval": 2}}, [4, 6, 8]),
        # switched off while collecting: the current step is the last
        ({-1: ON, 3: OFF}, [1, 2, 3]),
        # changed while collecting: counted from 0
        ({-1: {**ON, "collect_times": 4}, 3: {**ON, "collect_times": 3}}, [1, 2, 3, 4, 5, 6]),
        ({-1: ON, 3: {**ON, "step_interval": 3}}, [1, 2, 3, 4, 7]),
        ({-1: ON, 3: {**ON, "collect_times": 0}}, [1, 2, 3]),
        # collect_times reached, and switched on again
        ({-1: {**ON, "collect_times": 2}}, [1, 2]),
        ({-1: {**ON, "collect_times": 2}, 6: {**ON, "collect_times": 2}}, [1, 2, 7, 8]),
        ({-1: {**ON, "collect_times": 2, "step_interval": 3}}, [1, 4]),
        # broken while off, while on, and repaired
        ({-1: OFF, 2: "{", 4: ON}, [5, 6, 7, 8, 9]),
        ({-1: ON, 2: "{", 4: {**ON, "collect_times": 2}}, [1, 2, 3, 4, 5, 6]),
        ({-1: {**ON, "collect_times": 6}, 2: "{", 4: {**ON, "collect_times": 6}}, [1, 2, 3, 4, 5, 6]),
        ({-1: ON, 2: {**ON, "eps": -1}, 5: OFF}, [1, 2, 3, 4, 5]),
    ],
)
def test_one_rank(path, edits, collected):
    assert run(path, 10, edits) == collected


def test_the_file_is_switched_off_at_the_end(path):
    run(path, 5, {-1: json.dumps({**ON, "collect_times": 2, "eps": 1}, indent=3)})
    assert path.read_text() == json.dumps({**OFF, "collect_times": 2, "eps": 1}, indent=3)
    assert os.listdir(path.parent) == ["c.json"]


def test_the_file_is_not_switched_off_if_someone_wrote_meanwhile(path):
    """During the last collected step the user asks for more; that counts, from the next step."""
    assert run(path, 8, {-1: {**ON, "collect_times": 2}, 2: {**ON, "collect_times": 3}}) == [1, 2, 3, 4, 5]
    assert json.loads(path.read_text()) == {**OFF, "collect_times": 3}


def test_the_period_is_the_same_object_until_something_changes(path):
    write(path, ON)
    switch = DynamicSwitch(path)
    switch.begin(5)
    assert switch.period is None
    period = switch.after_step(5)
    assert period.first_step == 6
    assert switch.after_step(6) is period
    os.utime(path)
    assert switch.after_step(7) is period
    write(path, {**ON, "eps": 1})
    assert switch.after_step(8) is not period


def test_what_is_logged(path, caplog):
    run(path, 12, {-1: OFF, 1: "{", 3: {**ON, "ops": ["nrm"]}, 5: "[", 7: {**ON, "epss": 1}})
    messages = [(record.levelname, record.getMessage()) for record in caplog.records]
    name = str(path)
    assert messages == [
        ("ERROR", f"{name}: line 1 column 2: the text ends before the object does; is the file complete?\n"
         "nothing is collected"),
        ("WARNING", f'{name}: ops: dropped "nrm" (did you mean "norm"?); the statistics are min, max, mean, norm, '
         "zeros, nans, std, rms, absmax, infs, shape, dtype, fingerprint"),
        ("WARNING", f"{name}: ops: no valid entry, so norm is used"),
        ("ERROR", f"{name}: line 1 column 2: the text ends before the object does; is the file complete?\n"
         "collection goes on as before"),
        ("ERROR", f'{name}: 1 problem in the configuration\n  epss: unknown key, did you mean "eps"?\n'
         "collection goes on as before"),
    ]  # fmt: skip


def test_a_file_that_cannot_be_switched_off(path, monkeypatch, caplog):
    def refuse(*args, **kwargs):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(dynamic_switch, "switch_off", refuse)
    assert run(path, 8, {-1: {**ON, "collect_times": 2}}) == [1, 2]
    assert [record.getMessage() for record in caplog.records] == [
        f"collection has ended after collect_times steps, but dynamic_on in {path} could not be set to false: "
        "[Errno 30] Read-only file system"
    ]


class Ranks:
    """Several ranks, as far apart as synchronous training lets them be: none ends a step that another has not begun."""

    def __init__(self, path, world_size):
        self.switches = [DynamicSwitch(path, rank=r, world_size=world_size, launch="x") for r in range(world_size)]
        self.done = [0] * world_size
        self.collected = [[] for _ in range(world_size)]
        """For each rank the collected steps and the content of the configuration in force."""

    def begin(self, order=None):
        for rank in order or range(len(self.switches)):
            self.switches[rank].begin(0)

    def step(self, rank):
        """Let a rank end one more step, unless it has to wait for others."""
        step = self.done[rank]
        if min(self.done) < step:
            return
        period = self.switches[rank].period
        if samples(period, step):
            self.collected[rank].append((step, period.digest))
        self.switches[rank].after_step(step)
        self.done[rank] += 1

    def together(self, steps, edits):
        """All ranks in turn, rank 0 last: the worst order for those that wait for its announcements."""
        for step in range(steps):
            if step in edits:
                write(self.switches[0]._path, edits[step])
            for rank in reversed(range(len(self.switches))):
                self.step(rank)

    def steps(self):
        return [[step for step, _ in collected] for collected in self.collected]


MAPPINGS = st.fixed_dictionaries(
    {
        "dynamic_on": st.booleans(),
        "collect_times": st.sampled_from([0, 1, 2, 3, 1000]),
        "step_interval": st.integers(1, 3),
        "module_ranks": st.sampled_from([[], [1], [0, 1], [2], [7]]),
        "wg_distribution": st.just(True),
    }
)
RANKS = st.integers(0, 2)
ACTIONS = st.lists(st.one_of(RANKS, RANKS, RANKS, RANKS, RANKS, MAPPINGS, st.just("{")), max_size=80)


@settings(max_examples=300, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(order=st.permutations([0, 1, 2]), initial=st.one_of(st.none(), MAPPINGS), actions=ACTIONS)
def test_all_ranks_collect_the_same_steps(tmp_path_factory, order, initial, actions):
    """Whatever is written whenever, in whatever order the ranks get on."""
    path = tmp_path_factory.mktemp("dynamic") / "c.json"
    if initial is not None:
        write(path, initial)
    ranks = Ranks(path, 3)
    ranks.begin(order)
    for action in actions:
        if isinstance(action, int):
            ranks.step(action)
        else:
            write(path, action)
    for step in range(max(ranks.done)):
        for rank in order:
            if ranks.done[rank] == step:
                ranks.step(rank)
    assert ranks.collected[0] == ranks.collected[1] == ranks.collected[2]


def test_several_ranks_begin_one_step_later(path, caplog):
    write(path, OFF)
    ranks = Ranks(path, 2)
    ranks.begin()
    ranks.together(12, {3: {**ON, "collect_times": 2}, 8: ON, 9: {**ON, "eps": 1}, 10: OFF})
    assert ranks.steps() == [[5, 6, 10, 11], [5, 6, 10, 11]]
    assert caplog.records == []  # nobody was late


def test_edits_at_two_steps_in_a_row_reach_a_rank_that_looks_only_then(path):
    write(path, OFF)
    ranks = Ranks(path, 2)
    ranks.begin()
    for rank in (0, 1, 0, 1, 1):
        ranks.step(rank)
    write(path, ON)
    ranks.step(0)  # ends step 2
    write(path, OFF)
    ranks.step(0)  # ends step 3, before rank 1 does
    assert ranks.done == [4, 3]
    ranks.together(8, {})
    assert ranks.steps() == [[4], [4]]


def test_the_end_is_the_same_and_restarts_nobody(path):
    write(path, {**ON, "collect_times": 3})
    ranks = Ranks(path, 3)
    ranks.begin()
    ranks.together(10, {})
    assert ranks.steps() == [[1, 2, 3]] * 3
    assert json.loads(path.read_text())["dynamic_on"] is False


@pytest.mark.parametrize(("monitored", "writer"), [([], 0), ([2, 1], 1), ([2], 2), ([9, 2], 2), ([9], 0)])
def test_the_smallest_monitored_rank_writes(path, monkeypatch, monitored, writer):
    write(path, {**ON, "collect_times": 2, "module_ranks": monitored})
    writers = []
    real = dynamic_switch.switch_off
    ranks = Ranks(path, 3)
    ranks.begin()
    for _ in range(6):
        for rank in (2, 0, 1):
            monkeypatch.setattr(dynamic_switch, "switch_off", lambda *a, rank=rank: writers.append(rank) or real(*a))
            ranks.step(rank)
    assert writers == [writer]
    assert ranks.steps() == [[1, 2]] * 3
    assert json.loads(path.read_text())["dynamic_on"] is False


def test_a_rank_that_sees_the_announcement_late(path, caplog):
    write(path, OFF)
    ranks = Ranks(path, 2)
    ranks.begin()
    real = ranks.switches[1]._start_file.news
    ranks.switches[1]._start_file.news = lambda: [] if ranks.done[1] < 6 else real()
    ranks.together(12, {2: {**ON, "collect_times": 4, "step_interval": 2}})
    assert ranks.steps() == [[4, 6, 8, 10], [8, 10]]
    assert "rank 1 learned only at step 7 that collection began with step 4; the steps between are missing" in [
        record.getMessage() for record in caplog.records
    ]


def test_a_file_that_the_ranks_do_not_share(path, tmp_path, monkeypatch, caplog):
    """Each rank has its own copy, so nothing is ever announced to rank 1: it says so once, and collects nothing."""
    now = [0.0]
    monkeypatch.setattr(dynamic_switch.time, "monotonic", lambda: now[0])
    write(path, OFF)
    switch = DynamicSwitch(path, rank=1, world_size=2)
    switch.begin(0)
    write(path, ON)
    for step in range(60):
        now[0] += 5.0
        assert switch.after_step(step) is None
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "rank 0 has announced no start" in errors[0]


def test_no_announcement_means_no_rank_collects(path, monkeypatch, caplog):
    write(path, OFF)
    ranks = Ranks(path, 2)
    ranks.begin()

    def refuse(*args, **kwargs):
        raise OSError(13, "Permission denied")

    monkeypatch.setattr("msmon.config.start_file.replace_file", refuse)
    ranks.together(8, {2: ON})
    assert ranks.steps() == [[], []]
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}.msmon-start cannot be written (Permission denied), so the other ranks would not follow the change of "
        f"{path}; it is ignored"
    ]


def test_a_rule_that_only_rank_0_has(path, caplog):
    write(path, OFF)
    follower = DynamicSwitch(path, rank=1, world_size=2, launch="a")
    follower.begin(0)
    mine = {**ON, "alert": {"rules": [{"rule_name": "Mine"}]}}
    StartFile(path).write(Announcement(launch="a", generation=1, first_step=1, digest="d", config=mine))
    assert follower.after_step(0) is None
    assert "rank 1 cannot use the configuration of rank 0" in caplog.text


def test_the_start_file_of_an_earlier_launch_is_not_followed(path):
    stale = Announcement(launch="x", generation=1, first_step=1, digest="d", config=ON)
    write(path, OFF)
    StartFile(path).write(stale)
    ranks = Ranks(path, 2)
    ranks.begin()
    assert not StartFile(path).path.exists()
    ranks.together(4, {})
    assert ranks.steps() == [[], []]
    # Nor where rank 0 has not come so far as to take it away, if the launch is another one.
    StartFile(path).write(stale)
    other = DynamicSwitch(path, rank=1, world_size=2, launch="y")
    other.begin(0)
    assert other.after_step(0) is None


def test_close_leaves_nothing_behind(path):
    write(path, ON)
    ranks = Ranks(path, 2)
    ranks.begin()
    assert sorted(os.listdir(path.parent)) == ["c.json", "c.json.msmon-start"]
    ranks.switches[0].close()
    ranks.switches[1].close()
    assert os.listdir(path.parent) == ["c.json"]
    # One rank alone has nobody to tell.
    run(path, 3, {})
    assert os.listdir(path.parent) == ["c.json"]


FIELDS = {"launch": "x", "generation": 1, "first_step": 1, "digest": "", "config": None}
BAD_FIELDS = [3, {"launch": "x"}, {**FIELDS, "generation": True}, {**FIELDS, "config": 3}, {**FIELDS, "more": 1}]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"schema": 2, "announcements": []}', '{"schema": 1}', '{"schema": 1, "announcements": 3}']
    + [json.dumps({"schema": 1, "announcements": [fields]}) for fields in BAD_FIELDS],
)
def test_a_start_file_that_is_none(path, text):
    file = StartFile(path)
    replace_file(file.path, text.encode())
    assert file.news() == []
    good = Announcement(**FIELDS)
    StartFile(path).write(good)
    assert file.news() == [good]
    assert file.news() == []
