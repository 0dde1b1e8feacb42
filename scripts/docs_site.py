"""Hooks of mkdocs: files of the repository that are not in `docs/` become pages of the site too.

READMEs, change logs, CONTRIBUTING and the examples stay where people look for them, with links that work there. Here
they get a place in the site, and links that lead out of `docs/` are rewritten to it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")


def site_pages() -> dict[str, str]:
    """Path in the repository to path in the site."""
    pages = {"README.md": "index.md", "README.zh.md": "zh/index.md", "CONTRIBUTING.md": "contributing.md"}
    for readme in sorted(ROOT.glob("packages/*/README.md")):
        name = readme.parent.name
        pages[f"packages/{name}/README.md"] = f"packages/{name}.md"
        pages[f"packages/{name}/CHANGELOG.md"] = f"packages/{name}-changelog.md"
    for example in sorted([*ROOT.glob("examples/*.py"), *ROOT.glob("examples/*.json")]):
        pages[f"examples/{example.name}"] = f"examples/{example.stem}.md"
    pages |= {f"docs/{path.relative_to(ROOT / 'docs')}": str(path.relative_to(ROOT / "docs")) for path in
              sorted((ROOT / "docs").rglob("*")) if path.is_file()}  # fmt: skip
    return pages


PAGES = site_pages()
SOURCES = {page: source for source, page in PAGES.items()}


def rewrite_links(text: str, source: str) -> str:
    """Links that hold in the repository, seen from the file `source`, as links of the site."""
    folder = posixpath.dirname(PAGES[source])

    def replace(match: re.Match[str]) -> str:
        target, _, anchor = match[2].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        inside = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        page = PAGES.get(inside)
        if page is None:
            return match[0]  # mkdocs warns of it, and warnings end the build
        return match[1] + posixpath.relpath(page, folder or ".") + (f"#{anchor}" if anchor else "") + match[3]

    return LINK.sub(replace, text)


def page_of(source: str) -> str:
    """The Markdown of a file that is outside of `docs/`."""
    text = (ROOT / source).read_text(encoding="utf-8")
    if source.endswith(".md"):
        return text
    return f"# {source}\n\n```{'json' if source.endswith('.json') else 'python'}\n{text}```\n"


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages that lie outside of `docs/`."""
    for source, page in PAGES.items():
        if not source.startswith("docs/"):
            files.append(File.generated(config, page, content=page_of(source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links lead to pages of the site."""
    return rewrite_links(markdown, SOURCES[page.file.src_uri])


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Say of pages in Chinese that they are, for the browser's choice of fonts and for screen readers."""
    return output.replace('<html lang="en"', '<html lang="zh"', 1) if page.file.src_uri.startswith("zh/") else output
