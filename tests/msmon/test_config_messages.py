"""The sentences of configuration errors and warnings, word for word."""

import pytest

from msmon.config import ConfigError, parse_config

FIELDS = (
    "targets, dynamic_on, start_step, collect_times, step_interval, print_struct, module_ranks, param_distribution, "
    "wg_distribution, monitor_mbs_grad, xy_distribution, all_xy, forward_only, backward_only, inside_compiled, "
    "mv_distribution, mg_direction, ur_distribution, cc_distribution, stack_info, alert, l2_targets, "
    "recording_l2_features, sa_order, format, ops, eps, ndigits, step_count_per_record, append_output, squash_name"
)
OPS = "min, max, mean, norm, zeros, nans, std, rms, absmax, infs, shape, dtype, fingerprint"
TWO_STAMPS = '[] or two time stamps such as ["Dec03_21-34-40", "Dec03_21-34-41"]'
STAMP = "a time stamp such as Dec03_21-34-40"
SELECTOR = '"tensor", "tuple[n]:i" with i < n, "tuple[n]" or ""'
FORMATS = 'one of "csv", "tensorboard", "parquet", "api"'
SIDES = "input, output, input_grad, output_grad"

ERRORS = [
    # Unknown keys
    ({"xy_distributon": 1}, 'xy_distributon: unknown key, did you mean "xy_distribution"?'),
    ({"XY-Distribution": 1}, '["XY-Distribution"]: unknown key, did you mean "xy_distribution"?'),
    ({"dump": True}, 'dump: unknown key, did you mean "alert.dump"?'),
    ({"cc_codeline": []}, 'cc_codeline: unknown key, did you mean "cc_distribution.cc_codeline"?'),
    ({"qqq": 1}, f"qqq: unknown key, the known keys are {FIELDS}"),
    ({"alert": {"dmp": True}}, 'alert.dmp: unknown key, did you mean "dump"?'),
    ({"l2_targets": {"mlp": []}}, "l2_targets.mlp: unknown key, the known keys are attention_hook, linear_hook, "
     "moe_router_weight_hook, moe_router_logit_hook"),
    ({"targets": {"0:fc 1": {"inputs": ""}}}, 'targets["0:fc 1"].inputs: unknown key, did you mean "input"?'),
    # Switches
    ({"wg_distribution": 1}, "wg_distribution: 1 is refused, expected true or false (not an integer)"),
    ({"dynamic_on": "true"}, 'dynamic_on: "true" is refused, expected true or false (not a string)'),
    ({"squash_name": None}, "squash_name: null is refused, expected true or false (not null)"),
    # Numbers
    ({"start_step": -1}, "start_step: -1 is refused, expected an integer >= 0"),
    ({"start_step": "5"}, 'start_step: "5" is refused, expected an integer >= 0 (a string; write 5 without quotes)'),
    ({"collect_times": 1e8}, "collect_times: 100000000.0 is refused, expected an integer >= 0 (write 100000000)"),
    ({"step_interval": True}, "step_interval: true is refused, expected an integer >= 1 (not a boolean)"),
    ({"step_interval": 0}, "step_interval: 0 is refused, expected an integer >= 1"),
    ({"ndigits": 2.5}, "ndigits: 2.5 is refused, expected an integer >= 1 (not a floating-point number)"),
    ({"step_count_per_record": []}, "step_count_per_record: [] is refused, expected an integer >= 1 (not a list)"),
    ({"eps": 0}, "eps: 0 is refused, expected a finite number > 0"),
    ({"eps": "1e-8"}, 'eps: "1e-8" is refused, expected a finite number > 0 (not a string)'),
    ({"eps": float("nan")}, "eps: NaN is refused, expected a finite number > 0"),
    # Lists
    ({"module_ranks": 0}, "module_ranks: 0 is refused, expected a list of ranks (not an integer)"),
    ({"module_ranks": [0, "1"]}, 'module_ranks[1]: "1" is refused, expected an integer >= 0 '
     "(a string; write 1 without quotes)"),
    ({"ops": "norm"}, f'ops: "norm" is refused, expected a list of {OPS} (write ["norm"])'),
    ({"ops": {}}, f"ops: {{}} is refused, expected a list of {OPS} (not an object)"),
    ({"ops": ["norm", 2]}, "ops[1]: 2 is refused, expected the name of a statistic (not an integer)"),
    ({"format": "tensorbord"}, f'format: "tensorbord" is refused, expected {FORMATS} or a list of them '
     '(did you mean "tensorboard"?)'),
    ({"format": []}, f"format: [] is refused, expected {FORMATS} or a list of them"),
    ({"format": ["csv", "xml"]}, f'format[1]: "xml" is refused, expected {FORMATS}'),
    ({"sa_order": "sbhd"}, 'sa_order: "sbhd" is refused, expected one of "s,b,h,d", "b,s,h,d" '
     '(did you mean "s,b,h,d"?)'),
    ({"append_output": "Dec03_21-34-40"}, f'append_output: "Dec03_21-34-40" is refused, expected {TWO_STAMPS} '
     "(not a string)"),
    ({"append_output": ["Dec03_21-34-40"]}, f'append_output: ["Dec03_21-34-40"] is refused, expected {TWO_STAMPS} '
     "(not 1 of them)"),
    ({"append_output": ["Dec03_21-34-40", "Feb30_00-00-00"]}, 'append_output[1]: "Feb30_00-00-00" is refused, '
     f"expected {STAMP}"),
    ({"append_output": ["Dec03_21:34:40", "Dec03_21-34-41"]}, 'append_output[0]: "Dec03_21:34:40" is refused, '
     f"expected {STAMP}"),
    ({"append_output": ["Dec03_21-34-41", "Dec03_21-34-40"]}, 'append_output: ["Dec03_21-34-41", "Dec03_21-34-40"] is '
     f"refused, expected {TWO_STAMPS} (the earlier one comes first)"),
    # Objects
    ({"alert": None}, "alert: null is refused, expected an object (not null)"),
    ({"alert": {"rules": {}}}, "alert.rules: {} is refused, expected a list of rules (not an object)"),
    ({"alert": {"rules": [{}]}}, "alert.rules[0].rule_name: is missing"),
    ({"alert": {"rules": [{"rule_name": 3}]}}, "alert.rules[0].rule_name: 3 is refused, "
     "expected the name of a rule, such as AnomalyTurbulence (not an integer)"),
    ({"alert": {"rules": [{"rule_name": "A", "args": [0.5]}]}}, "alert.rules[0].args: [0.5] is refused, "
     "expected an object (not a list)"),
    ({"alert": {"rules": [{"rule_name": "A", "args": {"x": [1, float("inf")]}}]}}, "alert.rules[0].args.x[1]: "
     "Infinity is refused, expected a finite number"),
    ({"l2_targets": {"linear_hook": "fc1"}}, 'l2_targets.linear_hook: "fc1" is refused, '
     "expected a list of module names (not a string)"),
    ({"l2_targets": {"linear_hook": [1]}}, "l2_targets.linear_hook[0]: 1 is refused, expected a string "
     "(not an integer)"),
    # Targets
    ({"targets": ["fc1"]}, 'targets: ["fc1"] is refused, expected an object of module or parameter names '
     "(write the names as keys, each with {})"),
    ({"targets": {"fc1": True}}, f"targets.fc1: true is refused, expected {{}} or an object with {SIDES} "
     "(not a boolean)"),
    ({"targets": {"fc1": {"input": 1}}}, f"targets.fc1.input: 1 is refused, expected {SELECTOR} (not an integer)"),
    ({"targets": {"fc1": {"input": "tensro"}}}, f'targets.fc1.input: "tensro" is refused, expected {SELECTOR} '
     '(did you mean "tensor"?)'),
    ({"targets": {"a.b": {"output": "tuple[2]:2"}}}, f'targets["a.b"].output: "tuple[2]:2" is refused, '
     f"expected {SELECTOR} (the last element of tuple[2] is 1)"),
    ({"targets": {"a.b": {"output": "list[0]:0"}}}, f'targets["a.b"].output: "list[0]:0" is refused, '
     f"expected {SELECTOR} (an empty tuple has no element)"),
    # Regular expressions
    ({"cc_distribution": {"cc_codeline": "a"}}, 'cc_distribution.cc_codeline: "a" is refused, '
     "expected a list of regular expressions (not a string)"),
    ({"cc_distribution": {"cc_codeline": [1]}}, "cc_distribution.cc_codeline[0]: 1 is refused, "
     "expected a regular expression (not an integer)"),
    ({"cc_distribution": {"cc_codeline": ["a", "("]}}, 'cc_distribution.cc_codeline[1]: "(" is refused, '
     "expected a regular expression (invalid: missing ) at position 1)"),
]  # fmt: skip

