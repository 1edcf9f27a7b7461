"""
Every error Quiver raises, named by what the caller should do.

::

    QuiverError
    ├── TransientError                 nothing was kept; the same call may succeed later
    │   ├── CapacityError              full: `what` is full, `held_by` names who holds it
    │   ├── DirectoryInUseError        another process owns the directory or the subscriber
    │   ├── WouldBlockError            the append-only log cannot take it now: `kind` names what to wait for
    │   ├── ObjectsUnavailableError    the object store failed or did not answer
    │   └── MetadataUnavailableError   the metadata store failed or did not answer
    ├── UsageError                     fix the call; also a ValueError
    │   ├── SettingsError              a setting is out of range, or two contradict each other
    │   ├── InvalidBundleError         the bundle cannot be stored as it is
    │   │   └── BundleTooLargeError    the bundle never fits: divide it
    │   ├── PipelineError              the pipeline file is wrong: path, line, suggestion
    │   ├── UnknownSubscriberError     no subscriber of that name is registered
    │   ├── BundleUnavailableError     that bundle is resolved, claimed elsewhere, or deleted
    │   ├── InvalidRecordError         the record cannot be stored as it is: empty, or larger than a segment
    │   ├── UnknownRecordError         no record begins at that id, or it is retired
    │   ├── ObjectNotFoundError        the object store has no object of that name
    │   ├── ObjectExistsError          the object store has one already, and was not to replace it
    │   ├── ForkError                  opened by the process that forked this one: fork first, open afterwards
    │   └── AccessDeniedError          the object or metadata store does not accept these credentials
    ├── CorruptionError                bytes on disk are not what was written: path, offset, reason
    │   ├── UnsupportedFormatError     written by a newer version, or by another adapter
    │   └── DataLossError              data that a reader still needed was deleted
    ├── FencedError                    another owner took over: write nothing more, close
    ├── NotDurableError                the record is written, and not yet synced: wait, never append it again
    ├── RolloverError                  the segment is closed, but could not be sealed: nothing is lost, retry
    ├── PartialWriteError              only the first `rows_kept` rows fit: call again with the rest
    ├── SenderHaltedError              a sender stopped: fix what `error` names, then `resume_after_halt`
    ├── StoreFailedError               a write or sync failed earlier: reopen to recover
    │   └── InvariantError             a bug in Quiver: report it, reopen to recover
    ├── DeliveryHaltedError            an exporter stopped as its policy asks: fix the reason, start it again
    └── StoreClosedError               the object was closed

A torn tail is not damage: recovery truncates it, counts it and goes on.
"""

from __future__ import annotations

from quiver.lazy_names import warn_renamed

__all__ = [
    "AccessDeniedError",
    "BundleTooLargeError",
    "BundleUnavailableError",
    "CapacityError",
    "CorruptionError",
    "DataLossError",
    "DeliveryHaltedError",
    "DirectoryInUseError",
    "FencedError",
    "ForkError",
    "InvalidBundleError",
    "InvalidRecordError",
    "InvariantError",
    "MetadataUnavailableError",
    "NotDurableError",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "ObjectsUnavailableError",
    "PartialWriteError",
    "PipelineError",
    "QuiverError",
    "RolloverError",
    "SenderHaltedError",
    "SettingsError",
    "StoreClosedError",
    "StoreFailedError",
    "TransientError",
    "UnknownRecordError",
    "UnknownSubscriberError",
    "UnsupportedFormatError",
    "UsageError",
    "WouldBlockError",
]


class QuiverError(Exception):
    """The root of all errors raised on purpose."""


class TransientError(QuiverError):
    """Nothing was kept. The same call may succeed later."""


class CapacityError(TransientError):
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


