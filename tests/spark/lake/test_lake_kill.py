"""An exporter to a bucket and a compaction are killed: every row is visible once, in a bucket of a real S3 server."""

from __future__ import annotations

import pyarrow.fs
import pytest
from lake_kills import compact_with_kills, export_with_kills

from s3_server import S3Server

pytestmark = [pytest.mark.kill, pytest.mark.spark, pytest.mark.timeout(600)]


def files_of(server: S3Server):
    return pyarrow.fs.S3FileSystem(
        access_key=server.access_key, secret_key=server.secret_key, region="us-east-1",
        endpoint_override=server.endpoint.removeprefix("http://"), scheme="http",
    )  # fmt: skip


def test_kills_of_an_exporter_lose_and_duplicate_nothing(store, tmp_path, s3_server):
    """Driver, JVM and tasks, at random moments; between the kills, no reader sees a row twice."""
    export_with_kills(store, tmp_path, s3_server.url(), s3_server.options(), files_of(s3_server))


def test_kills_of_a_compaction_lose_nothing(s3_server):
    """The list of current files has each row once after every kill; the last run leaves one file for each partition."""
    compact_with_kills(s3_server.url(), s3_server.options(), files_of(s3_server))
