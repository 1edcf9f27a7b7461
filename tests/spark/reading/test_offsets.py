"""Positions in a store, and their format in a checkpoint."""

import json

import pytest

from quiver.bundle import BundleRef
from quiver.errors import DataLossError, UsageError
from quiver.store.reading.offsets import StreamOffset, parse_starting


def test_the_text_spark_compares_never_changes():
    """The keys have one order, and an offset contains nothing else."""
    offset = StreamOffset("5c0f", BundleRef(12, 3))
    assert json.dumps(offset.to_json()) == '{"v": 1, "store": "5c0f", "seq": 12, "idx": 3}'
    assert StreamOffset.from_json(offset.to_json()) == offset


def test_positions_order_by_segment_then_bundle():
    """For any index."""
    assert BundleRef(1, 9) < BundleRef(2, 0) < BundleRef(2, 1)


@pytest.mark.parametrize(
    "value",
    [
        None, [], "x", {}, {"v": 2, "store": "a", "seq": 0, "idx": 0}, {"v": 1, "seq": 0, "idx": 0},
        {"v": 1, "store": "a", "seq": -1, "idx": 0}, {"v": 1, "store": "a", "seq": True, "idx": 0},
        {"v": 1, "store": "a", "seq": 1.5, "idx": 0}, {"v": 1, "store": "a", "seq": 2**63, "idx": 0},
        {"v": 1, "store": "a", "idx": 0},
    ],
)  # fmt: skip
def test_a_foreign_checkpoint_is_refused(value):
    """Another value is never accepted as an offset of this source."""
    with pytest.raises(UsageError):
        StreamOffset.from_json(value)


def test_another_store_is_refused_and_an_unknown_one_is_not():
    """A checkpoint is valid for one store only, if the store has an identity."""
    offset = StreamOffset("aaa", BundleRef(0, 0))
    offset.check_store("aaa", "p")
    offset.check_store("unknown", "p")
    StreamOffset("unknown", BundleRef(0, 0)).check_store("bbb", "p")
    with pytest.raises(DataLossError, match=r"belongs to store aaa, but bbb is here"):
        offset.check_store("bbb", "p")


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("earliest", "earliest"), (" Latest ", "latest"), ('{"seq":12,"idx":3}', BundleRef(12, 3)),
        ('{"seq": 4}', BundleRef(4, 0)), ('{"v":1,"store":"x","seq":1,"idx":2}', BundleRef(1, 2)),
    ],
)  # fmt: skip
def test_starting_offsets_are_a_word_or_a_position(text, meaning):
    """A complete offset copied from a progress report works as well as a bare position."""
    assert parse_starting(text) == meaning


@pytest.mark.parametrize("text", ["", "newest", "[]", "12", '{"idx":1}', '{"seq":-1}', "{"])
def test_anything_else_is_refused_with_an_example(text):
    """The error contains an example."""
    with pytest.raises(UsageError, match=r"earliest|integers"):
        parse_starting(text)
