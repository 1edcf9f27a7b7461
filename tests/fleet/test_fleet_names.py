"""The keys of a fleet: what is built is parsed, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.errors import UsageError
from quiver.objects.port import check_key
from quiver.store.format.fleet.names import (
    SHARDS,
    InboxObject,
    acks_key,
    gone_key,
    inbox_folder,
    is_node_name,
    key_of,
    node_key,
    offsets_key,
    owner_key,
    parse_inbox_key,
    parse_node_key,
    parse_offsets_key,
    parse_rejected_key,
    quarantine_key,
    rejected_folder,
    rejected_key,
    segment_key,
    shard_of,
)

NODE = "3e0b6f0a-5d3c-4f63-9a43-0c9d6c0c5a11"
FOLDER = f"inbox/3e/{NODE}/segments"
NUMBERS = st.integers(0, 2**64 - 2)


def test_golden():
    """The keys of the page, all of which an object store accepts."""
    keys = {
        segment_key(NODE, 12, 0xA1B2C3D4): f"{FOLDER}/0000000000000012-a1b2c3d4.qseg",
        gone_key(NODE, 3, 9): f"{FOLDER}/0000000000000009-0000000000000003.gone",
        node_key(NODE): f"nodes/3e/{NODE}.json",
        acks_key("lake", "3e"): "acks/lake/3e",
        offsets_key("lake", 7): "offsets/lake/0000000000000007",
        owner_key("lake"): "owner/lake",
    }
    for built, expected in keys.items():
        assert check_key(built) == expected
    assert (shard_of(NODE), inbox_folder(NODE)) == ("3e", f"inbox/3e/{NODE}")
    assert len(set(SHARDS)) == 256


@given(NUMBERS, NUMBERS, st.none() | st.integers(0, 2**32 - 1))
def test_inbox_round_trip(one, other, crc32):
    first, last = (one, one) if crc32 is not None else sorted((one, other))
    found = InboxObject(first, last, crc32, 77)
    assert parse_inbox_key(key_of(NODE, found), 77) == (NODE, found)
    assert found.is_gone == (crc32 is None)


@pytest.mark.parametrize("key", [
    f"inbox/3f/{NODE}/segments/0000000000000012-a1b2c3d4.qseg",
    f"inbox/3e/{NODE.upper()}/segments/0000000000000012-a1b2c3d4.qseg",
    f"inbox/3e/{NODE}/quarantine/0000000000000012-a1b2c3d4.qseg",
    f"inbox/3e/{NODE}/segments/x/0000000000000012-a1b2c3d4.qseg",
    f"{FOLDER}/0000000000000012-a1b2c3d.qseg",
    f"{FOLDER}/0000000000000012-A1B2C3D4.qseg",
    f"{FOLDER}/12-a1b2c3d4.qseg",
    f"{FOLDER}/0000000000000012.qseg",
    f"{FOLDER}/00000000000000012-a1b2c3d4.qseg",
    f"{FOLDER}/18446744073709551615-a1b2c3d4.qseg",
    f"{FOLDER}/0000000000000003-0000000000000009.gone",
    f"{FOLDER}/18446744073709551615-0000000000000003.gone",
    f"{FOLDER}/0000000000000009-a1b2c3d4.gone",
    f"{FOLDER}/0000000000000009-0000000000000003.gone ",
    f"inbox/3e/{NODE[:-1]}-/segments/0000000000000012-a1b2c3d4.qseg",
    "",
])  # fmt: skip
def test_other_keys_of_the_inbox_are_ignored(key):
    assert parse_inbox_key(key, 1) is None


def test_other_keys_are_ignored():
    assert parse_node_key(node_key(NODE)) == NODE
    assert parse_node_key(f"nodes/3f/{NODE}.json") is None
    assert parse_node_key(f"nodes/3e/{NODE}.json.tmp") is None
    assert parse_offsets_key(offsets_key("lake", 2**64 - 1)) == 2**64 - 1
    for name in ("7", "000000000000000x", "18446744073709551616", "00000000000000017"):
        assert parse_offsets_key(f"offsets/lake/{name}") is None


@pytest.mark.parametrize("build", [
    lambda: inbox_folder("edge-17"), lambda: node_key("../x"), lambda: gone_key(NODE, 9, 3),
    lambda: gone_key(NODE, 0, 2**64 - 1), lambda: acks_key("lake", "zz"), lambda: acks_key("a/b", "00"),
    lambda: offsets_key("lake", -1), lambda: offsets_key("", 0), lambda: owner_key("nul"),
])  # fmt: skip
def test_invalid_parts_are_refused(build):
    with pytest.raises(UsageError):
        build()


def test_names_of_nodes():
    """They can be part of a key and of a line of text."""
    for name in ("a", "edge-17.plant_3", "_", "x" * 128):
        assert is_node_name(name)
    for name in ("", ".hidden", "a/b", "a b", "x" * 129, "ä", "a\n"):
        assert not is_node_name(name)


def test_keys_of_rejected_segments():
    """Below their batch, and parsed only if they are exactly what is built."""
    key = rejected_key("lake", 3, NODE, 7)
    assert key == f"rejected/lake/0000000000000003/{NODE}-0000000000000007.json"
    assert key.startswith(f"{rejected_folder('lake', 3)}/")
    assert parse_rejected_key(key) == (3, NODE, 7)
    assert quarantine_key(NODE, 7, 0xA1B2C3D4) == f"inbox/{NODE[:2]}/{NODE}/quarantine/0000000000000007-a1b2c3d4.qseg"
    for other in (f"{key}x", key.replace("0000000000000003", "3"), key.replace(NODE, NODE[:-1]), "rejected/lake"):
        assert parse_rejected_key(other) is None
