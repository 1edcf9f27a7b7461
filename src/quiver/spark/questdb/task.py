"""In a task: write the rows of a partition to its slot, exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from quiver.errors import UsageError
from quiver.qwp.conf import parse_conf
from quiver.qwp.groups import Group, GroupSent, message_bytes_max, send_group
from quiver.qwp.rows import check_name
from quiver.qwp.settings import SenderSettings
from quiver.qwp.tables import check_columns, encode_slices
from quiver.qwp.wire.message import SymbolIds
from quiver.spark.questdb.options import QuestdbOptions

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["check_write", "send_partition", "settings_of"]


def check_write(options: QuestdbOptions, names: Sequence[str]) -> str:
    """
    Check a write before its tasks start. Return the directory of the slots, from the connect string.

    Raises:
        UsageError: ``sf_dir`` is missing, or the name of the table or of a column is invalid.
        SettingsError: the connect string is invalid.
    """
    settings = settings_of(options, "check", 0)
    check_name("table", options.table, settings.name_bytes_max)
    check_columns(names, symbols=options.symbols, at=options.at, name_bytes_max=settings.name_bytes_max)
    return settings.sf_dir or ""


def settings_of(options: QuestdbOptions, slots: str, partition: int) -> SenderSettings:
    """
    Return the settings of the sender of one partition. All partitions share *slots*.

    Raises:
        UsageError: ``sf_dir`` is missing.
        SettingsError: the connect string is invalid.
    """
    settings = SenderSettings.from_conf(options.conf)
    if settings.sf_dir is None:
        raise UsageError("conf: sf_dir is missing; unconfirmed data is stored below it")
    keys = {key for key, _ in parse_conf(options.conf)[1]}
    base = settings.sender_id if "sender_id" in keys else "spark"
    return replace(
        settings,
        sf_dir=options.sf_dir or settings.sf_dir,
        sender_id=f"{base}-{slots}-p{partition}",
        drain_orphans=settings.drain_orphans or "drain_orphans" not in keys,
    )


def send_partition(
    options: QuestdbOptions, slots: str, partition: int, group: tuple[str, int], batches: Iterator[pa.RecordBatch]
) -> GroupSent:
    """Send the rows of *batches* as the *group* (writer, number) of the partition; see `send_group`."""
    settings = settings_of(options, slots, partition)
    ids = SymbolIds()
    messages = (
        bytes(message)
        for batch in batches
        for message, _ in encode_slices(
            options.table,
            [batch],
            symbols=options.symbols,
            at=options.at,
            message_bytes_max=message_bytes_max(settings),
            dialect=settings.dialect,
            shared=ids,
            name_bytes_max=settings.name_bytes_max,
        )
    )
    return send_group(settings, Group(*group), messages)
