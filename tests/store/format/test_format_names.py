"""File names are parsed exactly, and names of other programs are left alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.errors import UsageError
from quiver.store.format import names

U64 = st.integers(0, 2**64 - 1)


@given(U64)
def test_segment_names_come_back(seq):
    """A segment's number survives its name, and names have sixteen digits at least."""
    name = names.segment_name(seq)
    assert names.parse_segment_name(name) == seq
    assert len(name) >= len("0000000000000000.qseg")


def test_the_documents_segment_names():
    """The three examples of the architecture document."""
    assert [names.segment_name(seq) for seq in (0, 1, 123456)] == [
        "0000000000000000.qseg",
        "0000000000000001.qseg",
        "0000000000123456.qseg",
    ]


@pytest.mark.parametrize(
    "name",
    [
        "", "1.qseg", "000000000000000a.qseg", "00000000000000001.qseg", "0000000000000001.qseg.tmp",
        "0000000000000001.QSEG", "+000000000000001.qseg", "0000000000000001.qseg\n", "quiver.segment.floor",
        "99999999999999999999.qseg", "\N{ARABIC-INDIC DIGIT ZERO}" * 16 + ".qseg",
    ],
)  # fmt: skip
def test_other_names_are_not_segments(name):
    """Only what `segment_name` writes is a segment."""
    assert names.parse_segment_name(name) is None


@given(U64)
def test_rotation_numbers_come_back(rotation):
    """A rotation number survives its name."""
    assert names.parse_wal_rotated_name(names.wal_rotated_name(rotation)) == rotation


@pytest.mark.parametrize(
    "name",
    ["quiver.wal", "quiver.wal.", "quiver.wal.01", "quiver.wal.cursor", "quiver.wal.next", "quiver.wal.1.tmp",
     "quiver.wal.-1", "quiver.wal.99999999999999999999", "quiverXwal.1", "quiver.wal.1\n"],
)  # fmt: skip
def test_other_names_are_not_rotated_files(name):
    """The active file, the cursor and temporary files are not rotated files."""
    assert names.parse_wal_rotated_name(name) is None


@given(st.text("abcXYZ019_-", min_size=1, max_size=64))
def test_subscriber_ids_come_back(subscriber):
    """A valid id survives the name of its progress file; its lock file is not a progress file."""
    assert names.parse_progress_name(names.progress_name(subscriber)) == subscriber
    assert names.parse_progress_name(names.subscriber_lock_name(subscriber)) is None
    assert names.parse_progress_name(names.progress_name(subscriber) + ".tmp") is None


@pytest.mark.parametrize("subscriber", ["exporter-otlp", "backup_s3", "metrics-1", "a", "x" * 64, "console", "com10"])
def test_good_ids(subscriber):
    """The document's examples, and names that only look like a device."""
    names.check_subscriber_id(subscriber)


@pytest.mark.parametrize(
    "subscriber",
    ["", ".", "..", "a.b", "a/b", "a b", "é", "x" * 65, "CON", "con", "Prn", "aux", "NUL", "com1", "LPT9", "a\n",
     "a\0"],
)  # fmt: skip
def test_bad_ids(subscriber):
    """Nothing that could leave the directory, clash with our own suffixes or name a device is an id."""
    with pytest.raises(UsageError):
        names.check_subscriber_id(subscriber)
    with pytest.raises(UsageError):
        names.progress_name(subscriber)
    assert names.parse_progress_name(f"quiver.sub.{subscriber}") is None
