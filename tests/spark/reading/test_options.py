"""The options of one load: parsed once, validated early."""

import pytest
from pyspark.sql.types import StructType

from quiver.bundle import BundleRef
from quiver.errors import UsageError
from quiver.spark.aof.source import AofDataSource
from quiver.spark.store.source import QuiverDataSource
from quiver.spark.topics.source import TopicDataSource
from quiver.store.reading.partitions import Limits
from quiver.store.reading.stream_options import parse_options


def test_keys_come_in_any_case():
    """Spark passes keys in lower case."""
    options = parse_options(
        {
            "path": "/b/", "view": "Logs", "maxbundlespertrigger": "5", "startingOffsets": '{"seq":1,"idx":2}',
            "failondataloss": "false", "includeMetadata": "TRUE", "columns": "a, b", "maxBytesPerTrigger": "1 MiB",
        }
    )  # fmt: skip
    assert options.path == "/b"
    assert options.view == "logs"
    assert options.limits == Limits(bundles_max=5, bytes_max=1024 * 1024)
    assert options.starting == BundleRef(1, 2)
    assert options.columns == ("a", "b")
    assert options.include_metadata
    assert not options.fail_on_data_loss


def test_slots_are_selected_by_name_or_number():
    """Both select the same slot of the default adapter."""
    assert parse_options({"path": "b", "slot": "30"}).slot == 30
    assert parse_options({"path": "b", "slot": "logs"}).slot == 30


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"view": "logs"}, "needs the directory"),
        ({"path": "b"}, "needs view"),
        ({"path": "b", "view": "logs", "slot": "30"}, "needs view"),
        ({"path": "b", "view": "traces"}, "logs, spans, metrics"),
        ({"path": "b", "view": "logs", "subscribr": "x"}, "did you mean subscriber"),
        ({"path": "b", "view": "logs", "maxfilespertrigger": "1"}, "did you mean max"),
        ({"path": "b", "view": "logs", "zzz": "1"}, "known are path"),
        ({"path": "b", "view": "logs", "mode": "fast"}, "rows, bundles, ipc"),
        ({"path": "b", "view": "logs", "mode": "bundles"}, "belongs to mode rows"),
        ({"path": "b", "view": "logs", "maxRowsPerTrigger": "0"}, "at least 1"),
        ({"path": "b", "view": "logs", "maxBytesPerTrigger": "lots"}, "not a size"),
        ({"path": "b", "view": "logs", "failOnDataLoss": "yes"}, "neither true nor false"),
        ({"path": "b", "view": "logs", "startingOffsets": "new"}, "startingOffsets"),
        ({"path": "b", "view": "logs", "endingOffsets": "new"}, "endingOffsets"),
        ({"path": "b", "view": "logs", "startingTimestamp": "soon"}, "startingTimestamp"),
        ({"path": "b", "view": "logs", "endingTimestamp": "2026-01-31"}, "endingTimestamp"),
        ({"path": "b", "view": "logs", "startingTimestamp": "1", "startingOffsets": "latest"}, "contradict"),
        ({"path": "b", "view": "logs", "columns": "a,a"}, "different names"),
        ({"path": "b", "slot": "99"}, "0..63"),
        ({"path": "b", "slot": "lags"}, "no slot named"),
        ({"paths": '["a","b"]', "view": "logs"}, "one store"),
    ],
)
def test_wrong_options_are_refused(options, says):
    """Each error names the option and a valid value."""
    with pytest.raises(UsageError, match=says):
        parse_options(options)


@pytest.mark.parametrize(
    ("source", "needed"),
    [
        (QuiverDataSource, {"path": "p", "slot": "30", "subscriber": "s"}),
        (TopicDataSource, {"path": "p", "topic": "a/b"}),
        (AofDataSource, {"path": "p", "log": "l"}),
    ],
)
@pytest.mark.parametrize("option", ["endingOffsets", "endingtimestamp"])
def test_a_stream_with_an_end_is_refused(source, needed, option):
    """A stream would continue after it."""
    made = source({**needed, option: "latest"})
    reader = made.streamReader(schema=StructType())
    with pytest.raises(UsageError, match=r"^ending\w+ is for batch reads"):
        reader.initialOffset()
    with pytest.raises(UsageError, match=r"^ending\w+ is for batch reads"):
        reader.latestOffset()
