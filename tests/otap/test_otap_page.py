"""The page docs/formats/otap.md matches the code."""

import re
from pathlib import Path

from quiver.otap.stream.decoder import StreamLimits
from quiver.otap.tables.cbor import ITEMS_MAX
from quiver.otap.tables.payload_arrays import COLUMN_BYTES_MAX, INDEX_TYPES
from quiver.otap.tables.payload_schema import ROOT_ROWS_MAX, TABLES

PAGE = (Path(__file__).parents[2] / "docs" / "formats" / "otap.md").read_text(encoding="utf-8")
INDEX = {0: "-", 8: "8, 16", 16: "16"}


def test_tables_have_the_columns_of_the_page():
    sections = re.findall(
        r"^### (.+)\n\n\| column \| type \| index \| \|\n\|[-|]+\|\n((?:\|.*\|\n)+)", PAGE, re.MULTILINE
    )
    reported = {}
    for names, rows in sections:
        for name, payload in re.findall(r"(\w+) \((\d+)\)", names):
            reported[int(payload)] = (name, rows.splitlines())
    expected = {}
    for payload, table in TABLES.items():
        rows = []
        for column in table.columns:
            lines = [
                word for word, holds in (("always there", column.required), ("null is unset", column.optional)) if holds
            ]
            lines += [f"{column.default} on the wire"] if column.default else []
            rows.append(
                f"| `{column.name}` | `{column.type}` | {INDEX[column.index_bits]} | {', '.join(lines) or '-'} |"
            )
        expected[payload] = (table.name, rows)
    assert reported == expected


def test_limits_on_the_page_match_the_code():
    limits, text = StreamLimits(), " ".join(PAGE.split())
    assert f"{limits.inflated_bytes_max >> 20} MiB for each message" in text
    assert f"{limits.dictionary_values_max:,} values in a dictionary" in text
    assert f"{limits.dictionaries_bytes_max >> 20} MiB of dictionaries in a stream" in text
    assert f"more than {ROOT_ROWS_MAX:,} records" in text
    assert [f"{bits} bits up to {most:,}" in text for bits, most, _ in INDEX_TYPES] == [True, True]
    assert f"{COLUMN_BYTES_MAX >> 20} MiB for the strings of a column" in text
    assert f"{ITEMS_MAX >> 20} million values" in text
