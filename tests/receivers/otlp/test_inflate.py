"""gzip is decompressed within a limit, for any content."""

import gzip
import random
import tracemalloc

from quiver.primitives.scan import Damage
from quiver.receivers.inflate import inflate


def test_compressed_data_round_trips():
    data = random.Random(1).randbytes(50_000)
    assert inflate(gzip.compress(data), size_max=50_000) == data
    assert inflate(gzip.compress(b""), size_max=10) == b""


def test_consecutive_members_are_one_stream():
    assert inflate(gzip.compress(b"one ") + gzip.compress(b"two"), size_max=7) == b"one two"


def test_the_limit_is_exact():
    assert inflate(gzip.compress(b"x" * 100), size_max=100) == b"x" * 100
    assert inflate(gzip.compress(b"x" * 100), size_max=99) is None
    assert inflate(gzip.compress(b"x" * 60) * 2, size_max=119) is None


def test_a_bomb_takes_no_more_memory_than_the_limit():
    bomb = gzip.compress(bytes(50_000_000))
    tracemalloc.start()
    assert inflate(bomb, size_max=100_000) is None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_truncated_and_flipped_data_give_an_answer():
    data = gzip.compress(b"the quick brown fox " * 20)
    for end in range(1, len(data)):
        assert isinstance(inflate(data[:end], size_max=1000), Damage)
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]
        answer = inflate(changed, size_max=1000)
        assert answer is None or isinstance(answer, (bytes, Damage))
    assert isinstance(inflate(data + b"junk", size_max=1000), Damage)


def test_empty_members_are_limited():
    assert inflate(gzip.compress(b"") * 1000, size_max=10) == b""
    many = inflate(gzip.compress(b"") * 5000, size_max=10)
    assert isinstance(many, Damage)
    assert "members" in many.reason


def test_members_may_end_anywhere_in_the_chunks_that_are_read():
    data = random.Random(2).randbytes(200_000)
    packed = b"".join(gzip.compress(data[at : at + 7000]) for at in range(0, len(data), 7000))
    assert inflate(packed, size_max=len(data)) == data
    assert inflate(packed, size_max=len(data) - 1) is None
