"""
Every error Quiver raises, named by what the caller should do.

::

    QuiverError
    ├── RetryLater                     nothing was kept; the same call may succeed later
    │   ├── AtCapacity                 full: `what` is full, `held_by` says who holds it
    │   └── DirectoryInUse             another process owns the directory or the subscriber
    ├── WrongUse                       fix the call
    │   ├── SettingsInvalid            a setting is out of range, or two contradict each other
    │   ├── BundleInvalid              the bundle cannot be stored as it is
    │   ├── PipelineInvalid            the pipeline file is wrong: path, line, suggestion
    │   ├── SubscriberUnknown          no subscriber of that name is registered
    │   └── BundleUnavailable          that bundle is resolved, claimed elsewhere, or gone
    ├── Damaged                        bytes on disk are not what was written: path, offset, reason
    │   ├── FormatUnsupported          written by a newer version, or by another adapter
    │   └── DataLoss                   data that a reader still needed is gone
    ├── StoreFailed                    a write or sync failed earlier: reopen to recover
    └── StoreClosed                    the object was closed

A torn tail is not damage: recovery truncates it, counts it and goes on.
"""

from __future__ import annotations

__all__ = [
    "AtCapacity",
    "BundleInvalid",
    "BundleUnavailable",
    "Damaged",
    "DataLoss",
    "DirectoryInUse",
    "FormatUnsupported",
    "PipelineInvalid",
    "QuiverError",
    "RetryLater",
    "SettingsInvalid",
    "StoreClosed",
    "StoreFailed",
    "SubscriberUnknown",
    "WrongUse",
]


class QuiverError(Exception):
    """
    The root of all errors raised on purpose.
    """


class RetryLater(QuiverError):
    """
    Nothing was kept. The same call may succeed later.
    """


class AtCapacity(RetryLater):
    """
    There is no room: wait for the holder to make progress, or raise the cap.

    `what` names the cap, `held_by` the slowest subscriber or None, `retry_after_s` is a hint.
    """

    def __init__(self, what: str, *, held_by: str | None = None, retry_after_s: float = 1.0) -> None:
        holder = f"; held by {held_by}" if held_by else ""
        super().__init__(f"at capacity: {what}{holder}; retry in {retry_after_s:g} s")
        self.what = what
        self.held_by = held_by
        self.retry_after_s = retry_after_s


class DirectoryInUse(RetryLater):
    """
    Another process holds the lock: stop it, or use another directory or subscriber.
    """

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(f"{path} is in use by {holder}; stop it first")
        self.path = path
        self.holder = holder


class WrongUse(QuiverError):
    """
    The call cannot succeed as it is. Fix the call.
    """


class SettingsInvalid(WrongUse):
    """
    A setting is out of range, unknown, or contradicts another.
    """


class BundleInvalid(WrongUse):
    """
    The bundle cannot be stored as it is; nothing was kept.
    """


class PipelineInvalid(WrongUse):
    """
    The pipeline file is wrong: `path`, `line` and what to write instead.
    """

    def __init__(self, path: str, line: int, reason: str) -> None:
        super().__init__(f"{path}:{line}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


class SubscriberUnknown(WrongUse):
    """
    No subscriber of that name is registered. Call `register` first.
    """


class BundleUnavailable(WrongUse):
    """
    The bundle is already resolved, claimed by someone else, or no longer on disk.
    """


class Damaged(QuiverError):
    """
    Bytes on disk are not what was written.

    `path` and `offset` say where; `reason` says what was seen. Run `quiver verify` on the directory.
    """

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path} at byte {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason


class FormatUnsupported(Damaged):
    """
    The file is sound but this version or this adapter cannot read it. Use the one that wrote it.
    """


class DataLoss(Damaged):
    """
    Data that a reader still needed is gone: deleted, expired or quarantined.
    """


class StoreFailed(QuiverError):
    """
    A write or a sync failed earlier; what the disk holds is unknown. Close, reopen, recover.
    """


class StoreClosed(QuiverError):
    """
    The object was closed. Open it again.
    """
