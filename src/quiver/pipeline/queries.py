"""
The queries of the Spark process: one streaming query per route that needs one. It reads all cores of its store.

This module also chooses the checkpoint directory of each query, so that a restart finds it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quiver.pipeline.config.exporter import ParquetExporterConfig, QueryExporterConfig
from quiver.pipeline.config.processor import UserProcessorConfig
from quiver.pipeline.disk import budget_of, buffer_share, dead_letter_share
from quiver.pipeline.model import Buffer, Pipeline, Route, memory_directory
from quiver.settings import MIB
from quiver.store.format.cores import core_directory
from quiver.store.format.names import STORE_ID, progress_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from quiver.delivery.dead_letters import DeadLetters
    from quiver.delivery.exporter_stats import ExporterStats
    from quiver.observe import Observer
    from quiver.spark.exporters.retry_queue import BundleExport
    from quiver.spark.processors.bad_bundle_filter import BadBundleFilter
    from quiver.store.limits.disk_budget import DiskBudget, DiskShare

__all__ = [
    "QueryPlan",
    "RunningQuery",
    "chain_of",
    "export_of",
    "plan_queries",
    "source_options",
    "spark_settings",
    "start_query",
]


STAGED_SHARE = 8
"""A batch takes at most this fraction of the cap of the buffer that it is written to."""
BATCH_BYTES_MIN = 1 * MIB
STREAM_BYTES_MAX = 256 * MIB
"""The default size of a batch of the source."""


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """
    One query.

    Attributes:
        name: the unique name of the query.
        subscriber: the subscriber id that it reads as.
        store_path: the directory of the store.
        registrations: files that exist once the ingest processes have registered the subscriber and created the
            destination store.
        checkpoint: Spark's checkpoint directory.
        route: the route that it implements.
        may_lose: whether policy may drop data before the query has read it; the query then continues without that data.
        stores: the directory of the store of each core, or of the only one.
        dead_letter_share: the share of the disk budget for its dead letters.
        batch_bytes_max: the maximum size of a batch if it is written to a buffer with a cap; None for the default.
    """

    name: str
    subscriber: str
    store_path: str
    registrations: tuple[str, ...]
    checkpoint: str
    route: Route
    may_lose: bool
    stores: tuple[str, ...]
    dead_letter_share: DiskShare | None = None
    batch_bytes_max: int | None = None

    def letters(self, root: str, subscriber: str, *, observer: Observer | None = None) -> DeadLetters:
        """Return the dead letters of the query in the store at *root*."""
        from quiver.delivery.dead_letters import DeadLetters  # noqa: PLC0415 - brings the engine

        settings = self.route.config.dead_letter_policy().settings(len(self.stores))
        return DeadLetters(root, subscriber, settings=settings, observer=observer, share=self.dead_letter_share)


def plan_queries(pipeline: Pipeline, run_dir: Path, *, cores: int | None = None) -> list[QueryPlan]:
    """Return the queries of *pipeline*, in the order of the flow."""
    budget = budget_of(pipeline, cores)
    return [
        replace(_plan(buffer, route, run_dir, cores, budget), batch_bytes_max=_batch_bytes_max(pipeline, route, budget))
        for buffer in pipeline.buffers
        for route in buffer.routes
        if route.is_query
    ]


def _plan(buffer: Buffer, route: Route, run_dir: Path, cores: int | None, budget: DiskBudget | None) -> QueryPlan:
    settings = buffer.config.settings
    store_path = str(Path(buffer.config.path).absolute())
    checkpoint = _checkpoint(buffer, route, run_dir)
    if "://" not in checkpoint:  # a URL names any file system that Hadoop supports
        checkpoint = str(Path(checkpoint).absolute())
    registrations = [f"{store}/{progress_name(route.name)}" for store in _stores(store_path, cores)]
    if route.into is not None:
        into = str(Path(route.config.destination).absolute())
        registrations += [f"{store}/{STORE_ID}" for store in _stores(into, cores)]
    # If policy may drop data that is not exported yet, the export must not stop because of it.
    may_lose = settings.size_cap_policy == "drop_oldest" or settings.max_age_s is not None
    stores = tuple(_stores(store_path, cores))
    share = dead_letter_share(None if buffer.kind == "memory" else budget, buffer.config.path)
    return QueryPlan(
        route.name, route.name, store_path, tuple(registrations), checkpoint, route, may_lose, stores, share
    )


def _batch_bytes_max(pipeline: Pipeline, route: Route, budget: DiskBudget | None) -> int | None:
    """
    Return the maximum size of a batch that is staged in a buffer with a cap: the complete batch is on disk before any
    part of it can be deleted.
    """
    into = next((buffer for buffer in pipeline.buffers if buffer.name == route.into), None)
    if into is None:
        return None
    share = buffer_share(None if into.kind == "memory" else budget, into.config.path)
    caps = [into.config.settings.size_cap_bytes, None if share is None else share.largest_bytes]
    cap = min((one for one in caps if one is not None), default=None)
    return None if cap is None else max(cap // STAGED_SHARE, BATCH_BYTES_MIN)


def _stores(path: str, cores: int | None) -> list[str]:
    return [path] if cores is None else [f"{path}/{core_directory(core)}" for core in range(cores)]


def _checkpoint(buffer: Buffer, route: Route, run_dir: Path) -> str:
    if buffer.kind == "memory":
        # A checkpoint that outlives the store in memory would describe a different store.
        return str(memory_directory(run_dir) / "checkpoints" / route.name)
    config = route.config
    if isinstance(config, ParquetExporterConfig):
        return config.checkpoint_path or str(run_dir / "checkpoints" / route.name)
    given = config.checkpoint if isinstance(config, QueryExporterConfig) else None
    return given or str(run_dir / "checkpoints" / route.name)


def spark_settings(pipeline: Pipeline) -> dict[str, str]:
    """Return the configuration of the Spark session for *pipeline*."""
    is_fair = any(route.strategy == "round_robin" for route in pipeline.routes.values() if route.is_query)
    return pipeline.spark.properties() | {"spark.scheduler.mode": "FAIR" if is_fair else "FIFO"}


def chain_of(route: Route) -> list[Any]:
    """Return the processors of *route* in the form of `quiver.spark.processors.chain.process`."""
    return [
        node.config.load() if isinstance(node.config, UserProcessorConfig) else node.config.settings()
        for node in route.processors
    ]


@dataclass(frozen=True)
class RunningQuery:
    """A running query, and the retry queue of the bundles that its processors failed on."""

    query: StreamingQuery
    bundle_filter: BadBundleFilter

    def close(self) -> None:
        """Release the retry queue, which the next query of this plan needs. Stop the query first."""
        self.bundle_filter.close()


def start_query(
    spark: SparkSession,
    plan: QueryPlan,
    observer: Observer | None = None,
    *,
    stats: ExporterStats | None = None,
    once: bool = False,
) -> RunningQuery:
    """
    Start *plan* in *spark* and return the running query.

    *observer* receives counts of dropped bundles, *stats* those of deliveries and failures. With *once*, the query
    processes the data that exists now and ends.

    Raises:
        UsageError: an option is unknown.
        DirectoryInUseError: an earlier query of this plan was not closed.
        OSError: a directory cannot be created.
    """
    from quiver.spark.bundle_query import start_bundle_query  # noqa: PLC0415 - an extra
    from quiver.spark.processors.bad_bundle_filter import BadBundleFilter  # noqa: PLC0415

    # Each route has its own pool; pools take turns under FAIR and have no effect under FIFO.
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", plan.subscriber)
    config: Any = plan.route.config
    milliseconds = max(round(getattr(config, "trigger", 0.0) * 1000), 1)
    bundle_filter = BadBundleFilter(
        export_of(plan, stats),
        plan.subscriber,
        config.policy(),
        letters=partial(plan.letters, observer=observer),
        fail_on_data_loss=not plan.may_lose,
        store_path=plan.store_path,
        spark=spark,
        observer=observer,
        stats=stats,
    )
    try:
        query = start_bundle_query(
            spark,
            plan.store_path,
            plan.subscriber,
            _only_signals(plan, bundle_filter, observer),
            checkpoint=plan.checkpoint,
            trigger={"availableNow": True} if once else {"processingTime": f"{milliseconds} milliseconds"},
            options=source_options(plan),
            query_name=plan.name,
        )
    except BaseException:
        bundle_filter.close()
        raise
    return RunningQuery(query, bundle_filter)


def _only_signals(
    plan: QueryPlan, each: BadBundleFilter, observer: Observer | None
) -> Callable[[DataFrame, int], None]:
    """Return *each*, which gets only the bundles of the signals that the route takes."""
    from quiver.spark.exporters.signal_batches import SignalBatches  # noqa: PLC0415 - an extra

    signals = plan.route.signals
    return each if signals is None else SignalBatches(each, signals, plan.subscriber, observer)


def source_options(plan: QueryPlan) -> dict[str, str]:
    """Return the options of the source of *plan*: with processors, batches are small enough to isolate bad bundles."""
    from quiver.spark.exporters.query import BATCH_BUNDLES_MAX  # noqa: PLC0415 - an extra

    options = {"failOnDataLoss": "false"} if plan.may_lose else {}
    if isinstance(plan.route.config, ParquetExporterConfig):
        options |= plan.route.config.settings().source_options()
    if plan.batch_bytes_max is not None and plan.batch_bytes_max < STREAM_BYTES_MAX:
        options["maxBytesPerTrigger"] = str(plan.batch_bytes_max)
    if plan.route.processors:
        options["maxBundlesPerTrigger"] = str(BATCH_BUNDLES_MAX)
    return options


def export_of(plan: QueryPlan, stats: ExporterStats | None = None) -> BundleExport:
    """
    Return the exporter of the batches of *plan*, and of single bundles; *stats* counts what it delivers.

    Raises:
        UsageError: an option is unknown.
        OSError: a directory cannot be created.
    """
    from quiver.spark.exporters.parquet import ParquetExporter  # noqa: PLC0415
    from quiver.spark.exporters.query import TableBatches  # noqa: PLC0415 - an extra
    from quiver.spark.exporters.signal_batches import views_of_signals  # noqa: PLC0415
    from quiver.spark.exporters.tables import exporter_of  # noqa: PLC0415
    from quiver.spark.lake.output import configured_output  # noqa: PLC0415

    config: Any = plan.route.config
    # An exporter with a retry policy must not skip bundles silently.
    reading: dict[str, Any] = {"fail_on_data_loss": not plan.may_lose, "skip_undecodable": False}
    views = None if plan.route.signals is None else views_of_signals(plan.route.signals)
    is_parquet = isinstance(config, ParquetExporterConfig)
    if is_parquet and not plan.route.processors:
        parquet = config.settings()
        output = configured_output(parquet)
        output.prepare()
        return ParquetExporter(
            plan.store_path,
            plan.subscriber,
            output,
            compression=parquet.compression,
            stats=stats,
            views=views,
            layout=parquet.layout(),
            **reading,
        )
    exporter = exporter_of(config.settings(), subscriber=plan.subscriber)
    return TableBatches(plan.store_path, exporter, chain=chain_of(plan.route), stats=stats, views=views, **reading)
