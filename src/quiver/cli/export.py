"""`quiver export DIR --slot … --to FILE`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from quiver.cli.console.output import JsonFlag, human_bytes, print_json
from quiver.counted import counted
from quiver.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from quiver.store.reading.query.time_range import By
    from quiver.store.reading.read import StoreReader

__all__ = ["export"]

TimeRange = tuple[datetime | None, datetime | None]
"""Times from the first (inclusive) to the second (exclusive); None means unbounded."""


def export(
    directory: Annotated[Path, typer.Argument(help="A store's directory.")],
    to: Annotated[Path, typer.Option("--to", help="The file to write: .parquet, .arrow or .jsonl.")],
    slot: Annotated[str | None, typer.Option(help="The name or number of the slot.")] = None,
    view: Annotated[str | None, typer.Option(help="logs, spans or metrics: flat rows of OTLP requests.")] = None,
    table: Annotated[str | None, typer.Option(help="The name of a table sent by QuestDB clients.")] = None,
    columns: Annotated[str | None, typer.Option(help="Only these columns, comma-separated.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", "--start", help="Only data from this time on; 90m means 90 minutes ago.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", "--end", help="Only data before this time.")] = None,
    by: Annotated[
        str, typer.Option(help="The times of --since and --until: ingested, or event for those in the rows.")
    ] = "ingested",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    file_mode: Annotated[
        str | None,
        typer.Option("--file-mode", help="The file mode, such as 0600.  [default: 0640 and the umask]"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """
    Write all rows of one slot, one view or one table to a file.

    Read-only; safe while a writer runs. The file appears complete or not at all. Memory use is low. Exits with 1 if
    data were left out because they are damaged.
    """
    from quiver.cli.console.progress import ProgressDisplay  # noqa: PLC0415 - keeps `--help` quick
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.reading.export import export as write  # noqa: PLC0415
    from quiver.store.reading.export import format_of  # noqa: PLC0415
    from quiver.store.reading.read import read  # noqa: PLC0415

    kind = format_of(str(to))
    if to.exists() and not force:
        raise UsageError(f"{to} exists; use --force to replace it")
    if not to.parent.is_dir():
        raise UsageError(f"{to.parent} does not exist")
    mode = None if file_mode is None else _mode_of(file_mode)
    if [slot, view, table].count(None) != 2:
        raise UsageError(
            "give what to export: --slot logs, --view logs for the rows of OTLP requests, or --table trades for "
            "those of a QuestDB client"
        )
    wanted = None if columns is None else [name.strip() for name in columns.split(",")]
    reader = read(directory)
    span = _span(since, until, SYSTEM_CLOCK.now_ns())
    times: By = cast("By", by)  # checked by the scan
    schema, batches = (
        _rows_of_view(reader, view, wanted, span, times)
        if view is not None
        else _rows_of_slot(reader, slot, table, wanted, span, times)
    )
    with ProgressDisplay("writing") as progress:
        done = write(REAL_FILES, str(to), kind, schema, _counted(batches, progress, str(to)), file_mode=mode)
    problems = sorted(map(str, reader.problems))
    if as_json:
        print_json({"path": done.path, "rows": done.rows, "size_bytes": done.size_bytes, "problems": problems})
    else:
        typer.echo(f"{done.path}: {counted(done.rows, 'row')}, {human_bytes(done.size_bytes)}")
        for problem in problems:
            typer.echo(f"left out: {problem}", err=True)
    if problems:
        raise typer.Exit(1)


def _mode_of(text: str) -> int:
    if re.fullmatch("0?[0-7]{3}", text) is None or int(text, 8) & 0o711 != 0o600:
        raise UsageError(f"--file-mode {text}: write 0600 to 0666, without bits to execute")
    return int(text, 8)


def _counted(
    batches: Iterator[pa.RecordBatch], on_progress: Callable[[str], None], where: str
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        on_progress(where)
        yield batch


def _span(since: str | None, until: str | None, now_ns: int) -> TimeRange:
    from quiver.cli.console.instants import parse_instant  # noqa: PLC0415

    def bound(text: str | None, option: str) -> datetime | None:
        return None if text is None else parse_instant(text, option=option, now_ns=now_ns)

    return bound(since, "--since"), bound(until, "--until")


def _rows_of_slot(
    reader: StoreReader, slot: str | None, table: str | None, columns: Sequence[str] | None, span: TimeRange, by: By
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    import pyarrow as pa  # noqa: PLC0415

    from quiver.bundle import QWP_SLOT  # noqa: PLC0415
    from quiver.store.reading.export import plain_schema  # noqa: PLC0415
    from quiver.store.segment.cast import cast_to_schema  # noqa: PLC0415

    if slot is None:
        number: int | str = QWP_SLOT
    else:
        number = int(slot) if slot.isascii() and slot.isdigit() else slot
    scan = reader.scan(number, columns, *span, by=by, table=table)
    if all(pa.types.is_null(kind) for kind in scan.schema.types):
        if table is not None:
            raise UsageError(
                f"no bundle has rows of a table {table!r}; there are {', '.join(reader.tables()) or 'none'}"
            )
        raise UsageError(f"no bundle has slot {slot}; {_sealed(_present(reader))}")
    schema = plain_schema(scan.schema)
    return schema, (cast_to_schema(batch, schema) for batch in scan)


def _present(reader: StoreReader) -> list[int]:
    return sorted({stream.slot for segment in reader.statistics() for stream in segment.streams})


def _sealed(slots: Sequence[int]) -> str:
    from quiver.bundle import OTAP  # noqa: PLC0415

    known = ", ".join(f"{number} ({OTAP.slots.get(number, 'no name')})" for number in slots)
    return f"sealed are {known or 'none yet'}"


def _rows_of_view(
    reader: StoreReader, view: str, columns: Sequence[str] | None, span: TimeRange, by: By
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the view's schema and rows; unreadable requests are added to the problems of *reader*."""
    from quiver.otap.stored import slots_of_view, stored_requests  # noqa: PLC0415

    scan = reader.scan(None, columns, *span, by=by, view=view)

    def rows() -> Iterator[pa.RecordBatch]:
        is_there = False
        for batch in scan:
            is_there = True
            yield batch
        if is_there:
            return
        # Other programs may store other batches in the slots of OTAP tables.
        bundles = (bundle for _, bundle in reader.bundles(slots_of_view(view)))
        requests = (request for bundle in bundles for request in stored_requests(bundle.batches, view))
        if next(requests, None) is None:
            raise UsageError(f"no bundle has OpenTelemetry {view}; {_sealed(_present(reader))}")

    return scan.schema, rows()
