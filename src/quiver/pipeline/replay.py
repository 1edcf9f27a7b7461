"""
Dead letters of an exporter on Spark, exported once more: through the processors as the pipeline file has them now.

::

    letter ─▶ a store of its own, for a moment ─▶ the exporter, as a bundle by itself ─▶ dropped by who asked

It has the name under which the exporter would have exported it by itself, so that a letter of which it is not known
whether it was exported is not exported twice where that can be.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from quiver.bundle import Bundle, BundleRef
from quiver.delivery.dead_letters import DeadLetter
from quiver.delivery.policy import Delivered, Outcome, Permanent, Transient
from quiver.errors import WrongUse
from quiver.pipeline.graph import Pipeline
from quiver.pipeline.queries import export_of, plan_queries, spark_settings
from quiver.primitives.real_files import REAL_FILES
from quiver.store.opening import open_store
from quiver.store.roster import find_segments

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LetterExport"]

_HOLDER = "replay"
"""The subscriber of the store for a moment: without one it might free what it holds."""


class LetterExport:
    """
    Exports letters as the exporter *name* of *pipeline* does. A context manager, with a Spark session of its own where
    none is active.

    Args:
        pipeline: as checked.
        name: the exporter, which is a query of the Spark process.

    Raises:
        WrongUse: there is no such exporter, or it cannot be made.
        QuiverError: there is no Java.
    """

    def __init__(self, pipeline: Pipeline, name: str) -> None:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

        from quiver.spark import session  # noqa: PLC0415

        plans = {plan.name: plan for plan in plan_queries(pipeline, Path())}
        if name not in plans:
            raise WrongUse(
                f"{pipeline.source} has no exporter {name} on Spark; there are: {', '.join(plans) or 'none'}"
            )
        self._name = name
        self._export = export_of(plans[name])
        logging.getLogger("py4j").setLevel(logging.WARNING)
        self._is_own = SparkSession.getActiveSession() is None
        self._spark = session(app_name=f"quiver replay {name}", config=spark_settings(pipeline))

    def deliver(self, root: str, letter: DeadLetter) -> Outcome:
        """
        Export one letter of the store at *root*; say what became of it.
        """
        from quiver.spark.held import names_apart, told, undecodable  # noqa: PLC0415 - an extra

        if not letter.bundle.slots:
            return Permanent("EMPTY", "the bundle could not be read when it was given up")
        reason = undecodable(letter.bundle)
        if reason is not None:
            return Permanent("UNDECODABLE", reason)
        (name,) = names_apart(self._name, [(root, letter.ref)])
        with tempfile.TemporaryDirectory(prefix="quiver-replay-") as place:
            try:
                self._export.apart(self._spark, _sealed(place, letter.bundle), name)
            except Exception as error:  # noqa: BLE001 - the edge: Spark, processors and sinks raise many kinds
                return Transient(type(error).__name__, told(error))
        return Delivered()

    def close(self) -> None:
        """
        End the session, if it is its own. Idempotent.
        """
        if self._is_own:
            self._spark.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _sealed(place: str, bundle: Bundle) -> pa.Table:
    """
    Seal *bundle* as the only one of a store at *place*; return its descriptor.
    """
    from quiver.spark.held import row_of  # noqa: PLC0415 - an extra

    with open_store(place, adapter=bundle.adapter, background=False) as store:
        store.register(_HOLDER, start="earliest")
        store.activate()
        store.ingest(Bundle(dict(bundle.batches), adapter=bundle.adapter))
        store.flush()
    (info,) = find_segments(REAL_FILES, place).infos
    return row_of(place, BundleRef(info.seq, 0), bundle)
