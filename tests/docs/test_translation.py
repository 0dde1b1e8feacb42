"""README.zh.md says the same as README.md: the same headings, blocks, tables, links, names and figures."""

from __future__ import annotations

import re

from .pages import blocks, read

ENGLISH, CHINESE = "README.md", "README.zh.md"


def prose(page: str) -> str:
    return re.sub(r"```.*?```", "```", read(page), flags=re.DOTALL)


def outline(page: str) -> list[str]:
    """Kinds of lines in their order: headings, fences, rows of tables, items, pictures."""
    kinds = [re.match(r"#+ |```|\||\* |!\[|<!--", line) for line in prose(page).splitlines()]
    return [kind[0].strip() for kind in kinds if kind]


def test_outline() -> None:
    assert outline(CHINESE) == outline(ENGLISH)


def test_blocks() -> None:
    for one, other in zip(blocks(ENGLISH), blocks(CHINESE), strict=True):
        assert (one.language, one.notes) == (other.language, other.notes), f"{one.place} and {other.place}"
        # Comments of commands are translated.
        texts = [re.sub(r" *#.*", "", block.text) if block.language == "sh" else block.text for block in (one, other)]
        assert texts[0] == texts[1], f"{one.place} and {other.place}"


def test_links_names_and_figures() -> None:
    for pattern in (r"\]\(([^)]+)\)", r"`([^`\n]+)`", r"x \d+\.\d+"):
        found = [sorted(re.findall(pattern, prose(page).replace("```", ""))) for page in (ENGLISH, CHINESE)]
        other_language = [sorted({*names} - {ENGLISH, CHINESE}) for names in found]
        assert other_language[0] == other_language[1]


def test_it_is_chinese() -> None:
    words = re.sub(r"```|`[^`]*`|<!--.*?-->|\(.*?\)", "", prose(CHINESE))
    assert len(re.findall(r"[\u4e00-\u9fff]", words)) > 0.4 * len(re.sub(r"\s", "", words))
