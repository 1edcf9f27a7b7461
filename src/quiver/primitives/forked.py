"""
What a forked child inherits and must not use.

An open log belongs to the process that opened it. In a child its threads are missing, a lock may be held by one of them
for ever, and whatever the child appended would land in the middle of what the parent goes on to write. So in a child
each object that was named here turns into one that refuses, in words, whatever is asked of it. Nothing is looked at on
each call: the process that did not fork pays nothing.
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
    Let *thing* refuse in every process that is forked from this one, until it is collected.

    There every attribute of it raises `ForkError`, but for *silent*: methods that end things, which do nothing
    there. Its class must let its instances be referred to weakly.

    Args:
        thing: told by its identity.
        what: for people: what kind of thing, and where it lies.
        silent: names of methods that a child calls without meaning to: when a ``with`` ends, or a name goes.
    """
    _named[thing] = what, silent, os.getpid()


def _turn() -> None:
    for thing, (what, silent, pid) in list(_named.items()):
        reason = (
            f"{what} was opened by process {pid}, from which this one was forked: it is that one's alone; "
            "fork first and open afterwards, or hand what you have to that process"
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


_do_nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731 - it stands for any method

call_at_fork(after_in_child=_turn)
