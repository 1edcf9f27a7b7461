"""The archive of Python packages for executors."""

import gzip
import os
import subprocess
import sys
import tarfile
from importlib.metadata import version

import pytest

from quiver.errors import SettingsError, UsageError
from quiver.spark import python_archive, python_packages
from quiver.spark.python_archive import DESCRIPTION_NAME, PythonArchive, check_python_archive, read_description
from quiver.spark.python_packages import write_python_archive
from quiver.spark.session_settings import SessionSettings

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def install(site, name, *requires, files=(), version="1.0", more=""):
    """Create a distribution in *site*, as pip would install it."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {one}" for one in requires),
    ]
    (info / "METADATA").write_text("\n".join([*lines, ""]))
    for file in files:
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_text(f"# {file}\n")
    recorded = [*files, f"../../bin/{name}", f"{info.name}/METADATA", f"{info.name}/RECORD"]
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in recorded))
    if more:
        (info / "entry_points.txt").write_text(more)
    return info


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return a directory of packages. Of those that are installed elsewhere, only this one is packed."""
    monkeypatch.setattr(python_packages, "_EXTRAS", ())
    monkeypatch.setattr(
        python_packages, "_OF_SPARK", frozenset({"pyspark", "py4j", "pyarrow", "isal", "awscrt", "blake3"})
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return tmp_path / "site"


def names(path):
    with tarfile.open(path) as archive:
        return archive.getnames()


def test_packages_come_with_what_they_require(site, tmp_path):
    """Also with their extras and markers, but neither with Spark's own packages nor with programs."""
    install(site, "acme-tools", "acme.core[fast]>=1", "pyspark", "gone; extra == 'never'", files=["acme_tools.py"])
    install(site, "acme_core", "acme-speed; extra == 'fast'", "absent; extra == 'fast'", "no; python_version < '3'",
            files=["acme/core.py"])  # fmt: skip
    install(site, "Acme.Speed", files=["acme/speed.py"])
    path = tmp_path / "a.tar.gz"

    description = write_python_archive(path, more=["acme_tools"])

    assert description == read_description(path)
    assert description.python == PYTHON
    assert description.distributions == {
        "acme-core": "1.0", "acme-speed": "1.0", "acme-tools": "1.0", "arrow-quiver": version("arrow-quiver")
    }  # fmt: skip
    found = names(path)
    assert found[0] == DESCRIPTION_NAME
    assert {"acme_tools.py", "acme/core.py", "acme/speed.py", "acme_tools-1.0.dist-info/METADATA"} <= set(found)
    assert {"quiver/__init__.py", "quiver/spark/store/read_partition.py"} <= set(found)
    assert not [name for name in found if ".." in name or "RECORD" in name or "__pycache__" in name or ".pth" in name]
    assert list(tmp_path.glob("*.tmp")) == []


def test_installed_processors_are_packed(site, tmp_path):
    """A pipeline file may name any of them."""
    points = "[quiver.processors]\nurn:acme:tenant:processor = acme_tenant:tenant\n"
    install(site, "acme-tenant", files=["acme_tenant.py"], more=points)
    assert "acme-tenant" in write_python_archive(tmp_path / "a.tgz").distributions


def test_tasks_can_import_from_an_archive(site, tmp_path):
    """A Python without this package finds it in the unpacked archive."""
    path = tmp_path / "a.tar.gz"
    write_python_archive(path)
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    script = "import quiver, sys; print(quiver.__file__)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", script],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": "unpacked"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == str(tmp_path / "unpacked" / "quiver" / "__init__.py")


def test_the_owner_of_the_files_is_not_recorded(site, tmp_path):
    write_python_archive(tmp_path / "a.tar.gz")
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        assert {(one.uid, one.uname, one.mode & ~0o111) for one in archive} == {(0, "", 0o644)}


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("a.zip", (), "end the name in .tar.gz"),
        ("a.tar.gz", ("absent",), "absent is not installed; run: pip install absent"),
        ("a.tar.gz", ("a b c",), "write the name of an installed distribution"),
        ("a.tar.gz", ("edited",), "edited is an editable installation"),
    ],
)
def test_what_cannot_be_packed_is_refused(site, tmp_path, name, more, message):
    """And nothing is written."""
    info = install(site, "edited", files=["__editable__.edited.pth"])
    (info / "direct_url.json").write_text('{"url": "file:///x", "dir_info": {"editable": true}}')
    with pytest.raises(UsageError, match=message):
        write_python_archive(tmp_path / name, more=more)
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_an_archive_for_another_version_is_refused(site, tmp_path, monkeypatch):
    """The driver and the tasks exchange pickled objects."""
    path = tmp_path / "a.tar.gz"
    settings = SessionSettings(master="yarn", python_archive=str(path))
    with pytest.raises(UsageError, match=r"there is no file .*a\.tar\.gz: build it"):
        settings.check_files()
    write_python_archive(path)
    settings.check_files()
    monkeypatch.setattr(python_archive, "python_version", lambda: "3.99")
    with pytest.raises(UsageError, match=rf"is for Python {PYTHON}, and the driver has 3\.99"):
        settings.check_files()
    monkeypatch.undo()
    monkeypatch.setattr(
        python_archive, "read_description", lambda _: PythonArchive(PYTHON, "any", {"arrow-quiver": "0"})
    )
    with pytest.raises(UsageError, match="is for Quiver 0, and the driver has"):
        check_python_archive(path)


def damaged(data):
    yield b""
    yield b"junk"
    yield data[:20]
    yield data[: len(data) // 2]
    yield data[:40] + bytes([data[40] ^ 0xFF]) + data[41:]
    yield gzip.compress(b"no archive")
    yield gzip.compress(gzip.decompress(data)[512:])


def test_other_files_are_no_archives(tmp_path):
    """Damaged ones, and others with the same form."""
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        python_packages._add_bytes(
            archive, DESCRIPTION_NAME, b'{"python": "3.11", "platform": "x", "distributions": {}}'
        )
    assert read_description(path) == PythonArchive("3.11", "x", {})
    for data in damaged(path.read_bytes()):
        path.write_bytes(data)
        with pytest.raises(UsageError, match="not an archive of Python packages"):
            read_description(path)
    for text in (b"[]", b"{", b'{"python": 1}', b"\xff"):
        with tarfile.open(path, "w:gz") as archive:
            python_packages._add_bytes(archive, DESCRIPTION_NAME, text)
        with pytest.raises(UsageError, match="not an archive of Python packages"):
            read_description(path)


def test_the_archive_becomes_properties_of_the_tasks():
    """A property of the file precedes them, and other archives stay."""
    settings = SessionSettings(archives=("a.zip#a",), python_archive="/shared/q.tar.gz")
    assert settings.properties() == {
        "spark.archives": "a.zip#a,/shared/q.tar.gz#quiver-python",
        "spark.executorEnv.PYTHONPATH": "quiver-python",
        "spark.pyspark.python": f"python{PYTHON}",
    }
    own = SessionSettings(config={"spark.pyspark.python": "python3"}, python_archive="q.tar.gz")
    assert own.properties()["spark.pyspark.python"] == "python3"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"python_archive": "a,b"}, "is not the path of one archive"),
        ({"python_archive": ""}, "is not the path of one archive"),
        ({"python_archive": "a", "master": "local[2]"}, "python_archive has no effect with master"),
        ({"python_archive": "a", "config": {"spark.executorEnv.PYTHONPATH": "b"}}, "keep one"),
    ],
)
def test_invalid_settings_of_the_archive_are_refused(values, message):
    with pytest.raises(SettingsError, match=message):
        SessionSettings(**values)
