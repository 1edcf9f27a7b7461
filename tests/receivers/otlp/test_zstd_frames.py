"""zstd is decompressed within a limit, for any content, and its frames are measured first."""

import random
import resource
import tracemalloc

import pyarrow as pa
import pytest

from quiver.primitives.scan import Damage
from quiver.receivers.zstd_frames import WINDOW_BYTES_MAX, ZSTD_MAGIC, bound_frames, inflate_zstd

EMPTY_FRAME = ZSTD_MAGIC + b"\x20\x00\x01\x00\x00"
SKIPPED = b"\x51\x2a\x4d\x18\x03\x00\x00\x00abc"


def pack(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


def stream(data: bytes) -> bytes:
    """Return a frame without a content size."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(data)
    return sink.getvalue().to_pybytes()


def rle(blocks: int, *, window: int = 0x40) -> bytes:
    """Return a frame of *blocks* blocks, each with 128 KiB of one byte."""
    block = (128 * 1024 << 3 | 1 << 1).to_bytes(3, "little") + b"a"
    return ZSTD_MAGIC + bytes([0, window]) + block * blocks + b"\x01\x00\x00"


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_791, 65_792, 300_000, 9_000_000])
@pytest.mark.parametrize("make", [pack, stream])
def test_compressed_data_round_trips(make, size):
    data = random.Random(1).randbytes(size // 2) + bytes(size - size // 2)
    packed = make(data)
    bound = bound_frames(packed)
    assert bound.size_max >= size
    assert inflate_zstd(packed, size_max=size) == data
    if size:
        assert inflate_zstd(packed, size_max=size - 1) is None


def test_consecutive_frames_are_one_stream_and_skippable_ones_are_skipped():
    assert inflate_zstd(pack(b"one ") + SKIPPED + EMPTY_FRAME + stream(b"two"), size_max=7) == b"one two"
    assert inflate_zstd(b"", size_max=1) == b""


def test_a_bomb_takes_no_more_memory_than_the_limit():
    bomb = rle(5_000)
    assert bound_frames(bomb).size_max == 5_000 * 128 * 1024
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    assert inflate_zstd(bomb, size_max=100_000) is None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
    assert pa.total_allocated_bytes() - before < 1_000_000
    assert inflate_zstd(pack(bytes(50_000_000)), size_max=100_000) is None


def test_late_errors_leak_no_memory():
    late = rle(8)[:-3] + (10 << 3 | 2 << 1 | 1).to_bytes(3, "little") + b"\xff" * 10
    assert isinstance(inflate_zstd(late, size_max=2_000_000), Damage)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(200):
        inflate_zstd(late, size_max=2_000_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB; a leak would take 200 MiB


def test_excessive_memory_requests_of_a_frame_are_refused():
    assert isinstance(inflate_zstd(rle(1, window=(13 << 3)), size_max=200_000), bytes)  # 8 MiB, the maximum
    for window in (13 << 3 | 1, 17 << 3, 0xFF):
        asked = inflate_zstd(rle(1, window=window), size_max=200_000)
        assert isinstance(asked, Damage)
        assert "window" in asked.reason
    # A single segment of a gigabyte, in 12 bytes.
    claimed = ZSTD_MAGIC + b"\xa0" + (1 << 30).to_bytes(4, "little") + b"\x01\x00\x00"
    assert bound_frames(claimed).window_max == 1 << 30
    assert inflate_zstd(claimed, size_max=WINDOW_BYTES_MAX) is None


def test_empty_chunks_are_limited():
    assert inflate_zstd(EMPTY_FRAME * 1000, size_max=10) == b""
    many = inflate_zstd(EMPTY_FRAME * 60_000, size_max=10)
    assert isinstance(many, Damage)
    assert "more than" in many.reason


@pytest.mark.parametrize("wrong", [
    ZSTD_MAGIC + b"\x28\x00\x01\x00\x00",  # a reserved bit
    ZSTD_MAGIC + b"\x21\x07\x00\x01\x00\x00",  # a dictionary
    ZSTD_MAGIC + b"\x20\x00\x07\x00\x00",  # a block of a reserved kind
    b"\x1f\x8b\x08\x00",
])  # fmt: skip
def test_unsupported_features_are_damage(wrong):
    assert isinstance(bound_frames(wrong), Damage)


def test_truncated_and_flipped_data_give_an_answer():
    data = pack(b"the quick brown fox " * 20) + SKIPPED + rle(1)
    complete = inflate_zstd(data, size_max=200_000)
    ends = {len(data) - len(SKIPPED) - len(rle(1)), len(data) - len(rle(1))}
    for end in range(1, len(data)):
        assert isinstance(inflate_zstd(data[:end], size_max=200_000), bytes if end in ends else Damage)
    for at in range(len(data)):
        for bit in range(8):
            changed = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            answer = inflate_zstd(changed, size_max=200_000)
            assert answer is None or isinstance(answer, (bytes, Damage))
    assert isinstance(complete, bytes)
    assert isinstance(inflate_zstd(data + b"junk", size_max=200_000), Damage)
