"""
All errors that Quiver raises, grouped by how the caller should react.

::

    QuiverError
    ├── TransientError                 nothing was stored; the same call may succeed later
    │   ├── CapacityError              a limit is reached: `what` names it, `held_by` the slowest subscriber
    │   ├── DirectoryInUseError        another process owns the directory or the subscriber
    │   ├── WouldBlockError            the append-only log cannot accept it now: `kind` names what to wait for
    │   ├── ObjectsUnavailableError    the object store failed or did not answer
    │   └── MetadataUnavailableError   the metadata store failed or did not answer
    ├── UsageError                     fix the call; also a ValueError
    │   ├── SettingsError              a setting is out of range, or two contradict each other
    │   ├── InvalidBundleError         the bundle cannot be stored as it is
    │   │   └── BundleTooLargeError    the bundle exceeds a limit: split it
    │   ├── PipelineError              the pipeline file is invalid: path, line, suggestion
    │   ├── UnknownSubscriberError     no subscriber of that name is registered
    │   ├── BundleUnavailableError     the bundle is resolved, claimed by another consumer, or deleted
    │   ├── InvalidRecordError         the record cannot be stored as it is: empty, or larger than a segment
    │   ├── UnknownRecordError         no record has that id, or its segment was retired
    │   ├── ObjectNotFoundError        the object store has no object of that name
    │   ├── ObjectChangedError         another writer changed the object that the call was to replace
    │   ├── ObjectExistsError          the object already exists, and the call may not replace it
    │   ├── ForkError                  opened in the parent process: fork first, then open
    │   └── AccessDeniedError          the object or metadata store does not accept these credentials
    ├── CorruptionError                bytes on disk are not what was written: path, offset, reason
    │   ├── UnsupportedFormatError     written by a newer version, or by another adapter
    │   └── DataLossError              data that a reader still needed was deleted
    ├── FencedError                    another owner took over: stop writing and close
    ├── NotDurableError                the record is written but not yet durable: wait, do not append it again
    ├── RolloverError                  the segment is closed but could not be sealed: nothing is lost, retry
    ├── PartialWriteError              only the first `rows_kept` rows were stored: call again with the rest
    ├── SenderHaltedError              a sender stopped: fix what `error` names, then `resume_after_halt`
    ├── StoreFailedError               a write or sync failed earlier: reopen to recover
    │   └── InvariantError             a bug in Quiver: report it, reopen to recover
    ├── DeliveryHaltedError            an exporter halted by its policy: fix the cause, start it again
    └── StoreClosedError               the object was closed

A torn tail is not corruption: recovery truncates and counts it.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    "ObjectChangedError",
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
    """The base class of all errors that Quiver raises."""


class TransientError(QuiverError):
    """Nothing was stored. The same call may succeed later."""


class CapacityError(TransientError):
    """
    A limit is reached: wait for the slowest subscriber to make progress, or raise the limit.

    `what` names the limit, `held_by` the slowest subscriber or None; `retry_after_s` is a hint.
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

    `retry_after_s` is None, or the seconds after which the lock expires unless the holder renews it.
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
    Nothing was written: the log cannot accept it without waiting. `kind` names what to wait for.

    ========== ==================================================================================
    kind       what to wait for
    ========== ==================================================================================
    admission  a writable segment: the next one is being created, or two are waiting to be sealed
    rollover   the answer to a requested rollover
    hydration  a cold segment that is being hydrated
    flush      a flush: too much is not yet durable, or the last flush failed
    tail       an open reservation at the end of the log
    unknown    anything else
    ========== ==================================================================================
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"would block: {kind}: {reason}")
        self.kind = kind


class ObjectsUnavailableError(TransientError):
    """
    The object store failed or did not answer in time: `operation` on `key`.

    Whether a write took effect is unknown.
    """

    def __init__(self, operation: str, key: str, reason: str) -> None:
        super().__init__(f"objects: {operation} {key}: {reason}")
        self.operation = operation
        self.key = key
        self.reason = reason


class MetadataUnavailableError(TransientError):
    """
    The metadata store failed or did not answer in time.

    Whether a write took effect is unknown: read before repeating it.
    """


class UsageError(QuiverError, ValueError):
    """The call is invalid. Fix the call."""


class SettingsError(UsageError):
    """A setting is out of range, unknown, or contradicts another."""


class InvalidBundleError(UsageError):
    """The bundle cannot be stored as it is; nothing was stored."""


class BundleTooLargeError(InvalidBundleError):
    """The bundle exceeds a limit, so waiting does not help; nothing was stored. Split it."""


