"""The text of a writer's status: the decoder rejects everything that could confuse a person or a terminal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quiver.aof.format.status import STATUS_BYTES_MAX, WriterStatus, decode_status, encode_status
from quiver.primitives.scan import Damage, Frame

STATUS = WriterStatus("open", "pid 7 quiver aof", 5, {"records": 3, "share": 0.5, "none": None, "queues": {"seal": 0}})
GOLDEN = (
    b'{"kind":"aof status","version":1,"state":"open","writer":"pid 7 quiver aof","written_at_ns":5,'
    b'"figures":{"records":3,"share":0.5,"none":null,"queues":{"seal":0}}}'
)


def changed(**members: Any) -> memoryview:
    return memoryview(json.dumps({**json.loads(GOLDEN), **members}).encode())


def test_the_status_has_golden_bytes():
    """Its encoding is fixed, and it is decoded."""
    assert encode_status(STATUS) == GOLDEN
    assert decode_status(memoryview(GOLDEN)) == Frame(STATUS, len(GOLDEN))


def test_members_of_later_programs_are_ignored():
    """Later programs may add members of any kind."""
    assert isinstance(decode_status(changed(more=["x"])), Frame)


def test_the_error_for_another_version_has_the_version():
    """Such a status is not read."""
    assert decode_status(changed(version=2)) == Damage(0, "unsupported version '2'")


@pytest.mark.parametrize("cut", range(len(GOLDEN)))
def test_a_truncated_status_is_damage(cut):
    """No part of it is accepted as complete."""
    assert isinstance(decode_status(memoryview(GOLDEN[:cut])), Damage)


def test_a_flipped_bit_of_a_status_never_raises():
    """It may decode to another status."""
    for at in range(len(GOLDEN) * 8):
        data = bytearray(GOLDEN)
        data[at // 8] ^= 1 << at % 8
        assert isinstance(decode_status(memoryview(data)), (Damage, Frame))


@pytest.mark.parametrize(
    "members",
    [
        {"kind": "another"}, {"state": "odd"}, {"state": ["open"]}, {"writer": 7}, {"writer": "x" * 1000},
        {"writer": "\x1b[2J"}, {"written_at_ns": True}, {"written_at_ns": 0.5}, {"written_at_ns": 1 << 70},
        {"figures": []}, {"figures": {"a": "text"}}, {"figures": {"a": [1]}}, {"figures": {"\x1b": 1}},
        {"figures": {"a": {"b": {"c": {"d": {"e": 1}}}}}}, {"figures": {"a": float("nan")}},
        {"figures": {"a": float("-inf")}}, {"figures": {"a": 1 << 64}}, {"figures": {"": 1}},
    ],
    ids=str,
)  # fmt: skip
def test_invalid_status_texts_are_damage(members):
    """Printed values are bounded, and figures are numbers."""
    assert isinstance(decode_status(changed(**members)), Damage)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"\xff", b"[" * 60_000, b"1" * 5000, b" " * (STATUS_BYTES_MAX + 1)], ids=len
)
def test_the_status_decoder_never_raises(text):
    """It accepts any text."""
    assert isinstance(decode_status(memoryview(text)), Damage)
