"""docs/configuration.md describes every field, with its default."""

import json
import re
from pathlib import Path

import attrs
import pytest

from msmon.config import AlertConfig, CcConfig, Config, ConfigError, L2Config, RuleConfig, parse_config
from msmon.config.checks import checked_fields

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^#{3,4} `([^`]+)`\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL))
PLACES = {"": Config, "cc_distribution.": CcConfig, "l2_targets.": L2Config, "alert.": AlertConfig,
          "alert.rules[].": RuleConfig}  # fmt: skip
FIELDS = {place + name: cls for place, cls in PLACES.items() for name in checked_fields(cls)}


def test_every_field_has_a_section_and_every_section_a_field():
    assert sorted(SECTIONS) == sorted(FIELDS)


@pytest.mark.parametrize("name", [name for name, cls in FIELDS.items() if cls is Config])
def test_the_default_is_the_documented_one(name):
    default = parse_config({}).to_dict()[name]
    text = re.search(r"default:? (`[^`]+`|off|no rules)", SECTIONS[name])[1]
    if text in ("off", "no rules"):
        assert not any(default.values())
    else:
        assert json.loads(text.strip("`")) == default


def test_every_example_is_valid():
    examples = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) >= 6
    for example in examples:
        assert parse_config(json.loads(example)).source == "configuration"


def test_the_example_of_a_message():
    example = re.search(r"```text\n(monitor_config\.json: .*?)\n```", PAGE, re.DOTALL)[1]
    with pytest.raises(ConfigError) as caught:
        parse_config({"xy_distributon": True, "start_step": "5", "alert": {"rules": [{}]}}, "monitor_config.json")
    assert str(caught.value) == example


def test_every_field_of_the_classes_has_a_docstring():
    import msmon.config.model as model

    source = Path(model.__file__).read_text(encoding="utf-8")
    for cls in (Config, CcConfig, L2Config, AlertConfig, RuleConfig):
        body = source.split(f"class {cls.__name__}:")[1].split("\nclass ")[0]
        for field in attrs.fields(cls):
            assert re.search(rf'^    {field.name}: [^\n]*\n    """\S', body, re.MULTILINE), field.name