class PipelineError(UsageError):
    """The pipeline file is invalid: `path`, `line`, what to write instead, and the `others` of its errors."""

    def __init__(self, path: str, line: int, reason: str, others: Sequence[PipelineError] = ()) -> None:
        super().__init__("\n".join([f"{path}:{line}: {reason}", *map(str, others)]))
        self.path = path
        self.line = line
        self.reason = reason
        self.others = tuple(others)


class UnknownSubscriberError(UsageError):
    """No subscriber of that name is registered. Call `register` first."""


class BundleUnavailableError(UsageError):
    """The bundle is already resolved, claimed by another consumer, or deleted."""


class InvalidRecordError(UsageError):
    """The record cannot be stored as it is: it is empty, or larger than a segment can hold. Nothing was written."""


class UnknownRecordError(UsageError):
    """No record has that id, or its segment was retired."""


class ObjectNotFoundError(UsageError):
    """The object store has no object named `key`."""

    def __init__(self, key: str) -> None:
        super().__init__(f"objects: {key} does not exist")
        self.key = key


class ObjectExistsError(UsageError):
    """The object store already has an object named `key`, and the call may not replace it."""

    def __init__(self, key: str) -> None:
        super().__init__(f"objects: {key} already exists")
        self.key = key


class ObjectChangedError(UsageError):
    """The object named `key` is not the one that the call was to replace: read it again, and decide again."""

    def __init__(self, key: str) -> None:
        super().__init__(f"objects: {key} was changed or removed by another writer: read it again")
        self.key = key


class ForkError(UsageError):
    """
    The object was opened in the parent of this forked process. The call had no effect, also not on the parent's files.

    Fork first and open afterwards, or pass the data to the process that has it open.
    """


class AccessDeniedError(UsageError):
    """The object or metadata store refused the credentials, or they lack a permission. Configure other credentials."""


class CorruptionError(QuiverError):
    """
    Bytes on disk are not what was written.

    `path` and `offset` locate them; `reason` describes the damage. Run `quiver verify` on the directory.
    """

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path} at byte {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason


class UnsupportedFormatError(CorruptionError):
    """The file is valid, but this version or this adapter cannot read it. Use the one that wrote it."""


class DataLossError(CorruptionError):
    """Data that a reader still needed were deleted, expired or quarantined."""


class FencedError(QuiverError):
    """
    This process no longer owns `key`. Stop writing and close: only the new owner's writes count.

    `owner` and `owner_epoch` identify the new owner; `owner` is empty if it is unknown, and `reason` has the cause.
    """

    def __init__(
        self, key: str, *, epoch: int, owner: str, owner_epoch: int, reason: str = "", remedy: str = ""
    ) -> None:
        taken = f"was fenced by {owner}, which has epoch {owner_epoch}"
        then = f"; {remedy}" if remedy else ""
        super().__init__(f"{key}: epoch {epoch} {taken if owner else reason or 'is no longer the owner'}{then}")
        self.key = key
        self.epoch = epoch
        self.owner = owner
        self.owner_epoch = owner_epoch


class NotDurableError(QuiverError):
    """
    The record `record_id` is written and readable, but not yet synced, or not yet in the object store.

    Wait for it; do not append it again. In topics, `record_id` is the offset of a message.
    """

    def __init__(self, record_id: int, reason: str, *, what: str = "record") -> None:
        super().__init__(f"{what} {record_id} is written, but not yet durable: {reason}")
        self.record_id = record_id


class RolloverError(QuiverError):
    """The segment is closed for appends but could not be sealed. Nothing is lost; call again to retry."""


class PartialWriteError(QuiverError):
    """
    Only the first `rows_kept` rows of a table were stored: the next one did not fit or cannot be sent.

    Call again with the rest.
    """

    def __init__(self, rows_kept: int, reason: str) -> None:
        super().__init__(f"only the first {rows_kept} rows were stored; call again with the rest: {reason}")
        self.rows_kept = rows_kept


class SenderHaltedError(QuiverError):
    """
    The server refused permanently, or none answered in time. Stored data are not lost.

    `error`, a `quiver.qwp.SenderError`, has the cause. Fix it, then call `resume_after_halt` or reopen the sender.
    """

    def __init__(self, error: object) -> None:
        super().__init__(f"the sender has halted: {error}")
        self.error = error


class StoreFailedError(QuiverError):
    """
    A write or sync failed earlier, so the state of the disk is unknown, or a background thread died.

    Close and reopen, which recovers.
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
    """An exporter could not deliver a bundle, and `on_exhausted` is `halt`. Nothing is lost."""

    def __init__(self, exporter: str, bundle: str, reason: str) -> None:
        super().__init__(f"{exporter} halted at bundle {bundle}: {reason}")
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
"""Former name → current name; the former names work for one more release."""


def __getattr__(name: str) -> type[QuiverError]:
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_renamed(__name__, name, _RENAMED[name])
    found: type[QuiverError] = globals()[_RENAMED[name]]
    return found
