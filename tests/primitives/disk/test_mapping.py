"""A mapping lives as long as anybody looks at it."""

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
    """A slice of a buffer of a view keeps the pages; when the last one goes, so does the map."""
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
    """Views from before stay; `close` twice is fine."""
    mapping = REAL_FILES.map_read(path)
    view = mapping.view()
    mapping.close()
    mapping.close()

    assert view == DATA
    with pytest.raises(StoreClosedError):
        mapping.view()


def test_nobody_writes_through_a_view(path):
    """Views are read-only, whatever the file's mode."""
    mapping = REAL_FILES.map_read(path)

    assert mapping.view().readonly
    with pytest.raises(TypeError):
        mapping.view()[0] = 1


def test_the_descriptor_may_close_at_once(path):
    """The map needs the pages, not the caller's descriptor; what cannot be mapped is an OSError."""
    fd = os.open(path, os.O_RDONLY)
    mapping = map_descriptor(fd, len(DATA))
    os.close(fd)

    assert mapping.view() == DATA
    with pytest.raises(OSError):
        map_descriptor(fd, 1)


def test_what_cannot_be_mapped_names_the_file(tmp_path):
    """A directory opens, and does not map."""
    with pytest.raises(OSError) as caught:
        REAL_FILES.map_read(str(tmp_path))
    assert caught.value.filename == str(tmp_path)


def test_pages_that_were_let_go_are_read_again(path):
    """The view stays valid; of bytes in memory there is nothing to give back."""
    view = REAL_FILES.map_read(path).view()
    assert view == DATA
    release_pages(view[256:])

    assert view == DATA
    release_pages(memoryview(DATA))
