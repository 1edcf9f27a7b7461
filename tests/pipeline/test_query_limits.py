"""The limits of a batch of a pipeline's query."""

from pathlib import Path

import pytest

from quiver.pipeline.graph import load_pipeline
from quiver.pipeline.queries import plan_queries, source_options
from quiver.spark.exporters.query import BATCH_BUNDLES_MAX

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(("example", "limit"), [("sql-processor", str(BATCH_BUNDLES_MAX)), ("otlp-to-parquet", None)])
def test_a_batch_with_processors_is_small(example: str, limit: str | None) -> None:
    """So small that bad bundles in it can be found, for any backlog; other batches have no limit."""
    path = EXAMPLES / f"{example}.yaml"
    pipeline, _ = load_pipeline(path.read_text(), source=str(path), values={})
    limits = {source_options(plan).get("maxBundlesPerTrigger") for plan in plan_queries(pipeline, Path("run"))}
    assert limit in limits
    assert limits <= {limit, None}
