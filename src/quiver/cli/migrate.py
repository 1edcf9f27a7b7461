"""`quiver migrate DIR --profile otap|spec`."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quiver.cli.console.output import JsonFlag, print_json, print_table
from quiver.errors import QuiverError, UsageError

if TYPE_CHECKING:
    from quiver.bundle import Adapter

__all__ = ["migrate"]

_ADAPTER_FORM = 'write {"name": "weather", "slots": {"1": "stations"}}'


class ProfileName(StrEnum):
    """The format profiles."""

    spec = "spec"
    otap = "otap"


def migrate(
    directory: Annotated[Path, typer.Argument(help="A store's directory; no process may have it open.")],
    profile: Annotated[ProfileName, typer.Option(help="The new format profile.")],
    adapter: Annotated[
        str | None, typer.Option(help="The new slot table: otap, or a JSON file.  [default: unchanged]")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """
    Convert a store to another format profile or slot table. After an interruption, run the command again to continue.

    Open the store with the same format_profile afterwards. Data and progress are kept.
    """
    from quiver.cli.console.progress import ProgressDisplay  # noqa: PLC0415 - keeps `--help` quick
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.cores.instances import instance_roots  # noqa: PLC0415
    from quiver.store.offline.migrate import migrate as change  # noqa: PLC0415
    from quiver.store.offline.migrate import require_migratable  # noqa: PLC0415
    from quiver.store.reading.check import refuse_snapshot  # noqa: PLC0415

    table = None if adapter is None else _read_adapter(adapter)
    roots = instance_roots(REAL_FILES, str(directory))
    refuse_snapshot(REAL_FILES, str(directory))
    for root in roots if len(roots) > 1 else ():
        require_migratable(REAL_FILES, root)
    with ProgressDisplay("migrating", of=roots) as progress:
        fs = progress.fs(REAL_FILES)
        done = [
            {"directory": root} | change(fs, root, profile=profile.value, adapter=table, clock=SYSTEM_CLOCK).as_dict()
            for root in roots
        ]
    if as_json:
        print_json(done)
    else:
        print_table(f"{directory} is in profile {profile}", done)


def _read_adapter(named: str) -> Adapter:
    """Return the slot table with the name *named*, or from the file *named*."""
    from quiver.bundle import OTAP, Adapter  # noqa: PLC0415

    if named == OTAP.name:
        return OTAP
    try:
        found = json.loads(Path(named).read_text(encoding="utf-8"))
        slots = {int(slot): str(name) for slot, name in found["slots"].items()}
        return Adapter(str(found["name"]), slots)
    except (ValueError, KeyError, TypeError, AttributeError, QuiverError) as error:
        raise UsageError(f"--adapter {named}: {_ADAPTER_FORM}: {error}") from None
