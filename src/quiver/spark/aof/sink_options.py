"""
The options of the `quiver-aof` sink, read once and refused early. Pure.

==================  =========  =========================================================================
option              default    meaning
==================  =========  =========================================================================
``path``            required   directory of a log, made when missing, or of several with `log`; it may
                               be open in another process
``log``                        the name of one of the logs in it
``maxRecordSize``   64MiB      a larger payload is refused
``txnAppId``                   batch writes: who writes; together with
``txnVersion``                 batch writes: a number that only grows; a write that is repeated is not
==================  =========  =========================================================================

Columns are those of a read: `payload` (binary or string), and where it is there `ext_id`. A record's id and its time
are those of its append: `record_id`, `timestamp` and what `includeMetadata` adds is passed over.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from quiver.aof.format.names import is_stream_name
from quiver.errors import UsageError
from quiver.option_values import bytes_option, transaction_option
from quiver.primitives.batch_notes import BATCH_MAX, ONCE_PREFIX, is_writer
from quiver.settings import MIB

__all__ = ["AofSinkOptions", "check_record_columns", "parse_aof_sink_options"]

_NAMES = ("path", "log", "maxRecordSize", "txnAppId", "txnVersion")
_RECORD_BYTES_DEFAULT = 64 * MIB
_RECORD_BYTES_MAX = 1023 * MIB
"""The largest segment of the default settings has room for no more."""

_LAWFUL = {"payload": ("binary", "string"), "ext_id": ("bigint", "int")}
_PASSED_OVER = ("record_id", "timestamp", "_segment", "_offset", "_timestamp_ns")


@dataclass(frozen=True, slots=True)
class AofSinkOptions:
    """Where rows go. See the table above."""

    path: str
    record_bytes_max: int = _RECORD_BYTES_DEFAULT
    transaction: tuple[str, int] | None = None


def parse_aof_sink_options(options: Mapping[str, str]) -> AofSinkOptions:
    """
    Read the options of one write. Keys may come in any case.

    Raises:
        UsageError: an option is unknown (the nearest known one is named), has a bad value, or contradicts another.
    """
    known = {name.lower(): name for name in _NAMES}
    # Spark hands the checkpoint's place over, too.
    given = {key.lower(): str(value) for key, value in options.items() if key.lower() != "checkpointlocation"}
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {known[near[0]]}?" if near else f"known are {', '.join(_NAMES)}"
            raise UsageError(f"unknown option {key} of the quiver-aof sink; {hint}")
    path = given.get("path", "").removeprefix("file://").rstrip("/")
    if not path:
        raise UsageError('the quiver-aof sink needs the directory of a log: .option("path", "aof/orders")')
    if given.get("log"):
        path = f"{path}/{given['log']}"
    name = given.get("log") or path.rpartition("/")[2]
    if not is_stream_name(name):
        raise UsageError(f"a log cannot be called {name!r}: use up to 64 of A-Z a-z 0-9 _ - and dots inside")
    size_max = bytes_option(given, "maxRecordSize", _RECORD_BYTES_DEFAULT)
    if size_max > _RECORD_BYTES_MAX:
        raise UsageError(f"maxRecordSize: no segment of a log has room for {size_max} bytes")
    return AofSinkOptions(
        path=path,
        record_bytes_max=size_max,
        transaction=transaction_option(given, reserved=ONCE_PREFIX, is_writer=is_writer, version_max=BATCH_MAX),
    )


def check_record_columns(columns: Mapping[str, str]) -> None:
    """
    Refuse rows that are no records. *columns* is name → Spark's word for its type.

    Raises:
        UsageError: a column is missing, unknown, or of another type.
    """
    for name, kind in columns.items():
        if name in _PASSED_OVER:
            continue
        if name not in _LAWFUL:
            raise UsageError(f"column {name} is none of a record; there are {', '.join(_LAWFUL)}")
        if kind not in _LAWFUL[name]:
            raise UsageError(f"column {name} is {kind} where {' or '.join(_LAWFUL[name])} belongs")
    if "payload" not in columns:
        raise UsageError("a record needs a column payload")