class DirectoryInUseError(TransientError):
    """
    Another process holds the lock: stop it, or use another directory or subscriber.

    `retry_after_s` is None, or says after how many more seconds of silence the holder has lost it.
    """

    def __init__(
        self, path: str, holder: str, *, remedy: str = "stop it first", retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{path} is in use by {holder}; {remedy}")
        self.path = path
        self.holder = holder
        self.retry_after_s = retry_after_s


class WouldBlockError(TransientError):
    """
    Nothing was written: the log cannot take it without waiting. `kind` names what must come first.

    ========== ==================================================================================
    kind       what to wait for
    ========== ==================================================================================
    admission  a writable segment: the next one is being made, or two are waiting to be sealed
    rollover   the answer to a rollover that was asked for
    hydration  a cold segment that is being brought back
    flush      a flush: too much is not yet durable, or the last flush failed
    tail       a reservation that is open at the end of the log
    unknown    anything else
    ========== ==================================================================================
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"would block: {kind}: {reason}")
        self.kind = kind


class ObjectsUnavailableError(TransientError):
    """
    The object store failed, or did not answer in time: `operation` on `key`. Whether a write took effect is
    unknown.
    """

    def __init__(self, operation: str, key: str, reason: str) -> None:
        super().__init__(f"objects: {operation} {key}: {reason}")
        self.operation = operation
        self.key = key
        self.reason = reason


class MetadataUnavailableError(TransientError):
    """
    The metadata store failed, or did not answer in time. Whether a write took effect is unknown: read before
    repeating.
    """


class UsageError(QuiverError, ValueError):
    """The call cannot succeed as it is. Fix the call."""


class SettingsError(UsageError):
    """A setting is out of range, unknown, or contradicts another."""


class InvalidBundleError(UsageError):
    """The bundle cannot be stored as it is; nothing was kept."""


class BundleTooLargeError(InvalidBundleError):
    """The bundle never fits, however long one waits; nothing was kept. Divide it."""


class PipelineError(UsageError):
    """The pipeline file is wrong: `path`, `line` and what to write instead."""

    def __init__(self, path: str, line: int, reason: str) -> None:
        super().__init__(f"{path}:{line}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


class UnknownSubscriberError(UsageError):
    """No subscriber of that name is registered. Call `register` first."""


class BundleUnavailableError(UsageError):
    """The bundle is already resolved, claimed by someone else, or no longer on disk."""


class InvalidRecordError(UsageError):
    """The record cannot be stored as it is: it is empty, or larger than a segment can hold. Nothing was written."""


class UnknownRecordError(UsageError):
    """No record begins at that id, or its segment was retired."""


class ObjectNotFoundError(UsageError):
    """The object store has no object named `key`."""

    def __init__(self, key: str) -> None:
        super().__init__(f"objects: there is no object {key}")
        self.key = key


class ObjectExistsError(UsageError):
    """The object store has an object named `key` already, and the call was not to replace it."""

    def __init__(self, key: str) -> None:
        super().__init__(f"objects: there is an object {key} already")
        self.key = key


class ForkError(UsageError):
    """
    Another process opened it, and this one was forked from that. Nothing was done, and nothing of the parent's harmed.

    Fork first and open afterwards, or hand the data to the process that has it open.
    """


class AccessDeniedError(UsageError):
    """The object or metadata store does not take these credentials, or they may not do this. Give it others."""


class CorruptionError(QuiverError):
    """
    Bytes on disk are not what was written.

    `path` and `offset` say where; `reason` says what was seen. Run `quiver verify` on the directory.
    """

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path} at byte {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason


class UnsupportedFormatError(CorruptionError):
    """The file is sound but this version or this adapter cannot read it. Use the one that wrote it."""


class DataLossError(CorruptionError):
    """Data that a reader still needed is gone: deleted, expired or quarantined."""


class FencedError(QuiverError):
    """
    This process does not own `key` any more. Write nothing more and close; what its owner writes now is the truth.

    `owner` and `owner_epoch` say who took over; `owner` is empty when no other owner is known, and `reason` says why.
    """

    def __init__(self, key: str, *, epoch: int, owner: str, owner_epoch: int, reason: str = "") -> None:
        taken = f"was fenced by {owner}, which has epoch {owner_epoch}"
        super().__init__(f"{key}: epoch {epoch} {taken if owner else reason or 'is not the owner any more'}")
        self.key = key
        self.epoch = epoch
        self.owner = owner
        self.owner_epoch = owner_epoch


class NotDurableError(QuiverError):
    """
    The record `record_id` is written and can be read, but is not yet synced, or not yet in the object store. Wait for
    it; never append it again. In topics it is the offset of a message.
    """

    def __init__(self, record_id: int, reason: str, *, what: str = "record") -> None:
        super().__init__(f"{what} {record_id} is written, but not yet durable: {reason}")
        self.record_id = record_id


class RolloverError(QuiverError):
    """The segment takes no more records, but it could not be sealed. Nothing is lost; asking again tries again."""


class PartialWriteError(QuiverError):
    """
    Some rows of a table are kept, the first `rows_kept`: for the next there was no room, or it cannot be sent. Call
    again with the rest.
    """

    def __init__(self, rows_kept: int, reason: str) -> None:
        super().__init__(f"{rows_kept} rows were kept; go on behind them: {reason}")
        self.rows_kept = rows_kept


class SenderHaltedError(QuiverError):
    """
    The server refused for good, or none answered in time. Nothing that was kept is lost.

    `error` says what happened (a `quiver.qwp.SenderError`). Mend it, then call `resume_after_halt` or open again.
    """

    def __init__(self, error: object) -> None:
        super().__init__(f"the sender has halted: {error}")
        self.error = error


class StoreFailedError(QuiverError):
    """
    A write or a sync failed earlier, and what the disk holds is unknown; or a background thread died, and its work is
    not done any more. Close, reopen, recover.
    """


class InvariantError(StoreFailedError):
    """
    A rule that must always hold was about to be broken: this is a bug in Quiver. The step was not taken.

    Close, reopen, recover, and report the message.
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"bug in Quiver, please report it: {what}; nothing was changed, reopen to recover")
        self.what = what


