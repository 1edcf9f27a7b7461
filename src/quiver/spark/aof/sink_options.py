"""
The options of the `quiver-aof` sink, parsed once and rejected early. Pure.

==================  =========  =========================================================================
option              default    meaning
==================  =========  =========================================================================
``path``            required   directory of a log, created if missing, or of several with `log`; it may
                               be open in another process
``log``                        the name of one of these logs
``maxRecordSize``   64MiB      a larger payload is rejected
``txnAppId``                   batch writes: the name of the writer; needs
``txnVersion``                 batch writes: a number that only grows; a repeated write changes nothing
==================  =========  =========================================================================

The columns are those of a read: `payload` (binary or string), and optionally `ext_id`. A record gets its id and time
when it is appended: `record_id`, `timestamp` and the columns of `includeMetadata` are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quiver.aof.format.names import is_stream_name
from quiver.errors import UsageError
from quiver.option_values import bytes_option, refuse_unknown_options, transaction_option
from quiver.primitives.batch_notes import BATCH_MAX, ONCE_PREFIX, is_writer
from quiver.settings import MIB

__all__ = ["AofSinkOptions", "check_record_columns", "parse_aof_sink_options"]

_NAMES = ("path", "log", "maxRecordSize", "txnAppId", "txnVersion")
_KNOWN = {name.lower(): name for name in _NAMES}
_RECORD_BYTES_DEFAULT = 64 * MIB
_RECORD_BYTES_MAX = 1023 * MIB
"""A larger record does not fit into a segment of the default settings."""

_ALLOWED_TYPES = {"payload": ("binary", "string"), "ext_id": ("bigint", "int")}
_PASSED_OVER = ("record_id", "timestamp", "_segment", "_offset", "_timestamp_ns")


@dataclass(frozen=True, slots=True)
class AofSinkOptions:
    """The destination of rows. See the table above."""

    path: str
    record_bytes_max: int = _RECORD_BYTES_DEFAULT
    transaction: tuple[str, int] | None = None


def parse_aof_sink_options(options: Mapping[str, str]) -> AofSinkOptions:
    """
    Read the options of one write. Keys may come in any case.

    Raises:
        UsageError: an option is unknown (the nearest known one is named), has a bad value, or contradicts another.
    """
    # Spark passes the checkpoint's location, too.
    given = {key.lower(): str(value) for key, value in options.items() if key.lower() != "checkpointlocation"}
    refuse_unknown_options(given, _KNOWN, "quiver-aof sink")
    path = given.get("path", "").removeprefix("file://").rstrip("/")
    if not path:
        raise UsageError('the quiver-aof sink needs the directory of a log: .option("path", "aof/orders")')
    if given.get("log"):
        path = f"{path}/{given['log']}"
    name = given.get("log") or path.rpartition("/")[2]
    if not is_stream_name(name):
        raise UsageError(f"a log cannot be named {name!r}: use up to 64 of A-Z a-z 0-9 _ - and dots inside")
    size_max = bytes_option(given, "maxRecordSize", _RECORD_BYTES_DEFAULT)
    if size_max > _RECORD_BYTES_MAX:
        raise UsageError(f"maxRecordSize: {size_max} bytes do not fit into a segment")
    return AofSinkOptions(
        path=path,
        record_bytes_max=size_max,
        transaction=transaction_option(given, reserved=ONCE_PREFIX, is_writer=is_writer, version_max=BATCH_MAX),
    )


def check_record_columns(columns: Mapping[str, str]) -> None:
    """
    Reject rows that are not records. *columns* maps names to Spark's type names.

    Raises:
        UsageError: a column is missing, unknown, or of another type.
    """
    for name, kind in columns.items():
        if name in _PASSED_OVER:
            continue
        if name not in _ALLOWED_TYPES:
            raise UsageError(f"column {name} is not a column of a record; the columns are {', '.join(_ALLOWED_TYPES)}")
        if kind not in _ALLOWED_TYPES[name]:
            raise UsageError(f"column {name} is {kind}, but must be {' or '.join(_ALLOWED_TYPES[name])}")
    if "payload" not in columns:
        raise UsageError("a record needs a column payload")
