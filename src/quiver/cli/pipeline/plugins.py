"""`quiver plugins`."""

from __future__ import annotations

from typing import Any

from quiver.cli.console.output import JsonFlag, print_json, print_table

__all__ = ["plugins"]


def plugins(as_json: JsonFlag = False) -> None:
    """
    List the receivers, processors and exporters that a pipeline file can name.

    Includes processors of other installed packages. `missing` names extras that must be installed before a plugin can
    run.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415 - keeps `--help` quick

    from quiver.pipeline.config.processor import PROCESSORS_GROUP  # noqa: PLC0415
    from quiver.pipeline.descriptions.key_descriptions import first_sentence  # noqa: PLC0415
    from quiver.pipeline.plugins import PLUGINS, spellings  # noqa: PLC0415
    from quiver.pipeline.processes.requirements import missing_extras, runs_on_spark  # noqa: PLC0415

    found: list[dict[str, Any]] = [
        {
            "plugin": plugin.urn,
            "kind": plugin.kind,
            "purpose": first_sentence(plugin.model).replace("``", "`"),
            "runs_in": "spark" if runs_on_spark(plugin) else "ingest",
            "missing": missing_extras(plugin),
            "also": spellings(plugin)[1:],
        }
        for plugin in PLUGINS.values()
    ]
    found += [
        {
            "plugin": one.name,
            "kind": "processor",
            "purpose": f"From another package: {one.value}",
            "runs_in": "spark",
            "missing": [],
            "also": [],
        }
        for one in entry_points(group=PROCESSORS_GROUP)
    ]
    if as_json:
        print_json(found)
        return
    rows = [{key: value for key, value in one.items() if key not in {"kind", "also"}} for one in found]
    print_table("plugins", [{**row, "missing": ", ".join(row["missing"]) or None} for row in rows])
