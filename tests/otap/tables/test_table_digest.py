"""The digest of tables depends on their content, not on dictionaries, default columns, slices or id encodings."""

import pyarrow as pa
import pytest
from otap_random import carried_request
from otap_ways import CASES, VIEW_OF, bytes_of

from quiver.otap import StreamDecoder, StreamEncoder, from_otlp
from quiver.otap.stream.decoder import ArrowBatch
from quiver.otap.tables.digest import DIGEST_BYTES, digest_of_tables
from quiver.otap.tables.from_otlp import Converted, tables_of_request
from quiver.primitives.scan import Damage


def tables(case: str = "logs_sdk", at: int = 0):
    bundle = from_otlp(bytes_of(CASES[case]["otlp"][at % len(CASES[case]["otlp"])]), CASES[case]["signal"])
    return dict(bundle.batches)


def through_ipc(batch: pa.RecordBatch) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


@pytest.mark.parametrize("case", ["logs_sdk", "traces_rich", "metrics_all_kinds"])
def test_a_batch_on_another_stream_has_the_same_digest(case):
    """The first stream has sent other batches before, so it has more dictionaries and columns."""
    signal, found = CASES[case]["signal"], tables(case)
    used, fresh = StreamEncoder(signal), StreamEncoder(signal)
    before, there = StreamDecoder(signal), []
    for at in (1, 0):
        there = [before.decode(one.message) for one in used.encode(tables(case, at))]
    after = StreamDecoder(signal)
    again = [after.decode(one.message) for one in fresh.encode(found)]
    assert len(there) == len(again)
    for one, other in zip(there, again, strict=True):
        assert isinstance(one, ArrowBatch)
        assert isinstance(other, ArrowBatch)
        assert digest_of_tables(one.tables) == digest_of_tables(other.tables)


@pytest.mark.parametrize("signal", list(VIEW_OF))
def test_stored_tables_have_the_same_digest(signal):
    seen = {}
    for seed in range(60):
        converted = tables_of_request(carried_request(VIEW_OF[signal], seed), signal)
        if not isinstance(converted, Converted) or not converted.tables:
            continue
        (made,) = converted.tables
        digest = digest_of_tables(made)
        assert isinstance(digest, bytes)
        assert len(digest) == DIGEST_BYTES
        assert digest == digest_of_tables({payload: through_ipc(batch) for payload, batch in made.items()})
        shifted = {
            payload: pa.Table.from_batches([batch.slice(0, 1), batch]).combine_chunks().to_batches()[0].slice(1)
            for payload, batch in made.items()
        }
        if all(batch.schema == made[payload].schema for payload, batch in shifted.items()):
            assert digest == digest_of_tables(shifted)
        seen[digest] = seed
    assert len(seen) > 40


def test_different_tables_have_different_digests():
    made = tables()
    digests = {
        digest_of_tables(made),
        digest_of_tables({30: made[30]}),
        digest_of_tables({**made, 30: made[30].slice(1)}),
    }
    for payload, batch in made.items():
        for name in batch.schema.names:
            if name in {"id", "parent_id"}:
                continue
            left = batch.drop_columns([name])
            digests.add(digest_of_tables({**made, payload: left}))
    assert len(digests) > 8
    assert digest_of_tables(made) == digest_of_tables(tables())


def test_invalid_tables_have_no_digest():
    wrong = pa.RecordBatch.from_pydict({"id": pa.array(["text"])})
    assert isinstance(digest_of_tables({30: wrong}), Damage)
    assert isinstance(digest_of_tables({29: wrong}), Damage)


def test_bytes_of_nulls_are_ignored_and_null_equals_empty():
    texts = pa.array(["a", "hidden", "b"])
    hiding = pa.Array.from_buffers(pa.string(), 3, [pa.py_buffer(bytes([0b101])), *texts.buffers()[1:]])
    columns = (pa.array(["a", None, "b"]), pa.array(["a", "", "b"]), hiding)
    batches = [pa.RecordBatch.from_arrays([column], ["severity_text"]) for column in columns]
    assert len({digest_of_tables({30: batch}) for batch in batches}) == 1
    attributes = [pa.RecordBatch.from_arrays([column], ["str"]) for column in columns]
    assert len({digest_of_tables({31: batch}) for batch in attributes}) == 2, "an unset value is not an empty one"
