import errno

import pytest

from quiver.errors import CorruptionError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore
from quiver.primitives.small_file import checked_value, read_bounded, read_checked, read_if_valid


def decode(view: memoryview) -> Answer[str]:
    if len(view) < 4:
        return NeedMore(4 - len(view))
    return Frame(bytes(view).decode(), len(view)) if view[:1] == b"q" else Damage(0, "not ours")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


def test_a_valid_file_is_decoded(path):
    path.write_bytes(b"quiver")
    assert read_checked(REAL_FILES, str(path), decode, 6) == "quiver"
    assert read_if_valid(REAL_FILES, str(path), decode, 6) == "quiver"
    assert read_bounded(REAL_FILES, str(path), 6) == b"quiver"


def test_a_missing_file_has_no_value(path):
    assert read_checked(REAL_FILES, str(path), decode, 6) is None
    assert read_if_valid(REAL_FILES, str(path), decode, 6) is None
    with pytest.raises(FileNotFoundError):
        read_bounded(REAL_FILES, str(path), 6)


@pytest.mark.parametrize(
    ("data", "offset", "reason"),
    [
        (b"q", 1, "cut short: at least 3 bytes are missing"),
        (b"other", 0, "not ours"),
        (b"quivers", 6, "too large: a valid file has at most 6 bytes; it was not read"),
    ],
)
def test_damage_is_reported_with_path_offset_and_reason(path, data, offset, reason):
    path.write_bytes(data)
    with pytest.raises(CorruptionError) as caught:
        read_checked(REAL_FILES, str(path), decode, 6)
    assert (caught.value.path, caught.value.offset, caught.value.reason) == (str(path), offset, reason)


def test_damage_can_be_ignored_but_a_file_that_is_too_large_cannot(path):
    path.write_bytes(b"other")
    assert read_if_valid(REAL_FILES, str(path), decode, 6) is None
    path.write_bytes(b"quivers")
    with pytest.raises(OSError, match="larger than 6 bytes") as caught:
        read_if_valid(REAL_FILES, str(path), decode, 6)
    assert caught.value.errno == errno.EFBIG


def test_a_directory_is_reported_as_damage(path):
    path.mkdir()
    with pytest.raises(CorruptionError, match="a directory is in the place of a file"):
        read_checked(REAL_FILES, str(path), decode, 1 << 20)


def test_the_answer_of_a_decoder_is_checked_alone():
    assert checked_value(Frame(7, 1), "key", 1) == 7
    with pytest.raises(CorruptionError, match="key at byte 5: cut short: at least 2 bytes are missing"):
        checked_value(NeedMore(2), "key", 5)