WARNINGS = [
    ({"ops": ["norm", "Max"]}, f'ops: dropped "Max" (did you mean "max"?); the statistics are {OPS}'),
    ({"ops": []}, "ops: no valid entry, so norm is used"),
    ({"ndigits": 101}, "ndigits: 101 is more than a number has, so 100 is used"),
    ({"forward_only": True, "backward_only": True, "xy_distribution": True}, "forward_only, backward_only: both are "
     "true, so neither activations nor their gradients are collected"),
    ({"all_xy": True}, "all_xy: no effect without xy_distribution"),
    ({"forward_only": True}, "forward_only: no effect without xy_distribution"),
    ({"inside_compiled": True}, "inside_compiled: no effect without xy_distribution"),
    ({"monitor_mbs_grad": True}, "monitor_mbs_grad: no effect without wg_distribution"),
    ({"ur_distribution": True}, 'ur_distribution: off, since it needs format "tensorboard"'),
    ({"stack_info": True, "format": "api"}, 'stack_info: no effect, since it needs format "csv"'),
    ({"alert": {"dump": True}}, "alert.dump: no effect without alert.rules"),
    ({"cc_distribution": {"cc_pre_hook": True}}, "cc_distribution: no effect without cc_distribution.enable"),
    ({"l2_targets": {"linear_hook": []}}, "l2_targets: no effect without recording_l2_features"),
    ({"recording_l2_features": True}, "recording_l2_features: no effect without l2_targets"),
    ({"recording_l2_features": True, "l2_targets": {"attention_hook": []}}, "l2_targets.attention_hook: an empty list "
     "collects nothing; name the attention modules"),
    ({"targets": {"fc1": {}, "0:fc1": {"input": ""}}}, 'targets: "0:fc1" named with and without stage; on that stage '
     "the former holds"),
    ({}, "nothing is monitored; switch on one of wg_distribution, xy_distribution, param_distribution, "
     "mv_distribution, mg_direction, ur_distribution, recording_l2_features, print_struct, stack_info, "
     "cc_distribution.enable"),
]  # fmt: skip


