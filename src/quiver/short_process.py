"""
Call a function in a process of its own, which ends when the function returns.

For a process that runs for weeks and needs a large package for a moment: a package that is imported takes memory until
the end of the process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from quiver.errors import QuiverError

__all__ = ["call_in_short_process", "call_without_loading"]

TIMEOUT_S = 60.0


def call_in_short_process(function: str, *arguments: Any, timeout: float = TIMEOUT_S) -> Any:
    """
    Return the result of a function that is called in a new process, with the environment and directory of this one.

    Args:
        function: its module and its name, as ``package.module:name``.
        arguments: as JSON has them; so is the result.
        timeout: the time limit in seconds.

    Raises:
        QuiverError: the process could not be started, failed, or did not end in time. Its error is on standard error.
    """
    argv = [sys.executable, "-m", "quiver.short_process", function]
    try:
        # A session of its own: Ctrl-C is for the caller, which may be reporting how it ends.
        answer = subprocess.run(  # noqa: S603 - our own modules, no shell
            argv,
            input=json.dumps(arguments),
            stdout=subprocess.PIPE,
            text=True,
            timeout=timeout,
            check=True,
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise QuiverError(f"{function} in a process of its own: {error}") from error
    return json.loads(answer.stdout)


def call_without_loading(package: str, function: str, *arguments: Any) -> Any:
    """
    Return the result of a function that needs *package*: it is called here if this process has loaded the package, and
    otherwise by `call_in_short_process`.
    """
    if sys.modules.get(package) is None:
        return call_in_short_process(function, *arguments)
    return _call(function, arguments)


def _call(function: str, arguments: Sequence[Any]) -> Any:
    module, _, name = function.partition(":")
    return getattr(import_module(module), name)(*arguments)


def _main() -> None:
    sys.stdout.write(json.dumps(_call(sys.argv[1], json.load(sys.stdin))))


if __name__ == "__main__":
    _main()
