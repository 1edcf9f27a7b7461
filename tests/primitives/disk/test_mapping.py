"""A mapping exists as long as a view refers to it."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from quiver.errors import StoreClosedError
from quiver.primitives.disk.mapping import map_descriptor, release_pages
from quiver.primitives.disk.real_files import REAL_FILES

DATA = bytes(range(256)) * 100


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(DATA)
    return str(path)


def maps_of(path):
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(line.endswith((path, f"{path} (deleted)")) for line in lines)


def test_arrow_buffers_outlive_close_and_unlink(path):
    """A slice of a buffer of a view keeps the pages; without the last one the mapping is removed."""
    mapping = REAL_FILES.map_read(path)
    buffer = pa.py_buffer(mapping.view()[256:])
    Path(path).unlink()
    mapping.close()
    array = pa.Array.from_buffers(pa.uint8(), 256, [None, buffer.slice(256, 256)])
    del buffer, mapping

    assert array.to_pylist() == list(range(256))
    assert maps_of(path) == 1
    del array
    assert maps_of(path) == 0


def test_a_closed_mapping_gives_no_new_views(path):
    """Earlier views stay valid; a second `close` does nothing."""
    mapping = REAL_FILES.map_read(path)
    view = mapping.view()
    mapping.close()
    mapping.close()

    assert view == DATA
    with pytest.raises(StoreClosedError):
        mapping.view()


def test_views_are_read_only(path):
    """Regardless of the file's mode."""
    mapping = REAL_FILES.map_read(path)

    assert mapping.view().readonly
    with pytest.raises(TypeError):
        mapping.view()[0] = 1


def test_the_descriptor_may_close_at_once(path):
    """The mapping does not need the caller's descriptor; a file that cannot be mapped raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    mapping = map_descriptor(fd, len(DATA))
    os.close(fd)

    assert mapping.view() == DATA
    with pytest.raises(OSError):
        map_descriptor(fd, 1)


def test_an_error_of_mapping_names_the_file(tmp_path):
    """A directory can be opened, but not mapped."""
    with pytest.raises(OSError) as caught:
        REAL_FILES.map_read(str(tmp_path))
    assert caught.value.filename == str(tmp_path)


def test_released_pages_are_read_again(path):
    """The view stays valid; bytes in memory have no pages to release."""
    view = REAL_FILES.map_read(path).view()
    assert view == DATA
    release_pages(view[256:])

    assert view == DATA
    release_pages(memoryview(DATA))
