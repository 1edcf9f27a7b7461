"""A million invalid inputs for each decoder of network data: an answer for every one, in bounded memory."""

import gzip
import json
import random
import resource

import pyarrow as pa
import pytest
from fake_store import log_request

from quiver.primitives.scan import Damage
from quiver.receivers.inflate import inflate
from quiver.receivers.otlp.json_requests import request_from_json
from quiver.receivers.zstd_frames import inflate_zstd

SIZE_MAX = 100_000
GROWTH_KIB_MAX = 60_000
TEXT = b"the quick brown fox " * 30
RECORD = {
    "traceId": "5B8EFFF798038103D269B633813FC60C",
    "timeUnixNano": "1544712660000000000",
    "severityNumber": 9,
    "body": {"kvlistValue": {"values": [{"key": "k", "value": {"arrayValue": {"values": [{"doubleValue": "NaN"}]}}}]}},
}
DOCUMENT = {"resourceLogs": [{"resource": {"attributes": []}, "scopeLogs": [{"logRecords": [RECORD]}]}]}


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


DECODERS = {
    "gzip": (
        lambda data: inflate(data, size_max=SIZE_MAX),
        [gzip.compress(TEXT), gzip.compress(b"") * 3, gzip.compress(bytes(SIZE_MAX * 2))],
    ),
    "zstd": (
        lambda data: inflate_zstd(data, size_max=SIZE_MAX),
        [zstd(TEXT), zstd(b"") + zstd(TEXT), zstd(bytes(SIZE_MAX * 2)), zstd(log_request())],
    ),
    "json": (
        lambda data: request_from_json(data, "logs"),
        [json.dumps(DOCUMENT).encode(), b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"spanId":"00"}]}]}]}'],
    ),
}


def broken(data: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.randrange(1, 5)):
        at = dice.randrange(len(changed) + 1)
        kind = dice.random()
        if kind < 0.5 and at < len(changed):
            changed[at] = dice.randrange(256)
        elif kind < 0.7:
            del changed[at : at + dice.randrange(1, 9)]
        elif kind < 0.9:
            changed[at:at] = changed[dice.randrange(len(changed) + 1) :][: dice.randrange(1, 20)]
        else:
            del changed[at:]
    return bytes(changed)


def storm(name: str, count: int, seed: int) -> None:
    decode, corpus = DECODERS[name]
    dice = random.Random(seed)
    for data in corpus:
        decode(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(count):
        data = broken(dice.choice(corpus), dice)
        answer = decode(data)
        assert answer is None or isinstance(answer, (bytes, Damage)), (seed, data)
        if name != "json" and isinstance(answer, bytes):
            assert len(answer) <= SIZE_MAX, (seed, data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KIB_MAX


@pytest.mark.parametrize("name", list(DECODERS))
def test_a_thousand_broken_inputs(name):
    storm(name, 1000, random.randrange(2**32))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", list(DECODERS))
def test_a_million_broken_inputs(name, pytestconfig):
    """These are fast: at least ten times as many as for decoders of messages, up to a million each."""
    count = min(1_000_000, 10 * pytestconfig.getoption("--fuzz-inputs"))
    storm(name, count, random.randrange(2**32))