@pytest.mark.parametrize(("mapping", "sentence"), ERRORS, ids=[str(i) for i in range(len(ERRORS))])
def test_error(mapping, sentence):
    with pytest.raises(ConfigError) as caught:
        parse_config(mapping, "c.json")
    assert str(caught.value) == f"c.json: 1 problem in the configuration\n  {sentence}"


@pytest.mark.parametrize(("mapping", "sentence"), WARNINGS, ids=[str(i) for i in range(len(WARNINGS))])
def test_warning(mapping, sentence):
    warnings = parse_config(mapping).warnings
    # None of them switches a monitor on, which has a warning of its own.
    assert [w for w in warnings if w == sentence or not w.startswith("nothing is monitored")] == [sentence]


def test_every_problem_is_in_one_message():
    merged = {"xy_distributon": 1, "eps": 0, "ops": "norm", "alert": {"rules": [{}], "dump": 0}, "targets": []}
    with pytest.raises(ConfigError) as caught:
        parse_config(merged, "c.json")
    lines = str(caught.value).splitlines()
    assert lines[0] == "c.json: 6 problems in the configuration"
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "xy_distributon", "targets", "alert.rules[0].rule_name", "alert.dump", "ops", "eps",
    ]  # fmt: skip


def test_a_flood_of_problems_is_cut():
    with pytest.raises(ConfigError) as caught:
        parse_config({f"key {i}": 0 for i in range(1000)}, "c.json")
    lines = str(caught.value).splitlines()
    assert lines[0] == "c.json: 1000 problems in the configuration"
    assert len(lines) == 102
    assert lines[-1] == "  and 900 more"


def test_what_the_rules_refuse_is_folded_in():
    rules = [{"rule_name": "AnomalyNam"}, {"rule_name": "AnomalyTurbulence", "args": {"threshold": "x"}}]
    with pytest.raises(ConfigError) as caught:
        parse_config({"alert": {"rules": rules}, "eps": -1}, "c.json")
    assert str(caught.value).splitlines() == [
        "c.json: 3 problems in the configuration",
        "  eps: -1 is refused, expected a finite number > 0",
        "  alert.rules[0].rule_name: unknown rule 'AnomalyNam'; known are AnomalyConstant, AnomalyDead, AnomalyFrozen, "
        "AnomalyNan, AnomalyOverwritten, AnomalySpike, AnomalyTurbulence, AnomalyVanish; did you mean AnomalyNan?",
        "  alert.rules[1].args.threshold: 'x' is not allowed; it takes a number >= 0",
    ]
