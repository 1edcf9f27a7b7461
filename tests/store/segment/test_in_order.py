"""Sequential reading of messages returns what single reads return, or nothing."""

import pyarrow as pa
import pytest

from quiver.store.segment.in_order import _PLACES_MAX, InOrder
from quiver.store.segment.ipc_file import assemble

BATCHES = [pa.record_batch({"number": pa.array([number] * (number % 3), pa.int64())}) for number in range(7)]


def _by_arrow():
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, BATCHES[0].schema) as writer:
        for batch in BATCHES:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _by_us():
    schema = BATCHES[0].schema.serialize().to_pybytes()
    return b"".join(map(bytes, assemble(schema, [], [batch.serialize() for batch in BATCHES]).parts()))


@pytest.mark.parametrize("make", [_by_arrow, _by_us])
def test_sequential_reading_returns_each_chunk_in_turn(make):
    data = make()
    assert pa.ipc.open_file(data).num_record_batches == 7
    line = InOrder()
    assert line.next(1, 1) is None
    line.begin(1, memoryview(data), BATCHES[0])
    assert [line.next(1, index) for index in range(1, 7)] == BATCHES[1:]
    assert line.next(1, 7) is None
    line.begin(1, memoryview(data), BATCHES[0])
    assert line.next(1, 2) is None
    assert line.next(2, 1) is None
    assert line.next(1, 1) == BATCHES[1]
    line.clear()
    assert line.next(1, 2) is None


@pytest.mark.parametrize("data", [b"", b"ARROW1\0\0", bytes(200), b"\xff" * 200, b"ARROW1\0\0" + b"\xff" * 200])
def test_a_file_that_is_not_arrow_is_not_read_sequentially(data):
    line = InOrder()
    line.begin(1, memoryview(data), BATCHES[0])
    assert line.next(1, 1) is None


def test_sequential_reading_starts_only_at_the_first_chunk():
    line = InOrder()
    line.begin(1, memoryview(_by_arrow()), BATCHES[1])
    assert line.next(1, 1) is None


def test_a_truncated_file_ends_sequential_reading():
    data = memoryview(_by_arrow())
    for length in range(0, len(data), 8):
        line = InOrder()
        line.begin(1, data[:length], BATCHES[0])
        found = [line.next(1, index) for index in range(1, 7)]
        complete = [batch for batch in found if batch is not None]
        assert complete == BATCHES[1 : 1 + len(complete)]
        assert found[len(complete) :] == [None] * (6 - len(complete))


def test_a_borrowed_position_belongs_to_one_caller():
    """Until it is returned, no one else reads from there."""
    line = InOrder()
    line.begin(1, memoryview(_by_us()), BATCHES[0])
    read_next = line.lend(1, 1)
    assert line.lend(1, 1) is None
    assert line.next(1, 1) is None
    assert [read_next() for _ in range(3)] == BATCHES[1:4]
    line.give_back(1, 4, read_next)
    assert line.lend(1, 1) is None
    assert line.next(1, 4) == BATCHES[4]


def test_the_number_of_positions_is_limited():
    """The one that was not used for longest is released."""
    line = InOrder()
    for stream_id in range(_PLACES_MAX + 1):
        line.begin(stream_id, memoryview(_by_us()), BATCHES[0])
        assert line.next(1, min(stream_id, 1)) == (BATCHES[1] if stream_id == 1 else None)
    assert line.next(0, 1) is None
    assert line.next(1, 2) == BATCHES[2]
    assert line.next(_PLACES_MAX, 1) == BATCHES[1]
