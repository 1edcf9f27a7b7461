"""
Malformed bytes for tests of file formats: every prefix, every flipped bit, junk at the end. A decoder must answer,
never raise. And the pages about the formats, with the code that they name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from quiver.primitives.scan import Damage, Frame, NeedMore

Decode = Callable[[memoryview], Any]
PAGES = Path(__file__).parents[1] / "docs" / "formats"


def flips(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield every copy of *data* with one bit flipped, and the byte it is in."""
    for at in range(len(data)):
        for bit in range(8):
            hurt = bytearray(data)
            hurt[at] ^= 1 << bit
            yield at, bytes(hurt)


def assert_prefixes_want_more(data: bytes, decode: Decode) -> None:
    """Cut anywhere, the bytes so far are lawful, and `missing` never asks for more than there is."""
    for size in range(len(data)):
        answer = decode(memoryview(data)[:size])
        assert isinstance(answer, NeedMore), (size, answer)
        assert 1 <= answer.missing <= len(data) - size, (size, answer)


def assert_flips_are_seen(data: bytes, decode: Decode, *, unprotected: range = range(0)) -> None:
    """A flipped bit is never taken for the truth, save in the bytes that no checksum covers."""
    for at, hurt in flips(data):
        answer = decode(memoryview(hurt))
        if at not in unprotected:
            assert not isinstance(answer, Frame), (at, answer)
        if isinstance(answer, Damage):
            assert 0 <= answer.offset <= len(hurt), (at, answer)
            assert answer.reason


def assert_junk_is_left(data: bytes, decode: Decode, value: object) -> None:
    """Bytes after the end are not read, and `end` is where they start."""
    for junk in (b"\0", b"\xff" * 7, data):
        assert decode(memoryview(data + junk)) == Frame(value, len(data))


def page_of(kind: str) -> str:
    """Return the text of one page."""
    return (PAGES / f"{kind}.md").read_text(encoding="utf-8")


def code_of(dotted: str) -> Any:
    """Return the object with this dotted name."""
    module, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(module), name)
