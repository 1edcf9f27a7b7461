"""
File descriptors: how many this process may have open, and a few that are reserved for logs.

Sockets opened by clients can use up all descriptors of a process. A log must still be able to seal, rotate and sync a
directory then, so the process keeps some descriptors open on the null device. An open that fails because none is free
closes one of these and tries again; closing a file refills the reserve in one step, before a socket can take its place.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from quiver.primitives.disk.disk_full import is_out_of_descriptors
from quiver.primitives.disk.platform_files import call_at_fork

__all__ = ["KEPT_WITH_A_LOG", "RESERVE", "DescriptorReserve", "descriptor_limit", "raise_descriptor_limit"]

T = TypeVar("T")

KEPT_WITH_A_LOG = 8
"""Reserved by every process that has a log open: a file and its directory, in each thread that writes."""

_LIMIT_MAX = 1 << 20
"""Our processes need no more, and some programs take time for each descriptor that they might have."""


class DescriptorReserve:
    """Descriptors that are kept open for opens that must not fail because none is free. Thread-safe."""

    def __init__(self) -> None:
        # Reentrant: the garbage collector may close a file while the lock is held.
        self.guard = threading.RLock()
        self._wanted = 0
        self._kept: list[int] = []

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, count: int) -> None:
        """
        Reserve *count* descriptors from now on, or more if an earlier call asked for more: those that are free
        immediately, the others when they become free.
        """
        with self.guard:
            self._wanted = max(self._wanted, count)
            self._refill()

    def open(self, opening: Callable[[], T]) -> T:
        """
        Return the result of *opening*, which opens a descriptor. If none is free, it gets a reserved one.

        Raises:
            OSError: from *opening*; EMFILE and ENFILE only if the reserve is empty.
        """
        while True:
            try:
                opened = opening()
            except OSError as error:
                if not is_out_of_descriptors(error) or not self._spend():
                    raise
            else:
                break
        if len(self._kept) < self._wanted:
            with self.guard:
                self._refill()
        return opened

    def close(self, descriptor: int) -> None:
        """Close *descriptor*; if the reserve is incomplete, the descriptor refills it in the same step."""
        if len(self._kept) < self._wanted:
            with self.guard:
                if self._kept and len(self._kept) < self._wanted:
                    os.dup2(self._kept[0], descriptor, inheritable=False)
                    self._kept.append(descriptor)
                    return
        os.close(descriptor)

    def _spend(self) -> bool:
        with self.guard:
            if not self._kept:
                return False
            os.close(self._kept.pop())
            return True

    def _refill(self) -> None:
        with contextlib.suppress(OSError):
            while len(self._kept) < self._wanted:
                self._kept.append(os.open(os.devnull, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)))


RESERVE = DescriptorReserve()
"""The reserve of this process. Used by opens for writing and of directories: a reader of a file can try again."""

call_at_fork(before=RESERVE.guard.acquire, after_in_parent=RESERVE.guard.release, after_in_child=RESERVE.guard.release)


def descriptor_limit(*, raised: bool = False) -> int | None:
    """
    Return how many descriptors this process may have open, or could have once *raised*; None without a
    limit.
    """
    resource = _resource()
    if resource is None:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _raised(resource, hard) if raised else soft
    return None if limit == resource.RLIM_INFINITY else int(limit)


def raise_descriptor_limit() -> int | None:
    """
    Raise the soft limit of descriptors to the hard one, for this process and those that it starts; return the limit.

    The usual soft limit, 1024, is meant for programs that keep descriptors in fixed tables.
    """
    resource = _resource()
    if resource is None:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _raised(resource, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS refuses more than it can give
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return descriptor_limit()


def _raised(resource: Any, hard: int) -> int:
    return _LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, _LIMIT_MAX)


def _resource() -> Any:
    try:
        return importlib.import_module("resource")
    except ModuleNotFoundError:
        return None  # Windows
