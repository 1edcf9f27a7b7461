"""The pages of topics in docs/formats match the code: offsets, sizes, limits, examples."""

from __future__ import annotations

import json
import re
import struct

import pytest

from format_feeding import code_of, page_of
from quiver.primitives.scan import Frame
from quiver.topics.format.checkpoint import TRAILER_MAGIC
from quiver.topics.format.frame import decode_frame
from quiver.topics.format.message import decode_message
from quiver.topics.format.request import (
    decode_answer,
    decode_request,
    encode_answer,
    encode_refusal,
    encode_request,
)
from quiver.topics.format.sink_batch import COMMITS
from quiver.topics.format.subscription import decode_subscription
from quiver.topics.format.watch import decode_watch, encode_watch

KINDS = ["topic-wal", "topic-checkpoint", "topic-subscription", "topic-sink", "topic-watch", "topic-request"]
CODES = {"u32": "I", "u64": "Q"}
STRUCTS = {
    "topic-wal": ["FRAME_HEADER"],
    "topic-checkpoint": ["CHECKPOINT_TRAILER"],
    "topic-subscription": [],
    "topic-sink": ["PART_HEADER"],
    "topic-watch": [],
    "topic-request": [],
}
LIMITS = {
    "topic-wal": 2,
    "topic-checkpoint": 1,
    "topic-subscription": 1,
    "topic-sink": 1,
    "topic-watch": 1,
    "topic-request": 1,
}


@pytest.mark.parametrize("kind", KINDS)
def test_field_tables_match_the_structs(kind):
    """Each table below a struct's name describes that struct: offsets without gaps, and the same format."""
    found = []
    pattern = r"^Struct `([\w.]+)`\n\n\| offset \| size \| type \| field \| meaning \|\n\|[-|]+\|\n((?:\|.*\|\n)+)"
    for dotted, table in re.findall(pattern, page_of(kind), re.MULTILINE):
        found.append(dotted.rpartition(".")[2])
        fmt, at = "<", 0
        for line in table.splitlines():
            offset, size, type_name, _, meaning = (cell.strip() for cell in line.strip("|").split(" | "))
            array = re.fullmatch(r"bytes\[(\d+)\]", type_name)
            code = f"{array[1]}s" if array else CODES[type_name]
            assert (int(offset), int(size)) == (at, struct.calcsize(f"<{code}")), line
            assert meaning
            fmt, at = fmt + code, at + int(size)
        assert (fmt, at) == (code_of(dotted).format, code_of(dotted).size)
    assert found == STRUCTS[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_limits_match_the_constants(kind):
    """Each limit equals the constant in its row; every page has the same sections."""
    page = page_of(kind)
    (table,) = re.findall(r"^\| limit \| value \| constant \|\n\|[-|]+\|\n((?:\|.*\|\n)+)", page, re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
    for _, value, dotted in rows:
        assert int(value) == code_of(dotted.strip("`"))
    assert len(rows) == LIMITS[kind]
    for part in ("## Versions", "## Where the format is silent"):
        assert page.count(part) == 1


def test_the_frame_example_decodes_to_its_values():
    """The hex decodes to the values next to it."""
    ((text, said),) = re.findall(
        r"^```hex\n(.*?)```\n\n```json\n(.*?)```", page_of("topic-wal"), re.MULTILINE | re.DOTALL
    )
    data = bytes.fromhex(text)
    assert isinstance(answer := decode_frame(data), Frame)
    assert answer.end == len(data)
    message = decode_message(data[16:])._asdict() | {
        "payload": data[16:] and decode_message(data[16:]).payload.decode()
    }
    assert {name: message[name] for name in json.loads(said)} == json.loads(said)


def test_the_subscription_example_decodes():
    """The text decodes."""
    (text,) = re.findall(r"^```text\n(.*?)```", page_of("topic-subscription"), re.MULTILINE | re.DOTALL)
    assert isinstance(answer := decode_subscription(text.encode()), Frame)
    assert (answer.value.name, answer.value.acked) == ("billing", ((1210, 1215),))


def test_the_checkpoint_trailer_has_the_documented_magic():
    """Its magic is the one on the page."""
    assert f"`{TRAILER_MAGIC.decode()}`" in page_of("topic-checkpoint")


def test_the_index_lists_the_pages_with_their_code():
    """Each entry names the module that implements the format."""
    index = page_of("README")
    assert all(f"({kind}.md)" in index for kind in KINDS)


def test_the_commit_example_is_the_encoded_text():
    """The text is exactly the output of the code."""
    (text,) = re.findall(r"^```text\n(.*?)```", page_of("topic-sink"), re.MULTILINE | re.DOTALL)
    assert isinstance(answer := COMMITS.decode(text.encode()), Frame)
    assert COMMITS.encode(answer.value) == text.encode()
    assert answer.value.parts[0].messages == 2


def test_the_watch_example_is_the_encoded_text():
    """The text is exactly the output of the code."""
    (text,) = re.findall(r"^```text\n(.*?)```", page_of("topic-watch"), re.MULTILINE | re.DOTALL)
    assert isinstance(answer := decode_watch(text.encode()), Frame)
    assert encode_watch(*answer.value) == text.encode()


def test_the_request_examples_are_the_encoded_texts():
    """The texts are exactly the output of the code."""
    request, answer, refusal = re.findall(r"^```text\n(.*?)```", page_of("topic-request"), re.MULTILINE | re.DOTALL)
    assert isinstance(found := decode_request(request.encode()), Frame)
    assert encode_request(found.value) == request.encode()
    assert isinstance(result := decode_answer(answer.encode()), Frame)
    assert encode_answer(result.value) == answer.encode()
    assert isinstance(why := decode_answer(refusal.encode()), Frame)
    assert encode_refusal(why.value) == refusal.encode()
