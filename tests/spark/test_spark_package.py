"""`quiver spark package`."""

import json
import tarfile

import pytest
from typer.testing import CliRunner

from quiver.cli.main import build_app
from quiver.spark import python_packages


@pytest.fixture(autouse=True)
def _only_this_package(monkeypatch):
    monkeypatch.setattr(python_packages, "_EXTRAS", ())
    monkeypatch.setattr(python_packages, "_OF_SPARK", frozenset({"pyarrow", "isal", "awscrt", "blake3"}))


def test_it_builds_the_archive_and_prints_how_to_use_it(tmp_path):
    """As text and as JSON; an existing archive is replaced."""
    path = tmp_path / "quiver.tar.gz"
    words, values = (
        CliRunner().invoke(build_app(), ["spark", "package", "-o", str(path), *more]) for more in ([], ["--json"])
    )

    assert (words.exit_code, values.exit_code) == (0, 0), words.output + values.output
    assert f'python_archive: "{path}"' in words.output
    described = json.loads(values.output)
    assert described["path"] == str(path)
    assert described["size_bytes"] == path.stat().st_size
    assert "arrow-quiver" in described["distributions"]
    with tarfile.open(path) as archive:
        assert "quiver/spark/store/read_partition.py" in archive.getnames()


def test_a_missing_package_is_wrong_use(tmp_path):
    result = CliRunner().invoke(build_app(), ["spark", "package", "-o", str(tmp_path / "q.tgz"), "--with", "no-such"])
    assert (result.exit_code, result.output) == (2, "quiver: no-such is not installed; run: pip install no-such\n")


def test_a_missing_directory_is_wrong_use(tmp_path):
    result = CliRunner().invoke(build_app(), ["spark", "package", "-o", str(tmp_path / "no" / "q.tgz")])
    assert result.exit_code == 2
    assert "No such file or directory" in result.output
