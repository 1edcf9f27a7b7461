"""`quiver verify DIR|PIPELINE.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quiver.cli.console.output import JsonFlag, exit_of_verify, print_json, print_table
from quiver.cli.console.paths import pipeline_given
from quiver.cli.object_store import ObjectOptions, ObjectsUrl, object_location
from quiver.counted import counted

if TYPE_CHECKING:
    from quiver.cli.describers import VerifySources
    from quiver.store.reading.check import StoreReport

__all__ = ["verify"]


def verify(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="A store's directory, a pipeline file, or a snapshot of either.")
    ],
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Fill {{NAME}} of the pipeline file.")
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", help="As given to `quiver run`.  [default: <store>.run]", show_default=False),
    ] = None,
    objects: ObjectsUrl = None,
    option: ObjectOptions = None,
    as_json: JsonFlag = False,
) -> None:
    """
    Read every file of a store, or of all stores of a pipeline, completely and list all problems.

    This includes dead letters and the pipeline's companion stores; for a pipeline file also the checkpoints of its
    exporters on Spark. Segments that are only in an object tier are read there, at the location recorded in the store.
    With --objects, they and the objects of all other segments are read at that location. Read-only; safe while a writer
    runs.

    Exits with 1 if something is damaged, and with 3 if nothing is, but something could not be read. A torn tail is not
    damage: the next open truncates it.
    """
    from quiver.cli.console.progress import ProgressDisplay  # noqa: PLC0415 - keeps `--help` quick
    from quiver.objects import open_objects  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.reading.check import check_store  # noqa: PLC0415

    sources = _to_read(source, assignments, run_dir)
    location = object_location(objects, option)
    tier = None if location is None else open_objects(location, writable=False)
    with ProgressDisplay("reading", of=sources.roots) as progress:
        reports = [check_store(REAL_FILES, root, on_progress=progress, objects=tier) for root in sources.roots]
        missed = sources.differences()
    if tier is not None:
        tier.close()
    reports[0].findings += sources.findings
    damaged = bool(missed) or any(report.damaged for report in reports)
    if as_json:
        print_json(_as_dict(source, reports, missed, damaged=damaged))
    else:
        findings = [finding.as_dict() for report in reports for finding in report.findings]
        if findings:
            print_table("findings", findings)
        for line in missed:
            typer.echo(f"differs from the snapshot's list: {line}")
        typer.echo(_sentence(source, reports, missed))
    exit_of_verify(damaged=damaged, unread=any(report.unread for report in reports))


def _to_read(source: Path, assignments: list[str] | None, run_dir: Path | None) -> VerifySources:
    from quiver.cli.describers import VerifySources, describer_of, refusal  # noqa: PLC0415 - keeps `--help` quick
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.cores.instances import instance_roots  # noqa: PLC0415

    if not source.is_file():
        pipeline_given(source, assignments, run_dir)  # raises for options of a pipeline file
    found = describer_of(source)
    if found is not None and found.verify is not None:
        return found.verify(source, assignments, run_dir)
    if found is not None:
        raise refusal(source, found)
    return VerifySources(instance_roots(REAL_FILES, str(source)), [])  # raises


def _as_dict(directory: Path, reports: list[StoreReport], missed: list[str], *, damaged: bool) -> dict[str, Any]:
    """Return a single report; for several cores the sums, all findings, and the report of each core."""
    cores = [report.as_dict() for report in reports]
    if len(cores) == 1 and not missed:
        return cores[0]
    counts = ("files", "bytes_read", "segment_bundles", "log_entries", "staged_bundles", "dead_letters", "unread")
    sums = {key: sum(core[key] for core in cores) for key in counts}
    findings = [finding for core in cores for finding in core["findings"]]
    found = {"directory": str(directory), **sums, "damaged": damaged, "findings": findings}
    return found | {"not_as_copied": missed, "cores": cores}


def _sentence(directory: Path, reports: list[StoreReport], missed: list[str]) -> str:
    files, total = sum(report.files for report in reports), sum(report.bytes_read for report in reports)
    bad = len(missed) + sum(finding.damaged for report in reports for finding in report.findings)
    unread = sum(report.unread for report in reports)
    verdict = f"{bad} damaged" if bad else "nothing that was read is damaged" if unread else "nothing is damaged"
    verdict += f"; {unread} not read" if unread else ""
    sealed = sum(report.segment_bundles for report in reports)
    logged = sum(report.log_entries for report in reports)
    dead_letters = sum(report.dead_letters for report in reports)
    staged = sum(report.staged_bundles for report in reports)
    more = "".join(
        f", {count:,} {what}" for count, what in ((staged, "staged"), (dead_letters, "dead letters")) if count
    )
    inside = f"{counted(sealed, 'bundle')} in segments, {logged:,} in the log{more}"
    return f"{directory}: {counted(files, 'file')}, {total:,} bytes read; {inside}; {verdict}"
