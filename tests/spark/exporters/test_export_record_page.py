"""The page about records of exporters matches the code: members, examples, limits."""

from __future__ import annotations

import json
import re

import pytest

from format_feeding import code_of, page_of
from quiver.errors import CorruptionError
from quiver.spark.exporters.parquet_commit import ExportRecord
from quiver.spark.lake.compaction_log import CompactionRecord
from quiver.spark.table_formats.batch_record import BatchRecord

PAGE = page_of("export-records")
KINDS = [ExportRecord, BatchRecord, CompactionRecord]
EXAMPLES = re.findall(r"^```json\n(.*?)\n```", PAGE, re.MULTILINE | re.DOTALL)
MEMBERS = re.findall(r"^\| member \| meaning \|\n\|[-|]+\|\n((?:\|.*\|\n)+)", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("kind", "example", "members"), list(zip(KINDS, EXAMPLES, MEMBERS[1:], strict=True)))
def test_an_example_is_a_record_with_the_members_of_its_table(kind, example, members):
    """The same bytes when it is encoded again."""
    record = kind.decode(example.encode(), "page")
    assert record.encode().decode() == example
    documented = [name for row in members.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert documented == list(json.loads(example)["record"])


@pytest.mark.parametrize(("kind", "example"), list(zip(KINDS, EXAMPLES, strict=True)))
def test_a_damaged_record_is_refused(kind, example):
    """Cut anywhere, with trailing junk, of a later version, or with another value of the same length."""
    data = example.encode()
    later = json.loads(data)
    later["record"]["v"] += 1
    damaged = [data[:length] for length in range(0, len(data), 7)]
    damaged += [data + b"{}", json.dumps(later).encode(), b"[" * 100_000, data.replace(b'"rows": ', b'"rows": 9', 1)]
    for one in damaged:
        with pytest.raises(CorruptionError):
            kind.decode(one, "page")


def test_limits_match_the_constants():
    """Each limit equals the constant in its row."""
    (table,) = re.findall(r"^\| limit \| value \| constant \|\n\|[-|]+\|\n((?:\|.*\|\n)+)", PAGE, re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
    assert [int(value) for _, value, _ in rows] == [code_of(dotted.strip("`")) for _, _, dotted in rows]
    assert len(rows) == 4
