"""Names of log directories."""

import pytest

import quiver
from quiver.aof import AofManager
from quiver.errors import UsageError
from quiver.primitives.disk.file_system import directory_name
from quiver.topics import TopicStore


@pytest.mark.parametrize("url", ["s3://bucket/data", "file:///data", "gs://b", "S3A://bucket/x"])
@pytest.mark.parametrize("opened", [quiver.open, AofManager.open, TopicStore.open])
def test_a_url_is_refused_with_a_hint(url, opened, tmp_path, monkeypatch):
    """No directory is created; formerly one of that name appeared in the current directory."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"{url} is a URL: a log is written to a local directory"):
        opened(url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["a:b", "data/s3:/x", "/x/http:", "./s3://"])
def test_a_path_with_a_colon_is_not_a_url(path):
    assert directory_name(path) == path.rstrip("/")
