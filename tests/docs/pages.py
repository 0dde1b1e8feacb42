"""The pages and their code blocks.

An HTML comment in front of a block says what cannot be seen from it:

    <!-- file: monitor_config.json -->         what follows needs it as this file
    <!-- lines of: examples/ddp.py -->         an excerpt of a file, which is run as a whole
    <!-- json: diff rules -->                  JSON that is no configuration; see JSON_KINDS in test_pages.py
    <!-- not run: it publishes -->             the reason, for the reader too

and one before the first block of a page names what the page takes for granted, see `givens.py`:

    <!-- given: monitor_output, model -->
"""

from __future__ import annotations

import re
from pathlib import Path

from attrs import field, frozen
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "packages/*/README.md")
    for path in ROOT.glob(pattern)
)
CHINESE = {page for page in PAGES if page.startswith("docs/zh/") or page == "README.zh.md"}
"""Pages whose twin in English has the same blocks; test_translation.py compares them."""
_COMMENT = re.compile(r"<!-- (file|lines of|json|not run|given): (.+?) -->")


@frozen(kw_only=True)
class Block:
    """A code block."""

    page: str
    line: int
    language: str
    text: str
    notes: dict[str, str] = field(factory=dict)

    @property
    def place(self) -> str:
        """For messages."""
        return f"{self.page}:{self.line}"


def read(page: str) -> str:
    """The text of a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    """The code blocks of a page, in order."""
    found, notes = [], {}
    for token in MarkdownIt("commonmark").parse(read(page)):
        if token.type == "html_block":
            notes |= dict(_COMMENT.findall(token.content))
        elif token.type in ("fence", "code_block"):
            assert token.map is not None
            notes.pop("given", None)
            info = token.info.strip()
            found.append(Block(page=page, line=token.map[0] + 1, language=info, text=token.content, notes=notes))
            notes = {}
    return found


def givens(page: str) -> list[str]:
    """What the page takes for granted."""
    return [name.strip() for key, names in _COMMENT.findall(read(page)) if key == "given" for name in names.split(",")]


def twin(page: str) -> str:
    """Where the page is in Chinese."""
    return "README.zh.md" if page == "README.md" else page.replace("docs/", "docs/zh/", 1)


def anchor(title: str) -> str:
    """What a link to the heading names: `{#anchor}` behind it, or its words."""
    explicit = re.search(r" \{#([\w-]+)\}$", title)
    return explicit[1] if explicit else re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
