"""
The options of the `quiver` sink, parsed once and rejected early. Pure.

==================  =========  =========================================================================
option              default    meaning
==================  =========  =========================================================================
``path``            required   directory of the store; created if missing, may be open in another process
``slot``                       a slot by number or name: its rows are stored as they are
``view``                       logs, spans or metrics: rows of that view become OTLP requests again
``mode``            rows       rows, or ipc: rows of a read of mode ipc, which are complete bundles
``maxBundleRows``   8192       maximum rows of one bundle
``maxBundleBytes``  1MiB       approximate bytes of one bundle; a row is never split
``compression``     none       of the segments: none, lz4 or zstd
``timeout``         60s        how long a task waits for space in a store at its cap before it fails
``txnAppId``                   batch writes: the name of the writer; needs
``txnVersion``                 batch writes: a number that only grows; a repeated write changes nothing
==================  =========  =========================================================================

Everything is synced before it is committed; no weaker mode exists. A streaming query is identified by its id and its
batches by their numbers, so exactly-once needs only its checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast, get_args

from quiver.bundle import OTAP
from quiver.errors import SettingsError, UsageError
from quiver.option_values import bytes_option, count_option, refuse_unknown_options, transaction_option
from quiver.primitives.batch_notes import BATCH_MAX, is_writer
from quiver.settings import Compression, parse_duration_s
from quiver.store.reading.stream_options import VIEWS

__all__ = ["SinkOptions", "parse_sink_options"]

_NAMES = (
    "path", "slot", "view", "mode", "maxBundleRows", "maxBundleBytes", "compression", "timeout", "txnAppId",
    "txnVersion",
)  # fmt: skip

_KNOWN = {name.lower(): name for name in _NAMES}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """How rows become bundles, and their destination. See the table above."""

    path: str
    slot: int | None = None
    view: str | None = None
    mode: Literal["rows", "ipc"] = "rows"
    bundle_rows_max: int = 8192
    bundle_bytes_max: int = 1024 * 1024
    compression: Compression = "none"
    timeout_s: float = 60.0
    transaction: tuple[str, int] | None = None


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """
    Read the options of one write. Keys may come in any case.

    Raises:
        UsageError: an option is unknown (the nearest known one is named), has a bad value, or contradicts another.
    """
    given = {key.lower(): str(value) for key, value in options.items()}
    given.pop("checkpointlocation", None)  # Spark passes its own option, too
    refuse_unknown_options(given, _KNOWN, "quiver sink")
    path = given.get("path", "").removeprefix("file://")
    if not path:
        raise UsageError('the quiver sink needs the directory of a store: .option("path", "buffer/")')
    mode = given.get("mode", "rows").lower()
    view = given.get("view")
    if mode not in {"rows", "ipc"}:
        raise UsageError(f"mode: {mode!r} is not one of rows, ipc")
    if view is not None and view not in VIEWS:
        raise UsageError(f"view: {view!r} is not one of {', '.join(VIEWS)}")
    if (mode == "rows") != ((view is None) != ("slot" not in given)):
        raise UsageError("mode rows needs either slot (a number or a name) or view; mode ipc has its own slots")
    compression = given.get("compression", "none").lower()
    if compression not in get_args(Compression):
        raise UsageError(f"compression: {compression!r} is not one of {', '.join(get_args(Compression))}")
    slot = given.get("slot")
    return SinkOptions(
        path=path.rstrip("/") or "/",
        slot=None if slot is None else OTAP.slot(int(slot) if slot.isdecimal() else slot),
        view=view,
        mode="ipc" if mode == "ipc" else "rows",
        bundle_rows_max=count_option(given, "maxBundleRows") or 8192,
        bundle_bytes_max=bytes_option(given, "maxBundleBytes", 1024 * 1024),
        compression=cast("Compression", compression),
        timeout_s=_timeout_s(given.get("timeout", "60s")),
        transaction=transaction_option(given, reserved="job-", is_writer=is_writer, version_max=BATCH_MAX),
    )


def _timeout_s(text: str) -> float:
    try:
        return parse_duration_s(text, key="timeout")
    except SettingsError as error:
        raise UsageError(str(error)) from error
