"""The connect string in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

from quiver.errors import SettingsError

__all__ = ["CONF_VARIABLE", "conf_from_env"]

CONF_VARIABLE = "QDB_CLIENT_CONF"
"""The official clients read the same variable."""


def conf_from_env(environ: Mapping[str, str] | None = None) -> str:
    """
    Return the connect string from the process environment, or from *environ*.

    Raises:
        SettingsError: the variable is not set.
    """
    conf = (os.environ if environ is None else environ).get(CONF_VARIABLE)
    if not conf:
        raise SettingsError(f"the environment variable {CONF_VARIABLE} is not set; set it to a connect string")
    return conf
