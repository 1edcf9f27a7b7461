"""
Bytes for which the kernel's functions are compared with their twins: golden files, fuzz inputs, and damaged files.

Each source yields bytes; random ones depend only on the seed.
"""

import ast
import functools
import gzip
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import otap_fuzz
import test_format_fuzz as format_fuzz
import test_receiver_fuzz as receiver_fuzz
from aof_as_log import open_manager, segment_files

from disk_files import read_file
from quiver.aof.format.record import scan_records
from quiver.aof.format.segment_file import HEADER_BYTES
from quiver.testing.crashfs import CrashFileSystem
from store_rig import ROOT, numbered, open_small

TESTS = Path(__file__).parents[1]
JUNK = (b"\0", b"\xff" * 7, bytes(80))


@functools.cache
def golden_files() -> tuple[bytes, ...]:
    """All files in tests/vectors, and what the compressed ones contain."""
    found = []
    for path in sorted((TESTS / "vectors").rglob("*")):
        if path.is_file():
            found.append(path.read_bytes())
            if path.suffix == ".gz":
                found.append(gzip.decompress(found[-1]))
    return tuple(found)


@functools.cache
def golden_bytes() -> tuple[bytes, ...]:
    """All bytes that tests contain as hex."""
    found = {}
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "fromhex(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(func=ast.Attribute(attr="fromhex"), args=[ast.Constant(value=str(digits))]):
                    found[bytes.fromhex(digits)] = path
    return tuple(found)


@functools.cache
def segment_of_aof() -> bytes:
    """A sealed AOF2 segment up to its last record, and some of the zeros after it."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        log.append_records([bytes([65 + number]) * (number * 9 + 1) for number in range(8)])
        log.force_rollover(timeout=1)
    data = read_file(fs, segment_files(fs)[0])
    found = scan_records(memoryview(data), HEADER_BYTES, len(data))
    assert found.record_count == 8
    return data[: found.end + 64]


@functools.cache
def log_of_store() -> bytes:
    """A log file of a store with two bundles."""
    fs = CrashFileSystem()
    with open_small(fs) as store:
        for number in range(2):
            store.ingest(numbered(number))
    return read_file(fs, f"{ROOT}/wal/quiver.wal")


def damaged(data: bytes, dice: random.Random) -> Iterator[bytes]:
    """The bytes, and for every byte: truncated before it, with a bit flipped, replaced, and zeros from there on."""
    yield data
    for at in range(len(data)):
        yield data[:at]
        for byte in (data[at] ^ 1 << dice.randrange(8), 0, 0xFF, dice.randrange(256)):
            yield data[:at] + bytes([byte]) + data[at + 1 :]
        yield data[:at] + bytes(len(data) - at)
    for junk in (*JUNK, data):
        yield data + junk


def flipped(data: bytes) -> Iterator[bytes]:
    """The bytes with each bit flipped."""
    for bit in range(len(data) * 8):
        hurt = bytearray(data)
        hurt[bit // 8] ^= 1 << bit % 8
        yield bytes(hurt)


def damaged_golden_bytes(dice: random.Random) -> Iterator[bytes]:
    """Golden bytes with one bit flipped, every prefix of them, and junk after them; parts of the larger ones."""
    for data in golden_bytes():
        start = dice.randrange(max(1, len(data) - 200))
        part = data[start : start + 200]
        yield from flipped(part)
        yield from (part[:size] for size in range(len(part)))
        yield from (data + junk for junk in (*JUNK, data))


@functools.cache
def samples_of_otap(name: str) -> list[bytes]:
    _, samples = otap_fuzz.DECODERS[name]
    return [data for data in samples() if len(data) <= otap_fuzz.SAMPLE_BYTES_MAX]


def fuzz_of_otap(dice: random.Random, count: int) -> Iterator[bytes]:
    """Inputs of `test_decoder_fuzz.py`, for every decoder of OTLP and OTAP."""
    for name in otap_fuzz.DECODERS:
        samples = samples_of_otap(name)
        yield from samples
        yield from (otap_fuzz.changed(samples, dice) for _ in range(count))


def fuzz_of_receivers(dice: random.Random, count: int) -> Iterator[bytes]:
    """Inputs of `test_receiver_fuzz.py`, for every decoder of the network."""
    for _, samples in receiver_fuzz.DECODERS.values():
        yield from samples
        yield from (receiver_fuzz.broken(dice.choice(samples), dice) for _ in range(count))


def fuzz_of_formats(dice: random.Random, count: int) -> Iterator[bytes]:
    """Inputs of `test_format_fuzz.py`, for every format of a store."""
    for golden, with_checksum, _ in format_fuzz.CASES.values():
        yield from (with_checksum(format_fuzz.hurt(golden, dice)) for _ in range(count))


INPUTS: dict[str, Callable[[random.Random], Iterator[bytes]]] = {
    "golden files": lambda _: iter(golden_files()),
    "golden bytes": lambda _: iter(golden_bytes()),
    "damaged golden bytes": damaged_golden_bytes,
    "damaged AOF2 segment": lambda dice: damaged(segment_of_aof(), dice),
    "damaged log": lambda dice: damaged(log_of_store(), dice),
}
FUZZ: dict[str, Callable[[random.Random, int], Iterator[bytes]]] = {
    "OTAP": fuzz_of_otap,
    "receivers": fuzz_of_receivers,
    "formats": fuzz_of_formats,
}
