"""Links between files of the repository lead to files, and anchors to headings."""

from __future__ import annotations

import re

import pytest

from .pages import PAGES, ROOT, anchor, read

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
EVERY_PAGE = [*PAGES, *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("packages/*/CHANGELOG.md"))]


def links(page: str) -> list[str]:
    return LINK.findall(re.sub(r"```.*?```|`[^`\n]*`", "", read(page), flags=re.DOTALL))


def anchors(text: str) -> set[str]:
    return {anchor(title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_links(page: str) -> None:
    for link in links(page):
        if "://" in link:
            continue
        target, _, place = link.partition("#")
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.is_file(), f"{page}: {link}"
        if place:
            assert place in anchors(path.read_text(encoding="utf-8")), f"{page}: {link}"


def test_every_page_can_be_reached() -> None:
    reached: set[str] = set()
    new = {"README.md"}
    while new:
        page = new.pop()
        reached.add(page)
        for link in links(page):
            path = ((ROOT / page).parent / link.partition("#")[0]).resolve()
            if path.is_file() and path.suffix == ".md":
                new |= {str(path.relative_to(ROOT))} - reached
    # The reference is made for the site, and is in its navigation.
    assert not {page for page in PAGES if not page.startswith("docs/reference/")} - reached
