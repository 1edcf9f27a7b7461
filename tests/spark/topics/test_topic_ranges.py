"""Offsets, options and ranges of topics for Spark, without Spark."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.errors import UsageError
from quiver.pipeline.graph import load_pipeline
from quiver.spark.topics.offsets import BEGINNING, offsets_from_json, offsets_to_json, parse_bound
from quiver.spark.topics.options import parse_topic_options
from quiver.topics.reading.ranges import Stretch, TopicLimits, pack_stretches, reach, shared_limits


def test_offsets_round_trip():
    """Their text is always the same, for any order of the topics."""
    offsets = {"b/b": 3, "a/a": BEGINNING}
    assert json.dumps(offsets_to_json(offsets)) == '{"v": 1, "topics": {"a/a": -1, "b/b": 3}}'
    assert offsets_from_json(offsets_to_json(offsets)) == offsets


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("x", "not an offset of the quiver-topic source"),
        ({"v": 2, "topics": {}}, "version 2"),
        ({"v": 1, "topics": {"a/a": -2}}, "not an offset"),
        ({"v": 1, "topics": {"a/a": True}}, "not an offset"),
        ({"v": 1, "topics": {"a": 1}}, "not a topic"),
        ({"v": 1, "store": "5c", "seq": 1, "idx": 0}, "not an offset"),
    ],
)
def test_other_offsets_are_refused(value, says):
    """Also offsets of another source."""
    with pytest.raises(UsageError, match=says):
        offsets_from_json(value)


@pytest.mark.parametrize(
    ("text", "bound"),
    [("Earliest", "earliest"), (" latest ", "latest"), ("12", 12), ('{"a/b": 7, "/c/d": 0}', {"a/b": 7, "c/d": 0})],
)
def test_bounds_are_parsed(text, bound):
    assert parse_bound(text, option="startingOffsets") == bound


@pytest.mark.parametrize("text", ["", "-1", "1.5", "true", '{"a/b": -1}', '{"a/b": "x"}', "soon"])
def test_invalid_bounds_are_refused(text):
    with pytest.raises(UsageError, match="startingOffsets"):
        parse_bound(text, option="startingOffsets")


def test_options_are_parsed():
    """Keys in upper or lower case; missing options have their defaults."""
    options = parse_topic_options(
        {"PATH": "file:///t/", "topic": "/a/b, c/d", "maxbytespertrigger": "1MiB", "maxOffsetsPerTrigger": "9"}
    )
    assert options.place.root == "/t"
    assert options.topics == ("a/b", "c/d")
    assert options.limits == TopicLimits(9, 1024 * 1024)
    assert (options.starting, options.ending, options.fail_on_data_loss) == ("earliest", "latest", True)
    assert parse_topic_options({"path": "t", "topic": "default/*"}).pattern == "default/*"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"path": "t"}, "needs a topic"),
        ({"topic": "a/b"}, "needs the directory"),
        ({"path": "t", "topic": "a/b", "topics": "x"}, "did you mean topic"),
        ({"path": "t", "topic": "a"}, "not a topic"),
        ({"path": "t", "topic": "a/b,a/b"}, "twice"),
        ({"path": "t", "topic": "a/*,c/d"}, "not a valid pattern"),
        ({"path": "t", "topic": "a/b", "metadata": "sqlite:///x"}, "give objects, too"),
        ({"objects": "o", "metadata": "sqlite:///m", "topic": "a/b", "subscription": "s"}, "needs path"),
        ({"objects": "o", "metadata": "sqlite:///m", "topic": "a/*"}, "needs path"),
        ({"path": "t", "topic": "a/b", "minPartitions": "0"}, "minPartitions"),
        ({"path": "t", "topic": "a/b", "maxBytesPerTrigger": "lots"}, "maxBytesPerTrigger"),
        ({"path": "t", "topic": "a/b", "includeMetadata": "maybe"}, "includeMetadata"),
        ({"path": "t", "topic": "a/b", "subscription": "a b"}, "not a subscription name"),
        ({"path": "t", "topic": "a/b", "fileName": "x.tmp"}, "cannot name log files"),
        ({"path": "t", "topic": "a/b", "columns": "offset,value"}, "no column 'value'"),
        ({"path": "t", "topic": "a/b", "columns": "offset,offset"}, "is repeated"),
        ({"path": "t", "topic": "a/b", "startingTimestamp": "noon"}, "startingTimestamp"),
        ({"path": "t", "topic": "a/b", "endingTimestamp": "0", "endingOffsets": "1"}, "contradict"),
    ],
)
def test_invalid_options_are_refused(given, says):
    """The error has a valid example."""
    with pytest.raises(UsageError, match=says):
        parse_topic_options(given)


def test_credentials_are_not_shown():
    options = parse_topic_options({"path": "t", "topic": "a/b", "objects": '{"options": {"secret_key": "hush"}}'})
    assert "hush" not in repr(options)


STRETCHES = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50_000_000)), max_size=12).map(
    lambda sizes: [
        Stretch("a/b", sum(n for n, _ in sizes[:at]), sum(n for n, _ in sizes[: at + 1]), size)
        for at, (_, size) in enumerate(sizes)
    ]
)


@given(STRETCHES, st.integers(1, 8), st.integers(0, 20))
def test_packing_divides_messages_over_tasks(stretches, parallelism, least):
    """Every message is in exactly one task, in order; the number of tasks is as requested, if possible."""
    parts = pack_stretches(stretches, parallelism=parallelism, partitions_min=least)
    assert all(parts)
    met = [offset for part in parts for one in part for offset in range(one.start, one.stop)]
    assert met == list(range(len(met)))
    assert len(met) == sum(one.stop - one.start for one in stretches)
    assert len(parts) >= min(least, len(met))
    assert len(parts) <= max(parallelism, least, 1)


def test_large_topics_are_divided():
    """By bytes, at positions where a read may start."""
    stretches = [Stretch("a/b", at * 10, at * 10 + 10, 16 * 1024 * 1024, (0, at * 10, at)) for at in range(8)]
    assert pack_stretches(stretches, parallelism=2) == [
        (Stretch("a/b", 0, 40, 64 * 1024 * 1024, (0, 0, 0)),),
        (Stretch("a/b", 40, 80, 64 * 1024 * 1024, (0, 40, 4)),),
    ]


@given(STRETCHES, st.integers(1, 100), st.integers(1, 10_000_000))
def test_limits_end_a_batch(stretches, count, size):
    """A batch has at least one message, and no more than either limit allows by the averages."""
    tip = stretches[-1].stop if stretches else 0
    end = reach(stretches, 0, TopicLimits(count, size))
    assert min(1, tip) <= end <= min(tip, count)
    taken = sum(one.size_bytes * max(0, min(end, one.stop) - one.start) / (one.stop - one.start) for one in stretches)
    assert end <= 1 or taken <= size + 1
    assert reach(stretches, 0, TopicLimits()) == tip


def test_limits_are_divided_by_lag():
    shared = shared_limits(TopicLimits(100, None), {"a/a": 300, "b/b": 100, "c/c": 0, "d/d": 1})
    assert shared == {"a/a": TopicLimits(74), "b/b": TopicLimits(24), "d/d": TopicLimits(1)}


def test_the_page_lists_every_option():
    """And no other."""
    page = (Path(__file__).parents[3] / "docs/howto/topics.md").read_text()
    table = page.partition("## On Spark")[2].partition("| option |")[2].partition("\n\n")[0]
    named = re.findall(
        r"`(\w+)`", " ".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    )
    with pytest.raises(UsageError, match="known are") as caught:
        parse_topic_options({"zzzzzzzzzzzz": "1"})
    assert sorted(named) == sorted(str(caught.value).partition("known are ")[2].split(", "))


def test_the_pipeline_of_the_page_is_valid():
    page = (Path(__file__).parents[3] / "docs/howto/topics.md").read_text()
    (text,) = re.findall(r"^```yaml\n(nodes:.*?)^```$", page, re.MULTILINE | re.DOTALL)
    pipeline, _ = load_pipeline(text, source="topics.md", values={})
    assert [name for name, _ in pipeline.exporters] == ["to_topic"]
