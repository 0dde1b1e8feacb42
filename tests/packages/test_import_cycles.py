"""No module of a package imports, by however many steps, one that imports it.

Imports at the top of a file, those under `TYPE_CHECKING` and those inside functions all count: a later import hides a
circle from Python, not from who wants to read, test or move one of the modules alone. What does not count is that
importing `a.b` also runs `a/__init__.py`: every package that lists names of its modules would be a circle.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

PACKAGES = sorted(Path(__file__).parents[2].glob("packages/*/src/*"))


def modules_of(package: Path) -> dict[str, Path]:
    """Dotted name -> file."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = (package.name, *path.relative_to(package).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(package: Path) -> dict[str, set[str]]:
    """Module -> the modules of the same package that it imports anywhere in its file."""
    modules = modules_of(package)
    return {
        name: {target for target in _targets(path, modules) if target in modules and target != name}
        for name, path in modules.items()
    }


def _targets(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                yield inside if inside in modules else str(node.module)


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules that all reach each other."""
    reached = {module: _reach(graph, module) for module in graph}
    found = {tuple(sorted(m for m in reached[module] if module in reached[m])) for module in graph}
    return sorted(list(group) for group in found if group)


def _reach(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_no_circle(package: Path) -> None:
    graph = imports_of(package)
    assert len(graph) > 15, "there are modules"
    assert any(graph.values()), "which import each other"
    assert cycles(graph) == []


@pytest.mark.parametrize(
    "back",
    [
        "from made_up.inner.first import FIRST",
        "def late():\n    import made_up.inner.first",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from made_up.inner import first",
    ],
)
def test_a_circle_is_found(tmp_path: Path, back: str) -> None:
    package = tmp_path / "made_up"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("from made_up.inner.first import FIRST\n")
    (package / "inner" / "__init__.py").write_text("")
    (package / "inner" / "first.py").write_text("from made_up.middle import MIDDLE\nFIRST = MIDDLE\n")
    (package / "middle.py").write_text("from made_up import last\nMIDDLE = last.LAST\n")
    (package / "last.py").write_text("LAST = 1\n")
    assert cycles(imports_of(package)) == []
    (package / "last.py").write_text(back + "\nLAST = 1\n")
    assert cycles(imports_of(package)) == [["made_up.inner.first", "made_up.last", "made_up.middle"]]
