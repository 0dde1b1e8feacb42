"""Mutated configurations: a checked configuration or one clear ConfigError, never another exception.

`MSMON_FUZZ_EXAMPLES` is the number of configurations; `make fuzz` runs many more than the tests do.
"""

import copy
import json
import os
import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msmon.config import Config, ConfigError, load_config, parse_config

EXAMPLES = int(os.environ.get("MSMON_FUZZ_EXAMPLES", "300"))
# The normal tests run the same configurations every time; a long run finds new ones.
fuzz = settings(
    max_examples=EXAMPLES,
    derandomize=EXAMPLES <= 300,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

VALID = {
    "targets": {"0:fc1": {"input": "tuple[2]:1", "output": "tensor"}, "layers.0": {}},
    "start_step": 3, "collect_times": 10, "step_interval": 7, "module_ranks": [0, 1],
    "wg_distribution": True, "monitor_mbs_grad": True, "xy_distribution": True, "ur_distribution": True,
    "cc_distribution": {"enable": True, "cc_codeline": [r"train\.py\[\d+\]"], "cc_pre_hook": True},
    "alert": {"rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}], "dump": True},
    "l2_targets": {"attention_hook": ["a"], "linear_hook": []}, "recording_l2_features": True, "sa_order": "b,s,h,d",
    "format": ["tensorboard", "csv"], "ops": ["max", "norm"], "eps": 1e-12, "ndigits": 12, "step_count_per_record": 5,
    "append_output": ["Dec03_21-34-40", "Feb29_00-00-00"], "squash_name": True,
}  # fmt: skip

TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["norm", "csv", "tuple[2]:2", "tuple[1]", "Dec03_21-34-40", "(a+)+", ".*.*.*x", "\ud800", "NaN"]),
    st.text("(a|b)*+?.{1,9}[]\\d^$", max_size=30),
)  # fmt: skip
NESTED_KEYS = ["rule_name", "args", "input", "enable", "dump", "rules"]
KEYS = st.one_of(TEXTS, st.sampled_from(sorted(VALID)), st.sampled_from(NESTED_KEYS))
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS, st.just(10**400), st.just(-(10**30)))
VALUES = st.recursive(
    LEAVES, lambda v: st.one_of(st.lists(v, max_size=4), st.dictionaries(KEYS, v, max_size=4)), max_leaves=12
)


@st.composite
def mutated(draw):
    """The valid configuration after up to four mutations, each anywhere in it."""
    mapping = copy.deepcopy(VALID)
    for _ in range(draw(st.integers(1, 4))):
        place = mapping
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if not isinstance(place[key], (dict, list)) or draw(st.booleans()):
                break
            place = place[key]
        kind = draw(st.sampled_from(["replace", "add", "remove", "rename"]))
        if kind == "add" and isinstance(place, list):
            place.append(draw(VALUES))
        elif kind == "add" or not keys:
            place.update({draw(KEYS): draw(VALUES)}) if isinstance(place, dict) else place.append(draw(VALUES))
        elif kind == "replace":
            place[key] = draw(VALUES)
        elif kind == "rename" and isinstance(place, dict):
            place[draw(KEYS)] = place.pop(key)
        else:
            del place[key]
    return mapping


def outcome(read):
    """What `read` gives; whatever is not a Config or a readable ConfigError fails the test here."""
    try:
        config = read()
    except ConfigError as error:
        message = str(error)
        # No surrogates, so every log can write it, and bounded, whatever the file holds.
        assert len(message.encode()) < 100_000
        assert all(line.isprintable() for line in message.splitlines())
        assert message.startswith("c.json: ") or "/c.json: " in message
        return None
    assert isinstance(config, Config)
    assert all(warning.isprintable() for warning in config.warnings)
    again = parse_config(json.loads(json.dumps(config.to_dict())))
    assert again.to_dict() == config.to_dict()
    return config


@fuzz
@given(mutated())
def test_mutated_mapping(mapping):
    before = repr(mapping)
    outcome(lambda: parse_config(mapping, "c.json"))
    assert repr(mapping) == before


@fuzz
@given(st.dictionaries(st.one_of(KEYS, st.integers()), VALUES, max_size=6))
def test_arbitrary_mapping(mapping):
    outcome(lambda: parse_config(mapping, "c.json"))


@fuzz
@given(mutation=mutated(), seed=st.integers(0, 2**32), cuts=st.integers(0, 3))
def test_mutated_bytes(tmp_path_factory, mutation, seed, cuts):
    data = bytearray(json.dumps(mutation, indent=1).encode())
    chance = random.Random(seed)
    for _ in range(cuts):
        at = chance.randrange(len(data) + 1)
        pieces = [b"", b",", b"}", b"{", b'"', b"\\", b"\xff", b"NaN", b"//", b"\0", bytes(data[at : at + 40])]
        data[at : at + chance.randrange(4)] = chance.choice(pieces)
    path = tmp_path_factory.getbasetemp() / "c.json"
    path.write_bytes(data)
    outcome(lambda: load_config(path))


def test_the_unmutated_configuration_is_valid():
    assert outcome(lambda: parse_config(VALID, "c.json")).warnings == ()
