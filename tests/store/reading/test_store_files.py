import pytest

import quiver
from quiver.errors import CorruptionError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.format.floor import Floor
from quiver.store.reading.store_files import StoreFiles


@pytest.fixture
def files(tmp_path):
    return StoreFiles(REAL_FILES, str(tmp_path))


def test_an_empty_directory_has_default_values(files):
    assert (files.identity(), files.segments(), files.quarantined()) == ("", [], [])
    assert (files.floor(), files.cursor(), files.drops()) == (Floor(0), 0, ())
    assert (files.subscribers(), files.progress("one")) == ([], None)


def test_the_files_of_a_store_are_read(files, tmp_path):
    with quiver.open(str(tmp_path)) as store:
        store.register("one")
    assert len(files.identity()) == 36
    assert files.subscribers() == ["one"]
    assert files.progress("one") is not None
    assert files.segment_path(12) == f"{tmp_path}/segments/0000000000000012.qseg"


def test_segments_and_quarantine_are_separate(files, tmp_path):
    for name in (
        "segments/0000000000000007.qseg",
        "segments/0000000000000002.qseg",
        "quarantine/0000000000000004.qseg",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "quarantine/quiver.drops").touch()
    assert (files.segments(), files.quarantined()) == ([2, 7], [4])


def test_a_damaged_floor_or_cursor_counts_as_missing_but_damaged_drops_are_reported(files, tmp_path):
    for name in ("segments/quiver.segment.floor", "wal/quiver.wal.cursor", "quiver.drops"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"other")
    assert (files.floor(), files.cursor()) == (Floor(0), 0)
    with pytest.raises(CorruptionError):
        files.drops()
