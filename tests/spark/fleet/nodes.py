"""Nodes of a fleet: real stores that upload OTLP requests with numbered log records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
from stores import logs_request

import quiver
from quiver.bundle import OTLP_SCHEMA
from quiver.objects.location import ObjectLocation
from quiver.settings import Settings

LAKE = "lake"


class Node:
    """One store, which is opened for each step."""

    def __init__(self, root: Path, name: str, bucket: str, options: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.settings = Settings(
            cold_objects=ObjectLocation.from_url(bucket, dict(options or {})),
            fleet_name=name,
            fleet_subscribers=(LAKE,),
            delete_grace_s=0.0,
        )

    def send(self, *segments: list[int]) -> None:
        """Upload a segment for each list, with a log record for each number."""
        with quiver.open(self.root, self.settings, background=False) as store:
            for numbers in segments:
                data = pa.record_batch({"data": [logs_request(numbers)]}, schema=OTLP_SCHEMA)
                store.ingest(quiver.Bundle({60: data}))
                store.seal()
            store.maintain()

    def send_slot(self, batch: pa.RecordBatch) -> None:
        """Upload one segment with *batch* in slot 30."""
        with quiver.open(self.root, self.settings, background=False) as store:
            store.ingest(quiver.Bundle({30: batch}))
            store.seal()
            store.maintain()

    def left(self) -> int:
        """Poll the acknowledgements, and return how many segments the node still has."""
        with quiver.open(self.root, self.settings, background=False) as store:
            store.maintain()
            store.maintain()
            return int(store.stats()["segments"])

    @property
    def identity(self) -> str:
        """Its identity."""
        return (self.root / "quiver.id").read_text().strip()
