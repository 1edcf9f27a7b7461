"""Parquet on emulators of Google Cloud Storage and Azure: exporter and compaction are killed, other clients read."""

from __future__ import annotations

import pytest
from lake_kills import compact_with_kills, export_with_kills

pytestmark = [pytest.mark.emulators, pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(params=["gcs_server", "azure_server"])
def server(request):
    """Return an emulator. `files` of it is a client that is not the one under test."""
    return request.getfixturevalue(request.param)


def test_kills_of_an_exporter_lose_and_duplicate_nothing(store, tmp_path, server):
    """Driver, JVM and tasks, at random moments; between the kills, no reader sees a row twice."""
    export_with_kills(store, tmp_path, server.url(), server.options(), server.files())


def test_kills_of_a_compaction_lose_nothing(server):
    """The list of current files has each row once after every kill; the last run leaves one file for each partition."""
    compact_with_kills(server.url(), server.options(), server.files())
