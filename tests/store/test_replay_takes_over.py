"""Replay reuses log entries as they are; only those with another layout are decoded and serialized again."""

from __future__ import annotations

import pyarrow as pa
import pytest

from quiver import Bundle, Settings
from quiver import open as open_store
from quiver.store import log_replay
from quiver.store.encode import SlotEncoder
from quiver.store.format.wal_entry import WalSlot
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

ROOT = "/replayed"
PLAIN = pa.record_batch({"n": [1, 2, 3]})
DICTIONARY = pa.record_batch({"word": pa.array(["a", "b", "a"]).dictionary_encode()})


def logged(*batches: pa.RecordBatch) -> CrashFileSystem:
    fs = CrashFileSystem()
    with open_store(ROOT, Settings(), fs=fs, clock=ManualClock(), background=False) as store:
        for batch in batches:
            store.ingest(Bundle({30: batch}), durable=True)
        return fs.clone_after_kill()


def replayed(fs: CrashFileSystem) -> list[pa.RecordBatch]:
    with open_store(ROOT, Settings(), fs=fs, clock=ManualClock(), background=False) as store:
        store.seal()
        subscriber = store.register("all", start="earliest")
        return [handle.bundle[30] for handle in subscriber.next_bundles(100, timeout=0)]


def test_plain_entries_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(log_replay, "decode_slots", refused)
    assert replayed(logged(PLAIN, PLAIN.slice(1))) == [PLAIN, PLAIN.slice(1)]


def test_decoded_entries_are_recovered() -> None:
    """Dictionaries, and batches without a body."""
    empty = PLAIN.slice(0, 0)
    assert replayed(logged(DICTIONARY, PLAIN, empty)) == [DICTIONARY, PLAIN, empty]


def stream(*batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def test_only_an_entry_with_one_complete_batch_is_reused() -> None:
    """No batch, two batches, a truncated one and invalid bytes are decoded."""
    complete = stream(PLAIN)
    schema_only = PLAIN.schema.serialize().to_pybytes() + complete[-8:]
    encoder = SlotEncoder()
    for payload in (schema_only, stream(PLAIN, PLAIN), *(complete[:end] for end in range(len(complete))), b"\xff" * 64):
        slot = WalSlot(30, bytes(32), 3, memoryview(payload))
        assert encoder.encode_logged([slot]) is None
    (slot,) = encoder.encode_logged([WalSlot(30, bytes(32), 3, memoryview(complete))]).slots
    assert bytes(slot.message) == PLAIN.serialize().to_pybytes()
