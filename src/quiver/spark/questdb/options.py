"""
The options of the `questdb` sink, parsed once and rejected early. Pure.

==================  =========  =========================================================================
option              default    meaning
==================  =========  =========================================================================
``conf``            required   a connect string: ``ws::addr=host:9000;sf_dir=sf;…``
``table``           required   the destination table
``symbols``                    comma-separated names of string columns to send as symbols
``at``                         the column that is the designated timestamp; without it the server's clock
``txnAppId``                   batch writes: the name of the writer; needs
``txnVersion``                 batch writes: a number that only grows; a repeated write changes nothing
==================  =========  =========================================================================

The connect string needs `sf_dir`, a directory that each executor may write to. The names of slots begin
with its `sender_id`. Other slots below `sf_dir` are drained, too, unless it has ``drain_orphans=off``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quiver.errors import UsageError
from quiver.option_values import refuse_unknown_options

__all__ = ["QuestdbOptions", "parse_questdb_options"]

_NAMES = ("conf", "table", "symbols", "at", "txnAppId", "txnVersion")
_KNOWN = {name.lower(): name for name in _NAMES}
_OF_SPARK = ("checkpointlocation", "path")


@dataclass(frozen=True, slots=True)
class QuestdbOptions:
    """The destination of rows. See the table above."""

    conf: str
    table: str
    symbols: tuple[str, ...] = ()
    at: str | None = None
    transaction: tuple[str, int] | None = None
    sf_dir: str | None = None
    """From the connect string, made absolute: tasks may run with another working directory."""

    def __repr__(self) -> str:
        # The connect string may contain a password.
        return f"QuestdbOptions(table={self.table!r}, symbols={self.symbols!r}, at={self.at!r})"


def parse_questdb_options(options: Mapping[str, str]) -> QuestdbOptions:
    """
    Read the options of one write. Keys may come in any case.

    Raises:
        UsageError: an option is unknown (the nearest known one is named), missing, or has a bad value.
    """
    given = {key.lower(): str(value) for key, value in options.items() if key.lower() not in _OF_SPARK}
    refuse_unknown_options(given, _KNOWN, "questdb sink")
    if not given.get("conf"):
        raise UsageError('the questdb sink needs a connect string: .option("conf", "ws::addr=host:9000;sf_dir=sf;")')
    if not given.get("table"):
        raise UsageError('the questdb sink needs a table: .option("table", "trades")')
    symbols = tuple(name.strip() for name in given["symbols"].split(",")) if given.get("symbols") else ()
    if "" in symbols or len(set(symbols)) != len(symbols):
        raise UsageError("symbols is a comma-separated list of different names")
    return QuestdbOptions(given["conf"], given["table"], symbols, given.get("at") or None, _transaction(given))


def _transaction(given: Mapping[str, str]) -> tuple[str, int] | None:
    writer, version = given.get("txnappid"), given.get("txnversion")
    if writer is None and version is None:
        return None
    if not writer or version is None:
        raise UsageError("set both txnAppId and txnVersion: the writer, and the number of its write")
    if not version.isdecimal():
        raise UsageError(f"txnVersion: {version!r} is not a non-negative integer")
    return writer, int(version)
