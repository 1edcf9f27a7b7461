"""
`quiver verify DIR`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quiver.cli.output import JsonFlag, print_json, print_table

__all__ = ["verify"]


def verify(
    directory: Annotated[Path, typer.Argument(help="A store's directory.")],
    as_json: JsonFlag = False,
) -> None:
    """
    Read every file of a store to its last byte and list all that is wrong, with path and offset.

    Reads only; safe beside a live writer. Exits with 1 when something is damaged; a torn tail is not damage: the
    next open cuts it off.
    """
    from quiver.primitives.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.check import check_store  # noqa: PLC0415 - keeps `--help` quick

    report = check_store(REAL_FILES, str(directory))
    if as_json:
        print_json(report.as_dict())
    else:
        files, total = report.files, report.bytes_read
        if report.findings:
            print_table("findings", [finding.as_dict() for finding in report.findings])
        damaged = sum(finding.damaged for finding in report.findings)
        verdict = f"{damaged} damaged" if damaged else "nothing is damaged"
        inside = f"{report.segment_bundles:,} bundles in segments, {report.log_entries:,} in the log"
        typer.echo(f"{directory}: {files} files, {total:,} bytes read; {inside}; {verdict}")
    if report.damaged:
        raise typer.Exit(1)
