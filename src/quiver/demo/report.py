"""
The report: ids that an exporter reported as delivered, compared with the ids in the Parquet files.

The files are read with pyarrow, like any other program would, without Spark and the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from quiver.demo.names import ID_KEY, SIGNALS, ids_path

__all__ = ["SignalReport", "exported_ids", "exported_rows", "settle"]

ROWS_AT_ONCE = 100_000


@dataclass(frozen=True, slots=True)
class SignalReport:
    """
    One row of the demo's table.

    Attributes:
        signal: logs, spans or metrics.
        sent: the number of records passed to the SDK.
        confirmed: the number that the OTLP exporter reported as delivered.
        exported: the number of rows in the Parquet files.
        missing: the number of confirmed records that are in no file.
        duplicated: the number of rows after the first one of each id.
    """

    signal: str
    sent: int
    confirmed: int
    exported: int
    missing: int
    duplicated: int

    @property
    def right(self) -> bool:
        """Whether every confirmed record was exported exactly once."""
        return self.confirmed > 0 and self.missing == 0 and self.duplicated == 0


def _files(output: Path, signal: str) -> list[Path]:
    # Hidden files are uncommitted; readers of Parquet directories skip them.
    return sorted(path for path in (output / signal).glob("*.parquet") if path.name[0] not in "._")


def exported_rows(output: Path) -> dict[str, int]:
    """Return the number of rows by signal, from the footers of the files."""
    return {signal: sum(pq.read_metadata(path).num_rows for path in _files(output, signal)) for signal in SIGNALS}


def exported_ids(output: Path, signal: str) -> Any:
    """Return the ids of all rows of *signal*, as one Int64Array; a row without an id is null."""
    found: list[Any] = []
    for path in _files(output, signal):
        with pq.ParquetFile(path) as file:
            batches = file.iter_batches(ROWS_AT_ONCE, columns=["attributes"])
            found.extend(_ids(batch.column("attributes")) for batch in batches)
    return pa.concat_arrays(found) if found else pa.array([], pa.int64())


def _ids(attributes: Any) -> Any:
    return pc.struct_field(pc.map_lookup(attributes, ID_KEY, "first"), "int_value").cast(pa.int64())


def confirmed_ids(directory: Path, signal: str) -> Any:
    """Return the ids that the load processes recorded as confirmed."""
    data = b"".join(path.read_bytes() for path in sorted(directory.glob(ids_path("*", signal))))
    return pa.Array.from_buffers(pa.int64(), len(data) // 8, [None, pa.py_buffer(data)])


def settle(output: Path, load_dir: Path, sent: Mapping[str, int]) -> list[SignalReport]:
    """Return the report of every signal."""
    rows: list[SignalReport] = []
    for signal in SIGNALS:
        confirmed = confirmed_ids(load_dir, signal)
        exported = exported_ids(output, signal)
        missing = pc.sum(pc.invert(pc.is_in(confirmed, value_set=exported))).as_py() or 0
        # A row without an id is unexpected: it counts as a duplicate, so that it is reported.
        distinct = pc.count_distinct(exported, mode="only_valid").as_py()
        rows.append(
            SignalReport(signal, sent[signal], len(confirmed), len(exported), missing, len(exported) - distinct)
        )
    return rows
