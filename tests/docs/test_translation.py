"""A page in Chinese says what the one in English does: its headings, blocks, tables, links, names and figures."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from .pages import CHINESE, PAGES, anchor, blocks, read, twin

ENGLISH_ONLY = {
    "docs/design.md": "for those who work on msmon",
    "docs/releasing.md": "the same",
    "docs/writing-a-rule.md": "for those who write Python that msmon calls",
    "docs/writing-a-writer.md": "the same",
    "docs/writing-an-engine.md": "the same",
    "docs/reference/msmon.md": "made of docstrings, which are English",
    "docs/reference/msmon-alert.md": "the same",
    "docs/reference/msmon-hooks.md": "the same",
    "docs/reference/msmon-io.md": "the same",
    "docs/reference/msmon-stats.md": "the same",
}
"""Page to reason. Every other page of docs/ is for users, who may read Chinese."""
ENGLISH = [
    page
    for page in PAGES
    if page == "README.md" or (page.startswith("docs/") and page not in CHINESE and page not in ENGLISH_ONLY)
]

HAN = "[\u4e00-\u9fff]"
PAIRS = [page for page in ENGLISH if twin(page) in CHINESE]
both = pytest.mark.parametrize("page", PAIRS)


def prose(page: str) -> str:
    """The page without its blocks."""
    return re.sub(r"```.*?```", "```", read(page), flags=re.DOTALL)


def outline(page: str) -> list[str]:
    """Kinds of lines in their order: headings, fences, rows of tables, items, pictures."""
    kinds = [re.match(r"#+ |```|\||\* |\d+\. |!\[|<!--", line) for line in prose(page).splitlines()]
    return [kind[0].strip() for kind in kinds if kind]


@cache
def tokens(page: str) -> list[Token]:
    """The page, parsed."""
    return MarkdownIt("commonmark").enable("table").parse(read(page))


def names(inline: Token) -> list[str]:
    """What is set as code in a line, a cell or a heading."""
    return [child.content for child in inline.children or () if child.type == "code_inline"]


def titles(page: str) -> list[str]:
    """The headings."""
    return [text.content for begin, text in pairwise(tokens(page)) if begin.type == "heading_open"]


def tables(page: str) -> Iterator[list[list[Token]]]:
    """The cells of each table, row by row."""
    rows: list[list[Token]] = []
    for before, token in pairwise(tokens(page)):
        if token.type == "tr_open":
            rows.append([])
        elif before.type in ("th_open", "td_open"):
            rows[-1].append(token)
        elif token.type == "table_close":
            yield rows
            rows = []


def links(page: str) -> Counter[str]:
    """Where links lead, by the names of the English pages, but for the link to the other language."""
    english = {twin(one): one for one in ENGLISH}
    found: list[str] = []
    for link in re.findall(r"\]\(([^)]+)\)", re.sub(r"`[^`]*`", "", prose(page).replace("```", ""))):
        target, _, place = link.partition("#")
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) if target else page
        path = target if "://" in target else beside
        if path in (twin(page), english.get(page)):
            continue
        assert page not in CHINESE or path not in english.values(), f"{page}: {link} is there in Chinese, too"
        found.append(english.get(path, path) + (f"#{place}" if place else ""))
    return Counter(found)


def figures(page: str) -> set[str]:
    """Numbers outside of code, but for those that one language writes in words."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|\{#.*\}", "", prose(page).replace("```", ""))
    text = re.sub(r"[\d.,]+ (million|[\u4e07\u4ebf])|[\d.]+ M\b|\d+ \u6708", "", text)
    return set(re.findall(r"\d[\d,.]*\d|\d", text))


def test_every_page_for_users_has_a_twin() -> None:
    missing = sorted({twin(page) for page in ENGLISH} - CHINESE)
    assert not missing, f"write {missing}, or say in ENGLISH_ONLY why these are only there in English"
    assert {twin(page) for page in ENGLISH} == CHINESE, "a page in Chinese has no English one"
    assert set(PAGES) >= set(ENGLISH_ONLY)


@both
def test_outline(page: str) -> None:
    assert outline(twin(page)) == outline(page)


@pytest.mark.parametrize("page", [page for page in PAIRS if page != "README.md"])
def test_headings(page: str) -> None:
    assert [anchor(title) for title in titles(twin(page))] == [anchor(title) for title in titles(page)]


@both
def test_blocks(page: str) -> None:
    for one, other in zip(blocks(page), blocks(twin(page)), strict=True):
        assert (one.language, one.notes) == (other.language, other.notes), f"{one.place} and {other.place}"
        # Comments of commands may be translated.
        texts = [re.sub(r" *#.*", "", block.text) if block.language == "sh" else block.text for block in (one, other)]
        assert texts[0] == texts[1], f"{one.place} and {other.place}"


@both
def test_tables(page: str) -> None:
    for one, other in zip(tables(page), tables(twin(page)), strict=True):
        assert [len(row) for row in one] == [len(row) for row in other]
        for row, twin_row in zip(one, other, strict=True):
            assert sorted(names(row[0])) == sorted(names(twin_row[0]))


@both
def test_links_names_and_figures(page: str) -> None:
    assert links(twin(page)) == links(page)
    here, there = (Counter(name for token in tokens(one) for name in names(token)) for one in (page, twin(page)))
    assert here == there
    assert figures(page) == figures(twin(page))


@both
def test_it_is_chinese(page: str) -> None:
    words = re.sub(r"`[^`]*`|<!--.*?-->|\]\([^)]*\)|\{#.*\}", "", prose(twin(page)).replace("```", ""))
    assert not re.findall(r"(?:[A-Za-z-]+,? ){4}[A-Za-z-]+", words), "English is left"
    assert not re.findall(rf"{HAN}[,;:?!(].*|.*[,;:?!)]{HAN}", words), "punctuation is not that of Chinese"
