"""
Process logs and spans with processors of the package and with a custom one, and write JSON lines, each batch once.

    pip install "arrow-quiver[spark]"
    python examples/processor_spark.py [DIRECTORY]

Without a directory, it creates a small buffer first. It writes the output to `<DIRECTORY>.out` and prints a summary.
Run it again with the same directory: it writes only new data.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from sample_telemetry import fill

import quiver.spark
from quiver.spark.exporters.query import start_export
from quiver.spark.exporters.settings import FileSettings
from quiver.spark.processors.chain import UserProcessor
from quiver.spark.processors.settings import (
    AttributeAction,
    AttributesSettings,
    FilterSettings,
    RedactSettings,
    SqlSettings,
)


def with_hour(frame):
    """
    Add the hour of each record.

    A custom processor is any function from a DataFrame to a DataFrame. It must return the same result for the same
    rows, because a batch may be repeated.
    """
    return frame.selectExpr("*", "hour(time) AS hour")


CHAIN = [
    FilterSettings(keep="severity_number >= 17", signals=("logs",)),
    RedactSettings(value_patterns=(r"\S+@\S+",)),
    AttributesSettings((AttributeAction("hash", "user.id"), AttributeAction("insert", "env", value="demo"))),
    UserProcessor(with_hour, signals=("logs",)),
    SqlSettings(
        "SELECT l.body.string_value AS message, s.name, s.duration_nano FROM logs l JOIN spans s USING (trace_id)",
        output="slow_errors",
    ),
]


def main() -> None:
    directory = sys.argv[1] if len(sys.argv) > 1 else str(Path(tempfile.mkdtemp(prefix="quiver-")) / "buffer")
    if len(sys.argv) < 2:
        fill(directory)
    out = Path(f"{directory}.out")
    spark = quiver.spark.session("processors")
    query = start_export(
        spark,
        directory,
        "processor-example",
        FileSettings(str(out)),
        checkpoint=str(out / "_checkpoint"),
        chain=CHAIN,
        trigger={"availableNow": True},
    )
    query.awaitTermination()
    spark.stop()
    for table in sorted({path.parent for path in out.glob("*/*.jsonl")}):
        lines = [line for path in sorted(table.glob("*.jsonl")) for line in path.read_text().splitlines()]
        print(f"{table.name}: {len(lines)} rows, such as {lines[0][:100]}")


if __name__ == "__main__":
    main()
