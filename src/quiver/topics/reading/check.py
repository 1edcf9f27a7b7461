"""
A human-readable check of a topic's directory: its contents and its damage. It only reads, and is safe while a writer
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from quiver.errors import CorruptionError
from quiver.primitives.disk.copying import damaged_copy
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.findings import Finding
from quiver.topics.dispatch.saved import SubscriptionFiles
from quiver.topics.format.names import (
    ACTIVE_FILE,
    QUARANTINE_DIR,
    REAPPENDED_SUFFIX,
    SUPERSEDED_SUFFIX,
    parse_superseded_name,
)
from quiver.topics.format.subscription import SavedSubscription
from quiver.topics.wal.files import FileMarks, FrameScanner, Good, Lost
from quiver.topics.wal.local_files import LocalFile, base_name_of, first_offset_of, load_checkpoint, local_files

__all__ = ["CheckedFile", "CheckedTopic", "check_topic_directory", "saved_subscriptions"]


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """One log file, read completely."""

    path: str
    seq: int
    first_offset: int | None
    next_offset: int | None
    messages: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CheckedTopic:
    """
    The contents of a directory, and the findings.

    Attributes:
        directory: of the topic.
        start_offset: the oldest in a file or an object.
        next_offset: of the next message.
        synced_offset: below it everything was synced; None if that is unknown.
        files: oldest first.
        objects: ranges of offsets in objects, each the first and the offset after the last, as far as the catalog was
            read.
        subscriptions: those whose files can be read.
        findings: damage and notes.
    """

    directory: str
    start_offset: int
    next_offset: int
    synced_offset: int | None
    files: tuple[CheckedFile, ...]
    objects: tuple[tuple[int, int], ...]
    subscriptions: tuple[SavedSubscription, ...]
    findings: tuple[Finding, ...]

    @property
    def is_intact(self) -> bool:
        """Whether nothing is damaged, and everything could be read."""
        return not self.damaged and not self.unread

    @property
    def damaged(self) -> bool:
        """Whether something is damaged."""
        return any(finding.damaged for finding in self.findings)

    @property
    def unread(self) -> bool:
        """Whether something could not be read."""
        return any(finding.unread for finding in self.findings)

    @property
    def only_in_objects(self) -> list[tuple[int, int]]:
        """Ranges of messages that objects have and no file has: the first offset, and the offset after the last."""
        local = sorted(
            (one.first_offset, one.next_offset)
            for one in self.files
            if one.first_offset is not None and one.next_offset is not None
        )
        found: list[tuple[int, int]] = []
        for first, after in self.objects:
            at = first
            for start, end in [*local, (after, after)]:
                if at < min(start, after):
                    found.append((at, min(start, after)))
                at = max(at, min(end, after))
        return found

    @property
    def size_bytes(self) -> int:
        """The bytes of all log files."""
        return sum(file.size_bytes for file in self.files)

    def as_dict(self) -> dict[str, Any]:
        """Return the contents as plain values."""
        return {
            "directory": self.directory,
            "start_offset": self.start_offset,
            "next_offset": self.next_offset,
            "synced_offset": self.synced_offset,
            "size_bytes": self.size_bytes,
            "intact": self.is_intact,
            "damaged": self.damaged,
            "unread": self.unread,
            "files": [asdict(file) for file in self.files],
            "objects": [list(one) for one in self.objects],
            "subscriptions": [asdict(one) for one in self.subscriptions],
            "findings": [finding.as_dict() for finding in self.findings],
        }


def check_topic_directory(fs: FileSystem, directory: str, *, objects: Sequence[tuple[int, int]] = ()) -> CheckedTopic:
    """
    Read everything in a topic's directory; its files may have any base name.

    *objects* are the ranges of offsets in the object store according to the catalog, each the first and the offset
    after the last: no file need have these.

    Raises:
        OSError: the directory cannot be read.
    """
    findings: list[Finding] = []
    checkpoint = load_checkpoint(fs, directory)
    if isinstance(checkpoint, CorruptionError):
        findings.append(Finding(checkpoint.path, checkpoint.offset, "damaged", checkpoint.reason))
        checkpoint = None
    file_name = (None if checkpoint is None else base_name_of(checkpoint)) or ACTIVE_FILE
    found = local_files(fs, directory, file_name=file_name, checkpoint=checkpoint)
    cold = sorted(objects)
    aside = cache(lambda: _replaced(fs, directory))
    checked: list[CheckedFile] = []
    for at, file in enumerate(found):
        one = _check_file(fs, file, is_last=at + 1 == len(found), findings=findings)
        checked.append(one)
        above = next((each.first_offset for each in found[at + 1 :] if each.first_offset is not None), None)
        if one.next_offset is not None and above is not None:
            findings += _missing_findings(one.next_offset, above, cold, aside, one.path, one.size_bytes)
    ends = [file.next_offset for file in checked if file.next_offset is not None]
    starts = [file.first_offset for file in checked if file.first_offset is not None]
    tip = max(ends, default=0)
    synced = None if checkpoint is None else checkpoint.last_offset + 1
    if synced is not None and found:
        why = "although they were synced"
        findings += _missing_findings(tip, synced, cold, aside, found[-1].path, found[-1].size_bytes, why)
    if starts and cold:
        findings += [one for one in _missing_findings(cold[0][0], starts[0], cold, aside, directory, 0) if one.damaged]
    subscriptions, problems = saved_subscriptions(fs, directory)
    findings += problems
    findings += _quarantined(fs, directory)
    return CheckedTopic(
        directory,
        min([*starts[:1], *(first for first, _ in cold[:1])], default=synced or 0),
        max(tip, synced or 0, *(after for _, after in cold)) if cold else max(tip, synced or 0),
        synced,
        tuple(checked),
        tuple(cold),
        tuple(subscriptions),
        tuple(findings),
    )


_Ranges = Sequence[tuple[int, int]]


def _missing_findings(
    first: int, after: int, objects: _Ranges, aside: Callable[[], _Ranges], path: str, position: int, why: str = ""
) -> Iterator[Finding]:
    """Report for messages that no file has which are in objects, which are quarantined, and which are lost."""
    nowhere = f"are in no file{' and in no object' if objects else ''} {why}".rstrip()
    for begin, end, is_there in _split(first, after, objects):
        if is_there:
            yield Finding(path, position, "in objects", f"messages {begin} to {end - 1} are there only")
            continue
        for start, stop, is_kept in _split(begin, end, aside()):
            missing = f"messages {start} to {stop - 1}"
            if is_kept:
                yield Finding(path, position, "quarantined", f"{missing}: another owner replaced messages before them")
            else:
                yield Finding(path, position, "damaged", f"{missing} {nowhere}")


def _split(first: int, after: int, ranges: _Ranges) -> Iterator[tuple[int, int, bool]]:
    """Split the offsets from *first* to below *after* into parts that are in *ranges* and parts that are not."""
    at = first
    for begin, end in [*ranges, (after, after)]:
        if at < min(begin, after):
            yield at, min(begin, after), False
        at = max(at, min(begin, after))
        if at < min(end, after):
            yield at, min(end, after), True
        at = max(at, min(end, after))


def _replaced(fs: FileSystem, directory: str) -> list[tuple[int, int]]:
    """Return the ranges of offsets of superseded messages in the quarantine."""
    found = []
    for one in _quarantined(fs, directory):
        start = parse_superseded_name(one.path.rpartition("/")[2].replace(REAPPENDED_SUFFIX, SUPERSEDED_SUFFIX))
        if start is None:
            continue
        first = first_offset_of(fs, one.path, fs.stat(one.path).size_bytes, known=None, above=0)
        if first is None:
            continue
        with FrameScanner(fs, one.path, position=0, end=None, expected=first, marks=FileMarks()) as scanner:
            while scanner.step() is not None:
                pass
            found.append((start, scanner.expected))
    return sorted(found)


def _check_file(fs: FileSystem, file: LocalFile, *, is_last: bool, findings: list[Finding]) -> CheckedFile:
    if file.first_offset is None:
        if file.size_bytes:
            findings.append(Finding(file.path, 0, "torn tail", "no complete message in it"))
        return CheckedFile(file.path, file.seq, None, None, 0, file.size_bytes)
    messages = 0
    with FrameScanner(fs, file.path, position=0, end=None, expected=file.first_offset, marks=FileMarks()) as scanner:
        while (step := scanner.step()) is not None:
            if isinstance(step, Good):
                messages += len(step.frames)
                wrong = [at for at, place in enumerate(step.frames, step.first_offset) if place[0] != at]
                findings += [
                    Finding(file.path, step.position, "damaged", f"the header of message {at} has another offset")
                    for at in wrong
                ]
            elif step.next_offset is not None:
                findings.append(_damage_of(fs, file.path, step, step.next_offset))
            else:
                findings.append(Finding(file.path, step.start, "torn tail" if is_last else "damaged", step.reason))
        end = scanner.expected
    return CheckedFile(file.path, file.seq, file.first_offset, end, messages, file.size_bytes)


def _damage_of(fs: FileSystem, path: str, lost: Lost, next_offset: int) -> Finding:
    """Describe a damaged range; it counts as quarantined if its bytes were copied to the quarantine before."""
    directory, _, name = path.rpartition("/")
    file = fs.open_read(path)
    try:
        data = file.pread(lost.end - lost.start, lost.start)
    finally:
        file.close()
    reason = f"messages {lost.first_offset} to {next_offset - 1}: {lost.reason}"
    copy = damaged_copy(f"{directory}/{QUARANTINE_DIR}", name, data)
    if fs.exists(copy):
        return Finding(path, lost.start, "quarantined", f"{reason}; kept as {copy.rpartition('/')[2]}")
    return Finding(path, lost.start, "damaged", reason)


def saved_subscriptions(fs: FileSystem, directory: str) -> tuple[list[SavedSubscription], list[Finding]]:
    """Return the saved subscriptions of a topic, and findings for damaged ones."""
    keep = SubscriptionFiles(fs, directory)
    found: list[SavedSubscription] = []
    problems: list[Finding] = []
    for name in keep.names():
        try:
            saved = keep.load(name)
        except CorruptionError as error:
            problems.append(Finding(error.path, error.offset, "damaged", error.reason))
            continue
        if saved is not None:
            found.append(saved)
    return found, problems


def _quarantined(fs: FileSystem, directory: str) -> list[Finding]:
    path = f"{directory}/{QUARANTINE_DIR}"
    try:
        names = fs.list_dir(path)
    except FileNotFoundError:
        return []
    return [Finding(f"{path}/{name}", 0, "quarantined", _why_kept(name)) for name in names]


def _why_kept(name: str) -> str:
    if name.endswith(SUPERSEDED_SUFFIX):
        return "another owner has other messages at these offsets: quiver topic reappend appends them again"
    if name.endswith(REAPPENDED_SUFFIX):
        return "another owner had other messages at these offsets; they are in the topic again: delete this file"
    return "a copy of damaged bytes"