class DeliveryHaltedError(QuiverError):
    """An exporter met a bundle that it may neither deliver nor give up: `on_exhausted` is `halt`. Nothing is lost."""

    def __init__(self, exporter: str, bundle: str, reason: str) -> None:
        super().__init__(f"{exporter} stopped at bundle {bundle}: {reason}")
        self.exporter = exporter
        self.bundle = bundle
        self.reason = reason


class StoreClosedError(QuiverError):
    """The object was closed. Open it again."""


_RENAMED = {
    "AccessRefused": "AccessDeniedError",
    "AtCapacity": "CapacityError",
    "BundleInvalid": "InvalidBundleError",
    "BundleTooLarge": "BundleTooLargeError",
    "BundleUnavailable": "BundleUnavailableError",
    "Damaged": "CorruptionError",
    "DataLoss": "DataLossError",
    "DeliveryHalted": "DeliveryHaltedError",
    "DirectoryInUse": "DirectoryInUseError",
    "Fenced": "FencedError",
    "FormatUnsupported": "UnsupportedFormatError",
    "MetadataUnavailable": "MetadataUnavailableError",
    "NotYetDurable": "NotDurableError",
    "ObjectExists": "ObjectExistsError",
    "ObjectMissing": "ObjectNotFoundError",
    "ObjectsUnavailable": "ObjectsUnavailableError",
    "OpenedBeforeFork": "ForkError",
    "PartlyKept": "PartialWriteError",
    "PipelineInvalid": "PipelineError",
    "RecordInvalid": "InvalidRecordError",
    "RecordUnknown": "UnknownRecordError",
    "RetryLater": "TransientError",
    "RolloverFailed": "RolloverError",
    "SenderHalted": "SenderHaltedError",
    "SettingsInvalid": "SettingsError",
    "StoreClosed": "StoreClosedError",
    "StoreFailed": "StoreFailedError",
    "SubscriberUnknown": "UnknownSubscriberError",
    "WouldBlock": "WouldBlockError",
    "WrongUse": "UsageError",
}
"""A former name → its name today; the former names work for one more release."""


def __getattr__(name: str) -> type[QuiverError]:
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_renamed(__name__, name, _RENAMED[name])
    found: type[QuiverError] = globals()[_RENAMED[name]]
    return found
