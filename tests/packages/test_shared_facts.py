"""What packages must agree on without knowing each other: that whoever does not own a fact was told right."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import msmon_alert
import msmon_hooks
import msmon_io
import msmon_stats
from msmon.alerts import AlertHistory, Alerts
from msmon.config import AlertConfig, parse_config
from msmon.config.model import RuleConfig
from msmon.config.values import OPS
from msmon.reading.run import execution_position
from msmon_alert.batch import NO_NUMBERS
from msmon_alert.record import PHASE_NAMES, phase
from msmon_alert.tag import Tag
from msmon_hooks import DATA_TYPES, StepEnd, TensorRef

NAMES = st.text(st.characters(exclude_characters="/"), min_size=1).filter(lambda name: name[0] not in "0123456789")


@given(
    stage=st.integers(0, 9),
    name=NAMES,
    micro_step=st.integers(0, 99),
    rank=st.integers(0, 99_999),
    data_type=st.sampled_from(sorted(DATA_TYPES)),
)
def test_tags_that_msmon_io_makes_are_read_by_msmon_alert(stage, name, micro_step, rank, data_type):
    micro = micro_step if DATA_TYPES[data_type].in_micro_steps else None
    text = msmon_io.tag(stage, name, micro, rank, data_type)
    tag = Tag.parse(text, lambda data_type: DATA_TYPES[data_type].in_micro_steps)
    assert (tag.vpp_stage, tag.name, tag.micro_step, tag.rank, tag.data_type) == (stage, name, micro, rank, data_type)


def test_the_phases_are_those_that_alerts_sort_by():
    assert msmon_hooks.PHASES == PHASE_NAMES


@pytest.mark.parametrize("data_type", DATA_TYPES.values(), ids=list(DATA_TYPES))
def test_every_data_type_sorts_into_its_phase(data_type, tmp_path):
    """As written in a training, also those that msmon-alert has never heard of."""
    rules = AlertConfig(rules=(RuleConfig(rule_name="AnomalyNan"),), dump=True)
    alerts = Alerts(rules, rank=0, directory=tmp_path, history=AlertHistory(), append=False)
    ref = TensorRef(data_type.name, "fc1", 0, 0 if data_type.in_micro_steps else None, 7, (0,), (2,), "torch.float32")
    alerts.observe(StepEnd(3, True), [ref], np.array([[np.nan]]), ["norm"])
    alerts.close()
    (record,) = json.loads((tmp_path / "anomaly.json").read_text()).values()
    assert PHASE_NAMES[phase(record)] == data_type.phase
    # Files of the older tool do not say the phase; where it has the data type, the name says the same.
    older = {"tag_name": record["tag_name"]}
    if data_type.name in msmon_alert.record._PHASES:
        assert phase(older) == phase(record)


def test_a_router_s_fault_comes_before_its_consequences():
    router, gradient = (
        {
            "tag_name": f"0:router/rank0/{name}",
            "phase": DATA_TYPES[name].phase,
            "step": 1,
            "micro_step": 0,
            "call_id": call,
        }
        | dict.fromkeys(("rank", "pp_stage", "vpp_stage"), 0)
        for call, name in ((3, "moe_router_logit_hook"), (1, "grad_reduced"))
    )
    assert msmon_alert.record.order_key(router) < msmon_alert.record.order_key(gradient)


def test_reading_sorts_data_types_as_they_happen():
    assert sorted(["never_heard_of", *reversed(DATA_TYPES)], key=execution_position) == [*DATA_TYPES, "never_heard_of"]


def test_statistics_and_formats_of_the_configuration_are_those_that_there_are():
    assert set(OPS) == {*msmon_stats.OPS, *msmon_io.TEXT_OPS}
    assert set(msmon_io.TEXT_OPS) == NO_NUMBERS
    for name in msmon_io.writer_names():
        assert parse_config({"format": name}).format == (name,)


def test_columns_of_features_are_no_statistics():
    assert not {column for one in DATA_TYPES.values() for column in one.columns} & set(OPS)


def test_the_second_form_places_data_types_that_there_are():
    from msmon_io.second_form import PLACES

    assert PLACES.keys() <= DATA_TYPES.keys()
    assert {name for name, place in PLACES.items() if place.numbers_micro_steps} == {
        name for name in PLACES if DATA_TYPES[name].in_micro_steps
    }
