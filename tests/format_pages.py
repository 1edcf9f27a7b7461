"""Read the pages about file formats, and the code that they name."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parents[1] / "docs" / "formats"


def page_of(kind: str) -> str:
    """Return the text of one page."""
    return (PAGES / f"{kind}.md").read_text(encoding="utf-8")


def code_of(dotted: str) -> Any:
    """Return the object with this dotted name."""
    module, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(module), name)
