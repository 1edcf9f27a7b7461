"""
Idempotent groups of messages, for callers that may repeat all of their work, such as a Spark task.

::

    take the slot ─▶ note "begun, from frame n" ─▶ append all ─▶ sync ─▶ note "published" ─▶ send ─▶ release

A published group is recognized by its writer, its number and a digest of its messages, and is not appended again. Of a
group that was only begun, the frames that are still in the slot with the same content are not appended again. Messages
that cannot be recognized are sent again: duplicate rows are better than lost rows.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from random import Random

from blake3 import blake3

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import DirectoryInUseError, SenderHaltedError, UsageError
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.qwp.connection.failover import HostTracker
from quiver.qwp.connection.session import SenderError
from quiver.qwp.connection.wire_loop import Counters, WireLoop
from quiver.qwp.drainers import Drainers
from quiver.qwp.settings import SenderSettings
from quiver.qwp.slots.slot import Slot, open_slot

__all__ = ["GROUP_NAME", "Group", "GroupSent", "message_bytes_max", "send_group"]

GROUP_NAME = ".quiver-group"
_NOTE_BYTES_MAX = 1 << 16
_STOP_S = 5.0
_LOOK_S = 0.1

_log = logging.getLogger("quiver.qwp")


@dataclass(frozen=True, slots=True)
class Group:
    """The writer and number of a group of messages."""

    writer: str
    number: int


@dataclass(frozen=True, slots=True)
class GroupSent:
    """The result: how many messages a group has, how many were already there, and whether all are confirmed."""

    messages: int
    known: int
    confirmed: bool


@dataclass(frozen=True, slots=True)
class _Note:
    writer: str
    number: int
    first_fsn: int
    digest: str = ""  # empty: begun but not published


def message_bytes_max(settings: SenderSettings) -> int:
    """
    Return the size limit of messages in a group. It is constant, so that the same rows always make the same
    messages.
    """
    return min(settings.ring.payload_bytes_max, settings.message_bytes_max, settings.offline_bytes_max)


def send_group(
    settings: SenderSettings,
    group: Group,
    messages: Iterable[bytes],
    *,
    lock_wait_s: float = 30.0,
    fs: FileSystem = REAL_FILES,
    clock: Clock = SYSTEM_CLOCK,
    observer: Observer | None = None,
) -> GroupSent:
    """
    Put *messages* once into the slot that *settings* name, and send the frames of the slot.

    On return the messages survive a power loss. Waits up to `close_flush_timeout_millis` for the server. Unconfirmed
    frames stay in the slot. Meanwhile orphaned slots are drained if ``drain_orphans=on``.

    Raises:
        UsageError: ``sf_dir`` is missing.
        DirectoryInUseError: another process held the slot for the entire wait.
        CapacityError: the slot is full; call again with the same group.
        SenderHaltedError: the server refuses the messages. They stay in the slot.
        CorruptionError, StoreFailedError, OSError: the slot is damaged, or a disk error occurred.
    """
    if settings.sf_dir is None:
        raise UsageError("sf_dir is missing in the connect string: unconfirmed frames are stored below it")
    observer = observer or InMemoryObserver()
    settings = replace(
        settings,
        durability="append" if settings.durability == "append" else "flush",
        initial_connect="async",
    )
    with ExitStack() as release:
        slot = _take_slot(settings, lock_wait_s, fs, clock, observer)
        release.callback(slot.close)
        known, fresh = _fresh(fs, slot, group, messages)
        tracker, random = HostTracker(len(settings.addresses)), Random()  # noqa: S311
        loop = WireLoop(
            slot,
            settings,
            tracker,
            counters=Counters(),
            on_error=_log_error,
            clock=clock,
            observer=observer,
            random=random,
        )
        release.callback(loop.release)
        release.callback(loop.stop, _STOP_S)
        drainers = Drainers(
            settings, tracker, listener=None, on_error=_log_error, fs=fs, clock=clock, observer=observer, random=random,
            stop_when_offline=True,
        )  # fmt: skip
        release.callback(drainers.stop)
        if settings.drain_orphans:
            drainers.start()
        loop.start(f"quiver-qwp-sender {settings.sender_id}")
        appended = _append(fs, slot, loop, group, known, fresh)
        return GroupSent(len(known) + appended, len(known), _drain(slot, loop, settings.close_flush_s, clock))


def _take_slot(settings: SenderSettings, lock_wait_s: float, fs: FileSystem, clock: Clock, observer: Observer) -> Slot:
    deadline = clock.monotonic() + lock_wait_s
    pause = threading.Condition()
    while True:
        try:
            return open_slot(
                fs,
                settings.sf_dir or "",
                settings.sender_id,
                settings.ring,
                observer=observer,
                clock=clock,
                dead_letters_bytes_max=settings.dead_letters_bytes_max,
            )
        except DirectoryInUseError:
            # A cancelled attempt that has not exited yet, or a sibling that drains the slot.
            if clock.monotonic() >= deadline:
                raise
            with pause:
                clock.wait(pause, _LOOK_S)


def _fresh(fs: FileSystem, slot: Slot, group: Group, messages: Iterable[bytes]) -> tuple[list[bytes], Iterable[bytes]]:
    """Return the messages that the slot has or had, and those that are new to it."""
    note = _read_note(fs, slot)
    if note is None or (note.writer, note.number) != (group.writer, group.number):
        return [], messages
    all_messages = list(messages)
    if note.digest:
        known = all_messages if _digest(all_messages) == note.digest else []
    else:
        known = list(_still_there(slot, note.first_fsn, all_messages))
    return known, all_messages[len(known) :]


def _still_there(slot: Slot, first_fsn: int, messages: list[bytes]) -> Iterator[bytes]:
    for fsn, message in enumerate(messages, first_fsn):
        if fsn > slot.ring.published_fsn:
            return
        with suppress(UsageError):  # trimmed: another process has sent the frame, and its content is unknown
            if slot.ring.read(fsn) == message:
                yield message
                continue
        return


def _append(
    fs: FileSystem, slot: Slot, loop: WireLoop, group: Group, known: list[bytes], fresh: Iterable[bytes]
) -> int:
    first_fsn = slot.ring.published_fsn + 1 - len(known)
    digest, appended, is_begun = blake3(), 0, False
    for message in known:
        _add(digest, message)
    for message in fresh:
        if not is_begun:
            is_begun = True
            _write_note(fs, slot, _Note(group.writer, group.number, first_fsn))
        slot.ring.append(message)
        loop.wake()
        _add(digest, message)
        appended += 1
    if known or appended:
        # In this order: the note must not claim a message that a power loss has removed.
        slot.ring.sync()
        _write_note(fs, slot, _Note(group.writer, group.number, first_fsn, digest.hexdigest(length=16)))
    return appended


def _drain(slot: Slot, loop: WireLoop, timeout: float, clock: Clock) -> bool:
    ring = slot.ring
    deadline = clock.monotonic() + timeout
    while True:
        left_s = deadline - clock.monotonic()
        if ring.wait_until_confirmed(ring.published_fsn, max(0.0, min(_LOOK_S, left_s))):
            return True
        if loop.halted is not None:
            raise SenderHaltedError(loop.halted)
        if left_s <= 0:
            return False


def _log_error(error: SenderError) -> None:
    _log.warning("quiver.qwp.group %s", error)


def _add(digest: blake3, message: bytes) -> None:
    digest.update(len(message).to_bytes(4, "little"))
    digest.update(message)


def _digest(messages: list[bytes]) -> str:
    digest = blake3()
    for message in messages:
        _add(digest, message)
    return str(digest.hexdigest(length=16))


def _write_note(fs: FileSystem, slot: Slot, note: _Note) -> None:
    record = {"writer": note.writer, "number": note.number, "first_frame": note.first_fsn, "digest": note.digest}
    replace_file(fs, f"{slot.directory}/{GROUP_NAME}", json.dumps(record).encode() + b"\n", mode=0o644)


def _read_note(fs: FileSystem, slot: Slot) -> _Note | None:
    """Return the note in the slot, or None if it is missing or not in our format."""
    try:
        record = json.loads(fs.read_all(f"{slot.directory}/{GROUP_NAME}", size_max=_NOTE_BYTES_MAX))
        return _Note(str(record["writer"]), int(record["number"]), int(record["first_frame"]), str(record["digest"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
