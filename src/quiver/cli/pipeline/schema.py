"""`quiver schema [PLUGIN]`."""

from __future__ import annotations

from typing import Annotated

import typer

from quiver.cli.console.output import print_json
from quiver.errors import UsageError

__all__ = ["schema"]


def schema(
    plugin: Annotated[
        str | None,
        typer.Argument(help="Only the config of this plugin, for example receiver:otlp.", show_default=False),
    ] = None,
) -> None:
    """
    Print the JSON schema of pipeline files, with a description of every key.

    Editors use it to complete and check pipeline files.
    """
    from quiver.pipeline.config.parse import nearest  # noqa: PLC0415 - keeps `--help` quick
    from quiver.pipeline.descriptions.json_schema import pipeline_schema, plugin_schema  # noqa: PLC0415
    from quiver.pipeline.plugins import PLUGINS, find_plugin, spellings  # noqa: PLC0415

    if plugin is None:
        print_json(pipeline_schema())
        return
    found = find_plugin(plugin)
    if found is None:
        known = [text for one in PLUGINS.values() for text in spellings(one)]
        raise UsageError(f"there is no plugin {plugin}{nearest(plugin, known)}; quiver plugins lists them")
    if found.urn not in PLUGINS:
        raise UsageError(f"{plugin} is from another package, and its keys are the arguments of its function")
    print_json(plugin_schema(found))
