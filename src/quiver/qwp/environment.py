"""Where a program that was configured from outside finds its connect string."""

from __future__ import annotations

import os
from collections.abc import Mapping

from quiver.errors import SettingsError

__all__ = ["CONF_VARIABLE", "conf_from_env"]

CONF_VARIABLE = "QDB_CLIENT_CONF"
"""The official clients read it, too."""


def conf_from_env(environ: Mapping[str, str] | None = None) -> str:
    """
    Return the connect string that the environment holds, or *environ* in its place.

    Raises:
        SettingsError: it holds none.
    """
    conf = (os.environ if environ is None else environ).get(CONF_VARIABLE)
    if not conf:
        raise SettingsError(f"the environment variable {CONF_VARIABLE} is not set; it holds the connect string")
    return conf
