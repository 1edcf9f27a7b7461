"""
Measure how often docstrings, comments and pages use words that other libraries rarely use, per 100,000 words.

The limits are the rates of six well-known libraries together: hypothesis, websockets, aiohttp, pytest, pydantic, httpx.
`tools/tidy.py` applies them to the whole package and to the pages; `python tools/words.py src/quiver/store --show`
and `python tools/words.py docs/howto --show` list the lines.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from source_modules import statements_in

__all__ = ["LIMITS", "page_prose", "prose", "rates"]

LIMITS: Mapping[str, tuple[re.Pattern[str], float]] = {
    "nobody, somebody, anybody": (re.compile(r"\b(?:no|some|any)body\b", re.IGNORECASE), 1.7),
    "a sentence that opens with What": (re.compile(r"(?:^|(?<=[.!?:;]\s))What\b"), 2),
    "behind": (re.compile(r"\bbehind\b", re.IGNORECASE), 3.4),
    "stand, stands": (re.compile(r"\bstands?\b", re.IGNORECASE), 0.3),
    "tell, tells, told": (re.compile(r"\b(?:tells?|told)\b", re.IGNORECASE), 9),
    "say, says, said": (re.compile(r"\b(?:says?|said)\b", re.IGNORECASE), 9),
    "whoever, whatever": (re.compile(r"\b(?:who|what)ever\b", re.IGNORECASE), 4),
    "is no …": (re.compile(r"\bis no (?=[a-z])(?!longer|more\b)", re.IGNORECASE), 19),
    "anew": (re.compile(r"\banew\b", re.IGNORECASE), 0),
    "go, goes, gone": (re.compile(r"\b(?:go|goes|gone)\b", re.IGNORECASE), 20),
}
"""The name of an idiom → its pattern, and its limit per 100,000 words."""

_WORD = re.compile(r"[A-Za-z][A-Za-z']*")
_CODE = re.compile(r"`[^`]*`")
_LINK_TARGET = re.compile(r"(?<=\])\([^)]*\)")
_STRING_OR_COMMENT = re.compile(
    r'''("""|\'\'\').*?(?<!\\)(?:\\\\)*\1|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\#[^\n]*''', re.DOTALL
)
_BLOCK_START = re.compile(r"\s*(?:#+ |[-*] |\d+\. |\|)")
"""A heading, a list item or a table row: a new passage, even without an empty line before it."""


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and text of each docstring, of each text under an assignment, and of each comment."""
    waiting: list[ast.AST] = [ast.parse(text)]
    while waiting:
        for child in statements_in(waiting.pop()):
            value = child.value if isinstance(child, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.lineno, value.value
            waiting.append(child)
    block: list[str] = []
    start = last = 0
    for line, comment in _comments(text):
        if block and line != last + 1:
            yield start, "\n".join(block)
            block = []
        start = start if block else line
        last = line
        block.append(comment.lstrip("# "))
    if block:
        yield start, "\n".join(block)


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and text of each comment, much faster than `tokenize` does."""
    line, end = 1, 0
    for match in _STRING_OR_COMMENT.finditer(text):
        if match[0].startswith("#"):
            line += text.count("\n", end, match.start())
            end = match.start()
            yield line, match[0]


def page_prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and text of each paragraph, heading, list item and table row of a Markdown page."""
    block: list[str] = []
    start = 0
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        is_fence = line.lstrip().startswith("```")
        is_text = bool(line.strip()) and not (is_fence or in_code)
        if block and (not is_text or _BLOCK_START.match(line)):
            yield start, "\n".join(block)
            block = []
        if is_text:
            start = start if block else number
            block.append(_BLOCK_START.sub("", _LINK_TARGET.sub("", line), count=1))
        in_code ^= is_fence
    if block:
        yield start, "\n".join(block)


def rates(passages: Iterable[tuple[int, str]]) -> tuple[dict[str, float], int]:
    """Return the rate of each of `LIMITS` in *passages*, per 100,000 words, and the number of words."""
    counts = dict.fromkeys(LIMITS, 0)
    words = 0
    for _, passage in passages:
        plain = _CODE.sub("", passage)
        words += len(_WORD.findall(plain))
        for name, (pattern, _) in LIMITS.items():
            counts[name] += len(pattern.findall(" ".join(plain.split())))
    return {name: count * 100_000 / max(words, 1) for name, count in counts.items()}, words


def _passages(path: Path) -> Iterator[tuple[int, str]]:
    return (page_prose if path.suffix == ".md" else prose)(path.read_text(encoding="utf-8"))


def main() -> int:
    """Print the rates below the folders or files that are named, and with `--show` each place."""
    names = [Path(name) for name in sys.argv[1:] if not name.startswith("--")] or [Path("src")]
    paths = [path for name in names for path in ([name] if name.is_file() else name.rglob("*.*"))]
    paths = sorted(path for path in paths if path.suffix in {".py", ".md"})
    found, words = rates(passage for path in paths for passage in _passages(path))
    for name, (_, limit) in LIMITS.items():
        print(f"{name:34} {found[name]:8.1f}   limit {limit:4}")
    print(f"{words} words")
    if "--show" in sys.argv:
        for path in paths:
            for line, passage in _passages(path):
                plain = " ".join(_CODE.sub("", passage).split())
                hits = [m.group(0) for pattern, _ in LIMITS.values() for m in pattern.finditer(plain)]
                if hits:
                    print(f"{path}:{line}: {', '.join(hits)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
