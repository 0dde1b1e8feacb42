"""Target names with stage prefixes, and which elements a selector chooses."""

import pytest

from msmon.config import parse_config
from msmon.config.selector import parse_selector


@pytest.mark.parametrize(
    ("text", "length", "index"),
    [
        ("", None, None),
        ("tensor", 1, None),
        ("tuple[1]", 1, None),
        ("tuple[1]:0", 1, 0),
        ("tuple[2]:1", 2, 1),
        ("list[3]:2", 3, 2),
        ("list[0]", 0, None),
    ],
)
def test_forms(text, length, index):
    selector = parse_selector(text)
    assert (selector.text, selector.length, selector.index) == (text, length, index)


OTHER_TEXTS = ["Tensor", "tuple", "tuple[]", "tuple[1]:", "tuple[-1]", "tuple[1]:0 ", " ", "tuple[1:0]", "dict[1]",
               "tuple[9999999]", "tuple[٣]", "tensor\n"]  # fmt: skip


@pytest.mark.parametrize("text", OTHER_TEXTS)
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="an unknown form"):
        parse_selector(text)


def test_an_element_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"the last element of tuple\[1\] is 0"):
        parse_selector("tuple[1]:1")


def test_names():
    targets = {
        "0:a.b": {},
        "a.b": {"input": "", "output": "tuple[2]:0"},
        "": {},
        "1:": {},
        "x:y": {"input_grad": "tensor"},
    }
    config = parse_config({"targets": targets})
    assert [(t.key, t.name, t.stage, not t.sides) for t in config.targets] == [
        ("0:a.b", "a.b", 0, True),
        ("a.b", "a.b", None, False),
        ("", "", None, True),
        ("1:", "", 1, True),
        ("x:y", "x:y", None, False),
    ]
    everywhere = config.targets[1]
    assert everywhere.sides["input"].length is None
    assert everywhere.sides["output"].index == 0
    assert "output_grad" not in everywhere.sides
