"""Bundles with a number as their content."""

import pyarrow as pa

from quiver.bundle import OTLP_SCHEMA, Bundle


def bundle_of(number: int) -> Bundle:
    return Bundle({60: pa.record_batch([pa.array([b"request %d" % number])], schema=OTLP_SCHEMA)})


def number_of(bundle: Bundle) -> int:
    (data,) = bundle[60].column(0).to_pylist()
    return int(data.removeprefix(b"request "))
