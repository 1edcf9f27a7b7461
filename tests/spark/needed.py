"""
Marks tests that need a feature of PySpark, and adapts tests that only mention one.

The lanes of older versions skip marked tests, with the sentence that a user gets.
"""

from typing import Any

import pytest

from quiver.spark.spark_features import STREAM_LIMITS, Feature, ReadAllAvailable, ReadLimit


def needs(feature: Feature) -> pytest.MarkDecorator:
    """Return a mark that skips a test if the installed PySpark lacks *feature*."""
    return pytest.mark.skipif(not feature.is_available, reason=feature.missing)


def limited(**options: str) -> dict[str, str]:
    """Return *options*, limits of a stream, or nothing if the installed PySpark has no limits."""
    return options if STREAM_LIMITS.is_available else {}


def batch_end(reader: Any, start: dict[str, Any], limit: ReadLimit | None = None) -> dict[str, Any]:
    """Return the end of the batch from *start*, as the installed PySpark asks *reader* for it. None: no limit."""
    if STREAM_LIMITS.is_available:
        return reader.latestOffset(start, limit or ReadAllAvailable())
    return reader.latestOffset()
