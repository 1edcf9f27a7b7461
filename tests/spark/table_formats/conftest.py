"""Tables of each format."""

import pytest
from table_exports import DeltaLake, IcebergLake


@pytest.fixture(params=[DeltaLake, IcebergLake], ids=["delta", "iceberg"])
def lake(request, tmp_path):
    """Return tables of each format."""
    return request.param(tmp_path / "lake")
