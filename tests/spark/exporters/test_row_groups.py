"""Row groups of the Parquet files that tasks write."""

import pyarrow.parquet as pq
import pytest

from missing_offsets import KINDS, received
from quiver.spark.exporters.row_groups import RowGroupWriter


@pytest.mark.parametrize("kind", KINDS)
def test_batches_without_all_offsets_are_written(tmp_path, kind):
    """As tasks receive them from Spark 4.0 and 4.1. The size of what waits for its row group is counted."""
    batch = received(KINDS[kind])
    path = tmp_path / "rows.parquet"
    writer = RowGroupWriter(str(path), batch.schema, compression="none")
    writer.add(batch)
    assert writer.waiting_bytes == 28
    writer.finish()
    assert pq.read_table(path).to_pylist() == batch.to_pylist()
