"""
A hook of mkdocs: the pages of the site that are not in `docs/`, and links to them.

Pages are written for the repository, where `../../ARCHITECTURE.md` and `../../examples/otel_sdk.py` are files. In the
site, the first is a page, and the second a part of the page with all examples. Links to other files of the repository
become plain text.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

__all__ = ["examples_page", "on_files", "on_page_markdown", "site_link", "site_markdown"]

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
EXAMPLES = "examples.md"

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})(.*)$")
_TITLE = re.compile(r'title="[^"]*"')


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in `docs/`."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - not installed with the package

    for name in PAGES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    files.append(File.generated(config, EXAMPLES, content=examples_page()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the text of *page* with links of the site."""
    return site_markdown(markdown, page.file.src_uri)


def site_markdown(markdown: str, uri: str) -> str:
    """Return *markdown* of the page *uri* with links of the site, and with code blocks that mkdocs reads."""
    found = []
    fence = ""
    for line in markdown.splitlines():
        marker = _FENCE.match(line)
        if marker is not None and not fence:
            fence = marker[2]
            language, _, rest = marker[3].strip().partition(" ")
            title = _TITLE.search(rest)
            found.append(f"{marker[1]}{fence}{language}{f' {title[0]}' if title else ''}")
        elif marker is not None and marker[2] == fence and not marker[3].strip():
            fence = ""
            found.append(line)
        else:
            found.append(line if fence else _LINK.sub(lambda link: _rewritten(link, uri), line))
    return "\n".join(found)


def _rewritten(link: re.Match[str], uri: str) -> str:
    image, text, target = link.groups()
    new = site_link(target, uri)
    return text if new is None else f"{image}[{text}]({new})"


def site_link(target: str, uri: str) -> str | None:
    """Return where the link *target* of the page *uri* leads in the site; None if the site does not have it."""
    if "://" in target or target.startswith(("#", "mailto:")):
        return target
    path, hash_sign, fragment = target.partition("#")
    here = posixpath.dirname(uri if uri in {*PAGES, EXAMPLES} else f"docs/{uri}")
    found = posixpath.normpath(posixpath.join(here, path))
    if found in PAGES:
        new = found
    elif found == "README.md":
        new = "index.md"
    elif found == "examples" or found.startswith("examples/"):
        name = found.removeprefix("examples").lstrip("/")
        new, hash_sign, fragment = EXAMPLES, "#" if name else "", name
    elif found.startswith("docs/"):
        new = found.removeprefix("docs/")
        if (ROOT / found).is_dir():
            new = f"{new}/README.md"
    else:
        return None
    return f"{posixpath.relpath(new, posixpath.dirname(uri) or '.')}{hash_sign}{fragment}"


def examples_page() -> str:
    """Return a page with every example."""
    parts = ["# Examples", "", "Complete files, which are in `examples/` of the repository and in the package."]
    for path in sorted((ROOT / "examples").iterdir()):
        if path.suffix in {".py", ".yaml"}:
            text = path.read_text(encoding="utf-8")
            language = "python" if path.suffix == ".py" else "yaml"
            summary = _summary(text, language)
            parts += ["", f"## {path.name} {{#{path.name}}}", "", summary, "", f"```{language}", text.rstrip(), "```"]
    return "\n".join(parts) + "\n"


def _summary(text: str, language: str) -> str:
    """Return the first sentence of an example's docstring, or of its first comment."""
    if language == "python":
        lines = (ast.get_docstring(ast.parse(text)) or "").splitlines()
    else:
        lines = [line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#")]
    paragraph = []
    for line in lines:
        if not line.strip():
            break
        paragraph.append(line)
    return " ".join(paragraph)
