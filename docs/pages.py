"""What `make docs` adds to the plain Markdown: the order of the pages, and links that leave `docs/`.

Read as files, the pages link to source files and to the pages beside the README. A site has none of those: a
link to a source file becomes its path, and the pages at the top (ARCHITECTURE.md ...) become part of the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
SECTIONS = {
    "How to": "how-to",
    "Explanation": "explanation",
    "Reference": "reference",
    "Runbooks": "runbooks",
    "Decisions": "decisions",
}
TOP_PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")

_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)*)([^)#\s]+)(#[^)]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Every page, section by section: a page that is written is shown."""
    docs = Path(config.docs_dir)
    nav: list[Any] = ["README.md", "quickstart.md"]
    nav += [
        {name: sorted(f"{folder}/{p.name}" for p in (docs / folder).glob("*.md"))}
        for name, folder in SECTIONS.items()
    ]
    config.nav = [*nav, {"Project": list(TOP_PAGES)}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages beside the README are pages of the site."""
    for name in TOP_PAGES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Links, as they must be inside the site. What leads nowhere is left for the build to complain about."""
    here = ROOT / ("docs" if page.file.src_uri not in TOP_PAGES else "") / page.file.src_uri

    def turned(found: re.Match[str]) -> str:
        words, up, path, anchor = found[1], found[2], found[3], found[4] or ""
        target = (here.parent / up / path).resolve()
        if "://" in path or not target.exists():
            return found[0]
        inside = target.relative_to(ROOT).as_posix()
        if inside in TOP_PAGES:
            depth = page.file.src_uri.count("/")
            return f"[{words}]({'../' * depth}{inside}{anchor})"
        if page.file.src_uri in TOP_PAGES and inside.startswith("docs/") and target.is_file():
            return f"[{words}]({inside.removeprefix('docs/')}{anchor})"
        if not inside.startswith("docs/") or target.is_dir():
            return words
        return found[0]

    return _LINK.sub(turned, markdown)
