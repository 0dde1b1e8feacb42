"""The code blocks of all pages, page by page: in order, in one folder, as a reader would type them."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import attrs
import pytest
import tomllib

from msmon.config import parse_config
from msmon.reading.diff.rules import read_rules
from msmon_alert import rules_from_config
from msmon_alert.config import ENTRY_POINT_GROUP
from msmon_io.writers import ENTRY_POINTS

from . import commands
from .forks import Forks
from .givens import CODE
from .pages import CHINESE, PAGES, ROOT, Block, blocks, givens

LANGUAGES = {"python", "sh", "console", "json", "toml", "sql", "text"}
_REPLACES = "the command takes the place of the program; tests/integration/test_run.py does it"
NOT_RUN: dict[str, set[str]] = {
    "README.md": {_REPLACES},
    "docs/run.md": {_REPLACES},
    "docs/releasing.md": {"it publishes"},
    "docs/engines/trainers.md": {
        "the packages are of others",
        "ultralytics is not among what the documentation is tested with",
        "the documentation is tested with PyTorch",
        "ms-swift is not among what the documentation is tested with",
    },
}
"""Page to reasons: every block that is not run, so that a new one is noticed."""


def test_there_are_pages() -> None:
    assert {"README.md", "README.zh.md", "docs/engines/ddp.md", "packages/msmon-io/README.md"} <= set(PAGES)
    assert sum(len(blocks(page)) for page in PAGES) > 80


def test_what_is_not_run_says_why() -> None:
    found: dict[str, set[str]] = {}
    for page in (page for page in PAGES if page not in CHINESE):
        for block in blocks(page):
            if "not run" in block.notes:
                found.setdefault(page, set()).add(block.notes["not run"])
    assert found == NOT_RUN


@pytest.mark.parametrize("page", [page for page in PAGES if page not in CHINESE])
def test_page(page: str, forks: Forks, page_folder: Path, request: pytest.FixtureRequest) -> None:
    given = givens(page)
    code = "".join(CODE[name] for name in given if name in CODE)
    for name in given:
        if name not in CODE:
            request.getfixturevalue("givens").put(name, page_folder)
    program: list[dict[str, Any]] = []
    begin = [{"do": "python", "code": code, "place": "given"}] if code else []
    for block in [*(block for block in blocks(page) if "not run" not in block.notes), None]:
        if block is not None and block.language == "python" and "lines of" not in block.notes:
            program = program or begin
            program = [*program, {"do": "python", "code": block.text, "place": block.place}]
            continue
        # A program ends where its commands begin; until then its results may not be written.
        if program and (block is None or block.language in ("sh", "console")):
            forks.run(page_folder, *program)
            program = []
        if block is not None:
            assert block.language in LANGUAGES, f"{block.place}: the language of the block is {block.language!r}"
            _run(block, forks, page_folder)


def _run(block: Block, forks: Forks, folder: Path) -> None:
    if "file" in block.notes:
        (folder / block.notes["file"]).write_text(block.text)
    if "lines of" in block.notes:
        assert_excerpt(block, ROOT / block.notes["lines of"])
    elif block.language == "json":
        JSON_KINDS[block.notes.get("json", "configuration")](block.text)
    elif block.language == "toml":
        assert_registers(block)
    elif block.language == "sql":
        _query(block, folder)
    elif block.language in ("sh", "console"):
        steps = [commands.step(words, block) for words in commands.lines(block)]
        assert steps, f"{block.place}: no command"
        for step in steps:
            if step is not None:
                forks.run(folder, step, env=step["env"])


def assert_excerpt(block: Block, path: Path) -> None:
    """Each line of the block is in the file, in this order."""
    lines = iter([line.strip() for line in path.read_text().splitlines()])
    for line in block.text.splitlines():
        assert not line.strip() or line.strip() in lines, f"{block.place}: not in {path.name}, or not there: {line}"


def assert_registers(block: Block) -> None:
    """Entry points of a group that exists, for a class that the page defines."""
    (group,) = tomllib.loads(block.text)["project"]["entry-points"]
    assert group in (ENTRY_POINT_GROUP, ENTRY_POINTS)
    defined = [name for one in blocks(block.page) for name in re.findall(r"^class (\w+)", one.text, re.MULTILINE)]
    for target in tomllib.loads(block.text)["project"]["entry-points"][group].values():
        assert target.partition(":")[2] in defined, block.place


def _query(block: Block, folder: Path) -> None:
    import duckdb

    query = block.text.replace("'monitor_output/", f"'{folder}/monitor_output/")
    assert duckdb.sql(query).fetchall(), block.place


def _configuration(text: str) -> None:
    config = parse_config(json.loads(text))
    # An example of one field alone monitors nothing.
    unexpected = [text for text in config.warnings if not text.startswith("nothing is monitored")]
    assert not unexpected
    rules_from_config(config.to_dict()["alert"]["rules"])


def _rules(text: str) -> None:
    rules_from_config(json.loads(text))


def _tensor(text: str) -> None:
    from msmon_hooks.gradients import GradientSource
    from msmon_hooks.parameters import Weight

    parameter = type("Parameter", (), {"shape": (2, 2), "dtype": "float32"})()
    weight = Weight(name="w", vpp_stage=0, index=0, parameter=parameter)
    # The layout is there where the engine knows it.
    assert set(json.loads(text)) == {*GradientSource([], None).describe(weight), "layout"}


def _diff_rules(text: str) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(text)
        file.flush()
        assert len(read_rules(Path(file.name)).rules) == len(json.loads(text))


JSON_KINDS = {
    "configuration": _configuration,
    "rules": _rules,
    "tensor of run.json": _tensor,
    "diff rules": _diff_rules,
}


def test_a_broken_block_is_noticed(forks: Forks, page_folder: Path) -> None:
    wrong = Block(page="x.md", line=3, language="python", text="1 / 0\n")
    with pytest.raises(AssertionError, match=r"(?s)x\.md:3.*ZeroDivisionError"):
        forks.run(page_folder, {"do": "python", "code": wrong.text, "place": wrong.place})
    for text, problem in [
        ("msmon check missing.json", "ends with 2"),
        ("pip install 'msmon[tourch]'", "no extra"),
        ("make tset", "make tset"),
        ("rm -rf .", "how is rm run"),
    ]:
        with pytest.raises(AssertionError, match=problem):
            _run(attrs.evolve(wrong, language="sh", text=text), forks, page_folder)
    with pytest.raises(AssertionError, match="not in ddp"):
        assert_excerpt(attrs.evolve(wrong, text="model = 3\n"), ROOT / "examples/ddp.py")
