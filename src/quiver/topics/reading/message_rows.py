"""Messages → Arrow rows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal

import pyarrow as pa

from quiver.topics.format.message import Message

__all__ = ["PRODUCER_SCHEMA", "TOPIC_SCHEMA", "rows_of_messages"]

_NUMBER = pa.decimal128(20, 0)
_TIMESTAMP = pa.timestamp("us", tz="UTC")

TOPIC_SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", _TIMESTAMP),
        ("key", pa.string()),
        ("payload", pa.binary()),
        ("attributes", pa.map_(pa.string(), pa.string())),
        ("topic", pa.string()),
    ]
)
"""One row per message. A time after the year 9999 is null."""

PRODUCER_SCHEMA = pa.schema(
    [("_producer", pa.string()), ("_producer_id", _NUMBER), ("_request_id", _NUMBER), ("_broker", pa.string())]
)
"""The producer of a message, and its broker."""

_NS_PER_US = 1000
_TIME_US_MAX = 253_402_300_799_999_999


def rows_of_messages(messages: Sequence[Message], topic: str, schema: pa.Schema = TOPIC_SCHEMA) -> pa.RecordBatch:
    """Return a row for each of *messages*, with those columns of the two schemas that *schema* has."""
    make: dict[str, Callable[[], pa.Array]] = {
        "offset": lambda: pa.array([one.offset for one in messages], pa.int64()),
        "timestamp": lambda: pa.array([_time_us(one.publish_time_ns) for one in messages], _TIMESTAMP),
        "key": lambda: pa.array([one.key for one in messages], pa.string()),
        "payload": lambda: pa.array([one.payload for one in messages], pa.binary()),
        "attributes": lambda: _attributes(messages),
        "topic": lambda: pa.repeat(pa.scalar(topic), len(messages)),
        "_producer": lambda: pa.array([one.producer_name for one in messages], pa.string()),
        "_producer_id": lambda: pa.array([Decimal(one.producer_id) for one in messages], _NUMBER),
        "_request_id": lambda: pa.array([Decimal(one.request_id) for one in messages], _NUMBER),
        "_broker": lambda: pa.array([one.broker_address for one in messages], pa.string()),
    }
    arrays = [make[field.name]().cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _time_us(publish_time_ns: int) -> int | None:
    time_us = publish_time_ns // _NS_PER_US
    return time_us if time_us <= _TIME_US_MAX else None


def _attributes(messages: Sequence[Message]) -> pa.Array:
    ends = [0]
    keys: list[str] = []
    values: list[str] = []
    for one in messages:
        if one.attributes:
            keys += one.attributes.keys()
            values += one.attributes.values()
        ends.append(len(keys))
    return pa.MapArray.from_arrays(
        pa.array(ends, pa.int32()), pa.array(keys, pa.string()), pa.array(values, pa.string())
    )
