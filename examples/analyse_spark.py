# %% [markdown]
# # Analyse a buffer with Spark
#
# A notebook in plain Python. Run it cell by cell in an editor that supports `# %%`, or run all of it:
#
#     pip install "arrow-quiver[spark]"
#     python examples/analyse_spark.py [DIRECTORY]
#
# It reads a buffer of OpenTelemetry data while its writer runs, and consumes nothing. Without a directory, it creates a
# small buffer first.

# %%
from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pyarrow as pa
from sample_telemetry import fill

import quiver.spark

buffer = sys.argv[1] if len(sys.argv) > 1 else str(Path(tempfile.mkdtemp(prefix="quiver-")) / "buffer")
if len(sys.argv) < 2:
    fill(buffer)
spark = quiver.spark.session("analysis")


def view(name: str):
    return spark.read.format("quiver").option("path", buffer).option("view", name).load()


# %% [markdown]
# ## Bundles and rows by slot
# The descriptors contain the counts, so no data is decoded, regardless of the size of the buffer.

# %%
bundles = spark.read.format("quiver").option("path", buffer).option("mode", "bundles").option("includeMetadata", "true")
bundles.load().createOrReplaceTempView("bundles")
spark.sql(
    "SELECT slot, count(*) AS bundles, sum(rows) AS rows FROM (SELECT explode(rows) AS (slot, rows) FROM bundles) "
    "GROUP BY slot ORDER BY slot"
).show()

# %% [markdown]
# ## Log records by service
# A view is a table with a row for each log record. Attributes are maps of typed values.

# %%
view("logs").createOrReplaceTempView("logs")
errors = spark.sql(
    """
    SELECT resource_attributes['service.name'].string_value AS service, severity_text, count(*) AS records
    FROM logs GROUP BY ALL ORDER BY records DESC, service
    """
)
errors.show()

# %% [markdown]
# ## The slowest requests, with their log messages
# Join the logs and spans of a trace.

# %%
view("spans").createOrReplaceTempView("spans")
slow = spark.sql(
    """
    SELECT s.name, s.duration_nano / 1e6 AS millis, collect_list(l.body.string_value) AS messages
    FROM spans s LEFT JOIN logs l USING (trace_id)
    GROUP BY s.trace_id, s.name, s.duration_nano ORDER BY s.duration_nano DESC LIMIT 3
    """
)
slow.show(truncate=False)

# %% [markdown]
# ## Complete bundles
# `map_bundles` opens bundles in the tasks, with the types that they were stored in. This is the fastest way to read all
# data.


# %%
def sizes(ref, bundle):
    rows = [{"segment": ref.segment, "slot": slot, "bytes": batch.nbytes} for slot, batch in bundle.batches.items()]
    return pa.RecordBatch.from_pylist(rows)


described = spark.read.format("quiver").option("path", buffer).option("mode", "bundles").load()
batches = quiver.spark.map_bundles(described, sizes, "segment long, slot int, bytes long")
batches.groupBy("slot").sum("bytes").orderBy("slot").show()

# %%
spark.stop()
