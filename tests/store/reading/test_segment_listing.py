"""A listing while segments are being renamed has no gaps."""

from __future__ import annotations

import pytest

from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.format.names import segment_name
from quiver.store.reading.directory import StoreDirectory
from quiver.store.segment.listing import list_segments


class Busy:
    """The real file system, except that listings are the given ones in turn, the last one repeatedly."""

    def __init__(self, *listings: list[int]) -> None:
        self._listings = [[segment_name(number) for number in numbers] for numbers in listings]

    def __getattr__(self, name: str) -> object:
        return getattr(REAL_FILES, name)

    def list_dir(self, path: str) -> list[str]:
        return self._listings.pop(0) if len(self._listings) > 1 else self._listings[0]


@pytest.mark.parametrize(
    ("listings", "shown"),
    [
        ([[3, 1, 2]], [1, 2, 3]),
        ([[1, 3], [1, 2, 3, 4]], [1, 2, 3]),  # 2 and 3 were named during the first listing, which missed 2
        ([[1], [1, 3], [1, 2, 3]], [1]),  # and during the second
        ([[1, 2], [2]], [2]),  # deleted in between
        ([[], [2]], []),
    ],
)
def test_nothing_below_the_last_one_is_missing(listings: list[list[int]], shown: list[int]) -> None:
    """A reader that has read up to the last number has read all that were sealed before it."""
    assert list_segments(Busy(*listings), "/nowhere") == shown
    assert StoreDirectory("/nowhere", fs=Busy(*listings), strict=True).segments() == shown


def test_other_names_do_not_count(tmp_path) -> None:
    """A missing directory raises an error in one function, and has no segments in the other."""
    (tmp_path / f"{segment_name(7)}.tmp").touch()
    assert list_segments(REAL_FILES, str(tmp_path)) == []
    with pytest.raises(FileNotFoundError):
        list_segments(REAL_FILES, str(tmp_path / "none"))
    assert StoreDirectory(str(tmp_path), fs=REAL_FILES, strict=True).segments() == []
