"""Every rule in the table of ARCHITECTURE.md is checked at run time or by a test, and a test breaks each condition."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "quiver"
TESTS = [path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]
PIECE_CHARS = 20
FILE = re.compile(r"`([a-z0-9_/]+\.py)`")


def rules() -> list[tuple[str, list[Path], str]]:
    """The rows of the table: the rule, its files, and the third column."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.partition("## Invariants")[2].partition("\n\n## ")[0]
    found = []
    for line in table.splitlines():
        if line.startswith("| ") and not line.startswith("| rule "):
            rule, places, checked_by = line.strip("| ").split(" | ")
            found.append((rule, [PACKAGE / name for name in FILE.findall(places)], checked_by))
    return found


def invariants(path: Path) -> Iterator[str]:
    """Yield the text of each invariant in a file, with a line break for each value in it."""
    source = path.read_text(encoding="utf-8")
    if "invariant(" not in source and "InvariantError(" not in source:
        return
    named = {}
    tree = ast.parse(source)
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.targets[0], ast.Name)
        ):
            named[node.targets[0].id] = node.value
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            wanted = {"invariant": 1, "InvariantError": 0}.get(node.func.id)
            if wanted is not None and len(node.args) > wanted:
                text = node.args[wanted]
                text = named.get(text.id, text) if isinstance(text, ast.Name) else text
                parts = text.values if isinstance(text, ast.JoinedStr) else [text]
                yield "\n".join(part.value for part in parts if isinstance(part, ast.Constant))


@cache
def with_invariants() -> dict[Path, list[str]]:
    found = {path: list(invariants(path)) for path in PACKAGE.rglob("*.py") if path != PACKAGE / "invariant.py"}
    return {path: texts for path, texts in found.items() if texts}


def pieces(text: str) -> set[str]:
    """Every piece of a fixed length of *text*."""
    return {text[at : at + PIECE_CHARS] for at in range(len(text) - PIECE_CHARS + 1)}


def test_every_rule_is_checked():
    """By an invariant in each of its files, or by a test that the row names."""
    checked = with_invariants()
    found = rules()

    assert len(found) > 30
    for rule, files, checked_by in found:
        tests = FILE.findall(checked_by)
        assert files, rule
        assert [str(path) for path in files if not path.is_file()] == [], rule
        assert [name for name in tests if not (ROOT / name).is_file()] == [], rule
        if "`invariant`" in checked_by:
            assert any(path in checked for path in files), rule
        if not tests:
            assert [str(path) for path in files if path not in checked] == [], rule


def test_every_invariant_belongs_to_a_rule():
    """A file with an invariant is named in the table."""
    named = {path for _, files, _ in rules() for path in files}

    assert sorted(str(path.relative_to(PACKAGE)) for path in with_invariants().keys() - named) == []


def test_every_invariant_is_broken_by_a_test():
    """A condition that no test can break may protect nothing. Tests quote a part of its text."""
    texts = [path.read_text(encoding="utf-8") for path in TESTS]
    quoted = [
        one.replace("\\", "")
        for text in texts
        if "InvariantError" in text
        for one in re.findall(r'match=r?f?"([^"]+)"', text)
    ]
    known = set().union(*map(pieces, quoted))
    missing = [
        f"{path.relative_to(PACKAGE)}: {text}"
        for path, found in sorted(with_invariants().items())
        for text in found
        if known.isdisjoint(pieces(text))
    ]

    assert missing == []
