"""
Objects that a forked child inherits and must not use.

An open log belongs to the process that opened it. In a child its threads are missing, one of them may hold a lock
forever, and everything that the child appended would overwrite what the parent writes next. So in a child, each object
that was registered here turns into one that refuses every call with a clear error. No call checks for this: the process
that did not fork has no overhead.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

from quiver.errors import ForkError
from quiver.primitives.disk.platform_files import call_at_fork

__all__ = ["refuse_in_children"]

_named: weakref.WeakKeyDictionary[object, tuple[str, tuple[str, ...], int]] = weakref.WeakKeyDictionary()


def refuse_in_children(thing: object, what: str, *, silent: tuple[str, ...] = ("close",)) -> None:
    """
    Make *thing* refuse in every process that is forked from this one, until it is collected.

    In a child every attribute of it raises `ForkError`, except for *silent*: methods that end things, which do nothing
    there. Its class must support weak references.

    Args:
        thing: the object, compared by identity.
        what: for the error message: what kind of thing, and where it is.
        silent: names of methods that a child calls unintentionally: at the end of a ``with``, or by the collector.
    """
    _named[thing] = what, silent, os.getpid()


def _turn() -> None:
    for thing, (what, silent, pid) in list(_named.items()):
        reason = (
            f"{what} was opened by process {pid}, from which this one was forked, and only that process can "
            "use it: fork first and open afterwards, or send the data to that process"
        )
        object.__setattr__(thing, "__class__", _refusing(type(thing), reason, silent))
    _named.clear()


def _refusing(kind: type, reason: str, silent: tuple[str, ...]) -> type:
    def look_up(thing: object, name: str) -> Any:
        if name in silent:
            return _do_nothing
        if name.startswith("__"):
            return object.__getattribute__(thing, name)
        raise ForkError(reason)

    space: dict[str, Any] = {"__slots__": (), "__getattribute__": look_up, "__doc__": kind.__doc__}
    return type(f"{kind.__name__}OfParent", (kind,), space)


_do_nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731 - used for any method

call_at_fork(after_in_child=_turn)
