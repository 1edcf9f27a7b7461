"""The rules of `tidy.py` about words that no text file has."""

from __future__ import annotations

import re
from collections.abc import Iterator

from source_modules import Finding

__all__ = ["text_rules"]

# The patterns are put together from halves, so that this file does not contain what it looks for.
_UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|NotImplemented" r"Error)\b")
_MACHINE_PATH = re.compile(r"(?<![\w.:])/(?:wo" r"rk|fa" r"rm|ro" r"ot|ho" r"me/\w+|tmp/te" r"am)/")
_HOSTS = re.compile(
    r"py" r"pi\.org|python" r"hosted\.org|crates" r"\.io|maven" r"\.org"
    r"|(?<!google\.)golang" r"\.org"  # a module of Google is no host
    r"|npmjs" r"\.(?:org|com)|debian" r"\.org"
)  # fmt: skip
_TICKET = re.compile(r"\b[Ii]ss" r"ue #?\d+\b")
_FOREIGN_PAGE = re.compile(r"DES" r"IGN(?:\.md)? ?§|\bDES" r"IGN\.md|\bsee" r"ds/\w|\bref" r"erence/\w+\.md")

TEXT_RULES: tuple[tuple[tuple[str, ...], re.Pattern[str], str], ...] = (
    (("ODO", "XME", "mentedErr"), _UNFINISHED, "nothing unfinished is merged: finish it or take it out"),
    (
        ("ork/", "arm/", "oot/", "ome/", "eam/"),
        _MACHINE_PATH,
        "a path of one machine means nothing on another: write it relative to the repository",
    ),
    (
        ("pi.org", "hosted.org", "tes.io", "aven.org", "lang.org", "npmjs", "bian.org"),
        _HOSTS,
        "no download hosts: packages are named, the client knows where they are",
    ),
    (("ssue ",), _TICKET, "a number means nothing without its list: say what the matter was"),
    (
        ("ESIGN", "eeds/", "eference/"),
        _FOREIGN_PAGE,
        "that page is not in this repository: say what it says, or name a page in docs/",
    ),
)
"""Texts of which a file that breaks the rule has at least one, found faster than the pattern; the pattern; the rule."""


def text_rules(path: str, text: str) -> Iterator[Finding]:
    """Words that stay out of every text file."""
    for parts, pattern, sentence in TEXT_RULES:
        if not any(part in text for part in parts):
            continue
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield Finding(path, line, f"{sentence} ({match.group(0)})")
    if path.endswith(".md") and not text.startswith("# "):
        yield Finding(path, 1, "a page begins with its title")
