"""Shell blocks: what each command line is, and how it is run or checked."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import tomllib

from .pages import ROOT, Block

MODULES = {"msmon": "msmon.cli", "msmon_alert": "msmon_alert.cli", "msmon_io": "msmon_io.cli"}
SHORTER = {"msmon demo": "msmon demo --steps 2"}
"""The whole demo takes longer than all of this; `tests/integration/test_demo.py` runs it."""
DIFFER = {"diff": (1,)}
"""Commands that end with 1 on these runs, and are meant to."""


def lines(block: Block) -> list[list[str]]:
    """The command lines of a block as words, without comments; of `console` those behind a `$`."""
    text = block.text.replace("\\\n", " ")
    if block.language == "console":
        text = "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))
    found = []
    for line in text.splitlines():
        words: list[str] = []
        for word in [*shlex.split(line, comments=True), "&&"]:
            if word != "&&":
                words.append(word)
            elif words:
                found.append(words)
                words = []
    return found


def step(words: list[str], block: Block) -> dict[str, Any] | None:
    """How the command line is run, or None where it was only checked.

    Raises:
        AssertionError: it cannot be right, or nobody knows how to check it.
    """
    words = shlex.split(SHORTER.get(" ".join(words), " ".join(map(shlex.quote, words))))
    env = {}
    while re.match(r"[A-Z_]+=", words[0]):
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    program, *rest = words
    if program == "python" and rest[0] == "-m" and rest[1] in MODULES:
        program, rest = rest[1], rest[2:]
    if program in MODULES:
        allowed = DIFFER.get(rest[0] if rest else "", (0,))
        arguments = [word for word in rest if word != "--open"]
        run = {"do": "command", "words": [MODULES[program], *arguments], "statuses": allowed}
        return {**run, "place": block.place, "env": env}
    if program == "python" and rest[0] == "-c":
        return {"do": "python", "code": rest[1], "place": block.place, "env": env}
    checks = {"pip": check_pip, "make": check_make, "hatch": check_hatch, "python": check_file, "torchrun": check_file,
              "pytest": check_file}  # fmt: skip
    assert program in checks, f"{block.place}: how is {program} run? Say `<!-- not run: why -->`, or add it here"
    checks[program](rest, block)
    return None


def check_pip(words: list[str], block: Block) -> None:
    """What is installed exists: our packages with these extras."""
    assert words[0] == "install", block.place
    for word in words[1:]:
        name, extras = re.fullmatch(r"([\w-]+)(?:\[([\w,]+)\])?", word).groups()
        project = tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text())["project"]
        unknown = set(extras.split(",") if extras else ()) - set(project.get("optional-dependencies", ()))
        assert not unknown, f"{block.place}: {name} has no extra {unknown}"


def check_make(words: list[str], block: Block) -> None:
    """The target exists, and so do the paths in ARGS."""
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{re.escape(words[0])}:", makefile, re.MULTILINE), f"{block.place}: make {words[0]}"
    for word in words[1:]:
        assert word.startswith("ARGS="), f"{block.place}: {word}"
        check_file([part for part in shlex.split(word[5:]) if part.startswith(("tests", "examples"))], block)


def check_hatch(words: list[str], block: Block) -> None:
    """`hatch run SCRIPT` exists."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["envs"]["default"]["scripts"]
    assert words[0] == "build" or words[1] in scripts, f"{block.place}: hatch {' '.join(words)}"


def check_file(words: list[str], block: Block) -> None:
    """Files exist; examples are run by test_examples.py."""
    module = words[1] if words[:1] == ["-m"] else None
    if module is not None:
        path = Path(*module.split("."))
        assert (ROOT / path).is_dir() or (ROOT / path.with_suffix(".py")).exists(), f"{block.place}: {module}"
    for word in words:
        if "/" in word:
            assert (ROOT / word.partition("::")[0]).exists(), f"{block.place}: there is no {word}"
