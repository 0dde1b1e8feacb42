"""What a valid configuration becomes: defaults, every field, the effective configuration that goes to run.json."""

import json
from pathlib import Path

import attrs
import pytest

from msmon.config import Config, dynamic_mode, load_config, output_dir, parse_config

EVERYTHING = {
    "targets": {
        "0:fc1": {"input": "tuple[2]:1", "output": "tensor", "input_grad": "list[3]", "output_grad": ""},
        "": {},
    },
    "dynamic_on": True,
    "start_step": 3,
    "collect_times": 0,
    "step_interval": 7,
    "print_struct": True,
    "module_ranks": [1, 0],
    "param_distribution": True,
    "wg_distribution": True,
    "monitor_mbs_grad": True,
    "xy_distribution": True,
    "all_xy": True,
    "forward_only": True,
    "backward_only": False,
    "inside_compiled": "stored",
    "mv_distribution": True,
    "mg_direction": True,
    "ur_distribution": True,
    "cc_distribution": {"enable": True, "cc_codeline": [r"train\.py\[\d+\]"], "cc_pre_hook": True, "cc_log_only": True},
    "stack_info": True,
    "alert": {"rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}], "dump": True},
    "l2_targets": {
        "attention_hook": ["a"],
        "linear_hook": [],
        "moe_router_weight_hook": ["r"],
        "moe_router_logit_hook": ["r", "s"],
    },
    "recording_l2_features": True,
    "sa_order": "b,s,h,d",
    "format": ["tensorboard", "csv"],
    "ops": ["max", "dtype", "norm"],
    "eps": 1e-12,
    "ndigits": 12,
    "step_count_per_record": 5,
    "append_output": ["Feb29_00-00-00", "Feb29_00-00-00"],
    "squash_name": True,
}  # fmt: skip


def test_defaults_are_the_documented_ones():
    nothing = parse_config({}).to_dict()
    assert nothing == {
        "targets": {},
        "dynamic_on": False,
        "start_step": 0,
        "collect_times": 100000000,
        "step_interval": 1,
        "print_struct": False,
        "module_ranks": [],
        "param_distribution": False,
        "wg_distribution": False,
        "monitor_mbs_grad": False,
        "xy_distribution": False,
        "all_xy": False,
        "forward_only": False,
        "backward_only": False,
        "inside_compiled": False,
        "mv_distribution": False,
        "mg_direction": False,
        "ur_distribution": False,
        "cc_distribution": {"enable": False, "cc_codeline": [], "cc_pre_hook": False, "cc_log_only": False},
        "stack_info": False,
        "alert": {"rules": [], "dump": False},
        "l2_targets": {},
        "recording_l2_features": False,
        "sa_order": "s,b,h,d",
        "format": "csv",
        "ops": ["norm"],
        "eps": 1e-8,
        "ndigits": 6,
        "step_count_per_record": 1,
        "append_output": [],
        "squash_name": False,
    }
    assert parse_config(nothing) == parse_config({})


def test_every_field_round_trips():
    config = parse_config(EVERYTHING)
    assert config.warnings == ()
    assert json.loads(json.dumps(config.to_dict())) == EVERYTHING
    assert set(EVERYTHING) == {field.name for field in attrs.fields(Config)} - {"second_form", "source", "warnings"}


def test_values_as_the_program_sees_them():
    config = parse_config(EVERYTHING)
    assert config.ops == ("max", "dtype", "norm")
    assert config.format == ("tensorboard", "csv")
    assert parse_config({"format": "api"}).format == ("api",)
    assert parse_config({"format": ["csv", "csv"]}).format == ("csv",)
    assert parse_config({"eps": 1}).eps == 1.0
    assert parse_config({"ops": ["norm", "mean", "norm"]}).ops == ("norm", "mean")
    assert parse_config({"ops": ["nrm"]}).ops == ("norm",)
    assert parse_config({"module_ranks": [3, 1, 3]}).module_ranks == (3, 1)
    assert parse_config({"ndigits": 10**9}).ndigits == 100
    new_year = ["Dec31_23-59-59", "Jan01_00-00-00"]
    assert parse_config({"append_output": new_year}).append_output == tuple(new_year)
    assert config.l2_targets.linear_hook == ()
    assert parse_config({"l2_targets": {}}).l2_targets.linear_hook is None
    assert config.alert.rule_dicts() == EVERYTHING["alert"]["rules"]


@pytest.mark.parametrize(
    ("forward", "backward", "actv", "grad"),
    [(False, False, True, True), (True, False, True, False), (False, True, False, True), (True, True, False, False)],
)
def test_directions(forward, backward, actv, grad):
    config = parse_config({"xy_distribution": True, "forward_only": forward, "backward_only": backward})
    assert (config.collects_actv, config.collects_actv_grad) == (actv, grad)
    off = parse_config({"forward_only": forward, "backward_only": backward})
    assert (off.collects_actv, off.collects_actv_grad) == (False, False)


def test_what_cannot_work_is_off():
    assert not parse_config({"ur_distribution": True}).ur_distribution
    assert parse_config({"ur_distribution": True}).to_dict()["ur_distribution"] is False
    assert parse_config({"ur_distribution": True, "format": ["csv", "tensorboard"]}).ur_distribution


def test_the_configuration_is_a_copy_of_its_own():
    args = {"threshold": 0.5}
    config = parse_config({"alert": {"rules": [{"rule_name": "AnomalyTurbulence", "args": args}]}})
    args["threshold"] = 3
    config.alert.rule_dicts()[0]["args"]["threshold"] = 4
    config.to_dict()["alert"]["rules"][0]["args"]["threshold"] = 5
    assert config.alert.rules[0].args == {"threshold": 0.5}
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        config.eps = 1.0


def test_configurations_of_the_older_tool_load(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "targets": {"module.layers.0.mlp": {"input": "tuple[1]:0", "output": "tensor"}},
                "print_struct": False,
                "module_ranks": [0, 1, 2, 3],
                "ur_distribution": True,
                "xy_distribution": True,
                "cc_distribution": {"enable": True, "cc_codeline": [], "cc_pre_hook": False},
                "alert": {"rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}], "dump": True},
                "format": "tensorboard",
                "ops": ["min", "max", "norm", "zeros", "nans", "mean"],
                "eps": 1e-8,
                "ndigits": 12,
                "step_count_per_record": 1,
                "append_output": [],
                "squash_name": True,
            },
            indent=1,
        )
    )
    assert load_config(path).warnings == ()


def test_environment(monkeypatch):
    monkeypatch.delenv("MONITOR_OUTPUT_DIR", raising=False)
    monkeypatch.delenv("DYNAMIC_MONITOR", raising=False)
    assert output_dir() == Path("./monitor_output")
    assert not dynamic_mode()
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", "")
    assert output_dir() == Path("./monitor_output")


@pytest.mark.parametrize(
    ("value", "on"), [("True", True), ("tRuE", True), ("TRUE ", True), ("False", False), ("1", False), ("", False)]
)
def test_dynamic_mode(monkeypatch, value, on):
    monkeypatch.setenv("DYNAMIC_MONITOR", value)
    assert dynamic_mode() is on


def test_environment_of_the_process(monkeypatch):
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", "/somewhere")
    assert output_dir() == Path("/somewhere")
