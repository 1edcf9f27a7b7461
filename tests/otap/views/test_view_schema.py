"""The views only have types that every Arrow reader supports, and Spark's Python data sources without a cast."""

from pathlib import Path

import pyarrow as pa
import pytest

from quiver.otap import VIEWS, view_schema
from quiver.spark.spark_features import from_arrow_schema, to_arrow_schema

PLAIN = {"string", "binary", "bool", "int32", "int64", "double", "timestamp[us, tz=UTC]"}


def leaves(field, *, key=False):
    assert field.nullable or key, field
    kind = field.type
    if pa.types.is_map(kind):
        yield from leaves(kind.key_field, key=True)
        yield from leaves(kind.item_field)
    elif pa.types.is_struct(kind):
        for child in kind:
            yield from leaves(child)
    elif pa.types.is_list(kind):
        yield from leaves(kind.value_field)
    else:
        yield str(kind)


@pytest.mark.parametrize("name", VIEWS)
def test_schemas_have_plain_nullable_types(name):
    for field in view_schema(name):
        assert set(leaves(field)) <= PLAIN


@pytest.mark.parametrize("name", VIEWS)
def test_spark_declares_exactly_this_schema(name):
    schema = view_schema(name)
    assert to_arrow_schema(from_arrow_schema(schema)).equals(schema)


@pytest.mark.parametrize("name", VIEWS)
def test_the_formats_page_describes_every_column(name):
    page = (Path(__file__).parents[3] / "docs" / "formats" / "views.md").read_text()
    section = page.split(f"## `{name}`")[1].split("\n## ")[0]
    for column in view_schema(name).names:
        assert f"`{column}`" in section or column.startswith(("scope_", "resource_"))
