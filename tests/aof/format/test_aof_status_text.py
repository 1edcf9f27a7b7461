"""The text of a writer's status: nothing gets through that a person or a terminal would trip over."""

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


def test_golden():
    """It is written as it was first written, and read back."""
    assert encode_status(STATUS) == GOLDEN
    assert decode_status(memoryview(GOLDEN)) == Frame(STATUS, len(GOLDEN))


def test_members_of_later_programs_are_passed_over():
    """They may add what they like."""
    assert isinstance(decode_status(changed(more=["x"])), Frame)


def test_another_version_is_not_read():
    """The problem names the version."""
    assert decode_status(changed(version=2)) == Damage(0, "unsupported version '2'")


@pytest.mark.parametrize("cut", range(len(GOLDEN)))
def test_cut_short(cut):
    """No part of it is taken for all of it."""
    assert isinstance(decode_status(memoryview(GOLDEN[:cut])), Damage)


def test_flipped():
    """Any bit of it: it may be read as something else, and never raises."""
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
def test_invalid_status_texts(members):
    """Printed values are bounded, and figures are numbers."""
    assert isinstance(decode_status(changed(**members)), Damage)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"\xff", b"[" * 60_000, b"1" * 5000, b" " * (STATUS_BYTES_MAX + 1)], ids=len
)
def test_other_texts_are_damage(text):
    """No text makes the decoder raise."""
    assert isinstance(decode_status(memoryview(text)), Damage)
