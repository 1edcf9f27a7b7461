"""Marks tests that need a feature of PySpark: the lanes of older versions skip them, with the sentence a user gets."""

import pytest

from quiver.spark.spark_features import Feature


def needs(feature: Feature) -> pytest.MarkDecorator:
    """Return a mark that skips a test if the installed PySpark lacks *feature*."""
    return pytest.mark.skipif(not feature.is_available, reason=feature.missing)
