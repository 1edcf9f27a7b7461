"""Round trips of a request through OTAP."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from otap_oracle import REQUESTS

from quiver.otap.stream.decoder import ArrowBatch, StreamDecoder
from quiver.otap.stream.encoder import StreamEncoder
from quiver.otap.tables.from_otlp import Converted, tables_of_request
from quiver.otap.tables.to_otlp import request_of_tables

VECTORS = Path(__file__).parents[1] / "vectors"
VIEW_OF = {"logs": "logs", "traces": "spans", "metrics": "metrics"}
CASES = {case["name"]: case for case in json.loads((VECTORS / "otap" / "index.json").read_text("utf-8"))["cases"]}


def weighed(*heavy: str) -> list[Any]:
    """Return the cases for a parametrization; large ones run in the slow lane."""
    return [
        pytest.param(case, id=name, marks=[pytest.mark.slow] if name in heavy else []) for name, case in CASES.items()
    ]


def bytes_of(name: str) -> bytes:
    data = (VECTORS / "otap" / name).read_bytes()
    return gzip.decompress(data) if name.endswith(".gz") else data


def parsed(data: bytes, signal: str) -> Any:
    return REQUESTS[VIEW_OF[signal]].FromString(data)


def tables_of(data: bytes, signal: str) -> Any:
    """Return the only set of tables of a request, empty without records, validated by Arrow."""
    converted = tables_of_request(data, signal)
    assert isinstance(converted, Converted), converted
    assert len(converted.tables) < 2
    tables = dict(*converted.tables)
    for batch in tables.values():
        batch.validate(full=True)
    return tables


def restored(tables: Any, signal: str) -> Any:
    """Convert tables to a request and check that no row is left out."""
    request = request_of_tables(tables, signal)
    assert hasattr(request, "data"), request
    assert request.orphans == 0
    return parsed(request.data, signal)


class Line:
    """A stream: an encoder and a decoder."""

    def __init__(self, signal: str, **options: Any) -> None:
        self.signal = signal
        self.encoder = StreamEncoder(signal, metric_metadata=True, **options)
        self.decoder = StreamDecoder(signal)
        self.messages: list[bytes] = []

    def send(self, tables: Any) -> Any:
        """Send tables in as many messages as necessary; return the decoded request."""
        sent = self.encoder.try_encode(tables)
        assert isinstance(sent, tuple), sent
        arrived = REQUESTS[VIEW_OF[self.signal]]()
        for batch in sent:
            self.messages.append(batch.message)
            got = self.decoder.try_decode(batch.message)
            assert isinstance(got, ArrowBatch), got
            assert got.batch_id == batch.batch_id
            arrived.MergeFrom(restored(got.tables, self.signal))
        return arrived
