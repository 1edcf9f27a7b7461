"""Talks to the driver of the Rust engine: bundles in, bundles out."""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import quiver

DRIVER = Path(__file__).resolve().parents[2] / "bench" / "rivals" / "rust_engine" / "target" / "release" / "rust-engine"

_HEAD = struct.Struct("<QQI")
_SLOT = struct.Struct("<H32sI")


def _run(*words: str, stdin: bytes = b"") -> bytes:
    done = subprocess.run([str(DRIVER), *words], input=stdin, capture_output=True, timeout=120, check=False)
    if not done.stdout and done.returncode:
        raise AssertionError(f"{' '.join(words)}: {done.stderr.decode(errors='replace')}")
    return done.stdout


def _framed(bundles: Sequence[quiver.Bundle]) -> Iterator[bytes]:
    for bundle in bundles:
        yield _HEAD.pack(bundle.ingested_at_ns or 0, 0, len(bundle))
        for slot, batch in bundle.batches.items():
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            stream = sink.getvalue()
            yield _SLOT.pack(slot, quiver.bundle.schema_fingerprint(batch.schema), len(stream)) + stream.to_pybytes()


def ingest(directory: Path, bundles: Sequence[quiver.Bundle], *, end: str) -> None:
    """Ingest *bundles* with the Rust engine, each synced; *end* is `clean` or `abort`."""
    decoded = json.loads(_run("ingest", str(directory), end, stdin=b"".join(_framed(bundles))))
    assert decoded == {"bundles": len(bundles)}


def dump(directory: Path) -> list[tuple[quiver.BundleRef, dict[int, pa.RecordBatch]]]:
    """Return everything that the Rust engine finds in *directory*, in order of delivery."""
    raw = memoryview(_run("dump", str(directory)))
    found = []
    at = 0
    while at < len(raw):
        segment, index, slot_count = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        slots = {}
        for _ in range(slot_count):
            slot, _, size = _SLOT.unpack_from(raw, at)
            at += _SLOT.size
            with pa.ipc.open_stream(pa.py_buffer(raw[at : at + size])) as reader:
                (slots[slot],) = list(reader)
            at += size
        found.append((quiver.BundleRef(segment, index), slots))
    return found


def deliver(directory: Path, subscriber: str, *, at_most: int | None = None) -> dict[str, Any]:
    """Let *subscriber* acknowledge up to *at_most* bundles in the Rust engine; return its report."""
    words = [] if at_most is None else [str(at_most)]
    return json.loads(_run("deliver", str(directory), subscriber, *words))
