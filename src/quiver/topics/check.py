"""
A topic's directory told to people: what is in it, and what is wrong with it. Reads only; safe beside a live writer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from quiver.errors import Damaged
from quiver.primitives.files import FileSystem
from quiver.primitives.findings import Finding
from quiver.topics.dispatch.saved import SubscriptionFiles
from quiver.topics.format.names import ACTIVE_FILE, QUARANTINE_DIR
from quiver.topics.format.subscription import SavedSubscription
from quiver.topics.recovery import LocalFile, base_name_of, load_checkpoint, local_files
from quiver.topics.wal_files import FileMarks, FrameScanner, Good

__all__ = ["CheckedFile", "CheckedTopic", "check_topic_directory", "saved_subscriptions"]


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """
    One log file, read whole.
    """

    path: str
    seq: int
    first_offset: int | None
    next_offset: int | None
    messages: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CheckedTopic:
    """
    What a directory holds, and what was found on the way.
    """

    directory: str
    start_offset: int
    next_offset: int
    synced_offset: int | None
    files: tuple[CheckedFile, ...]
    subscriptions: tuple[SavedSubscription, ...]
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """
        Say whether nothing is damaged.
        """
        return not any(finding.damaged for finding in self.findings)

    @property
    def size_bytes(self) -> int:
        """
        Bytes of all log files.
        """
        return sum(file.size_bytes for file in self.files)

    def as_dict(self) -> dict[str, Any]:
        """
        Return the same as plain values.
        """
        return {
            "directory": self.directory,
            "start_offset": self.start_offset,
            "next_offset": self.next_offset,
            "synced_offset": self.synced_offset,
            "size_bytes": self.size_bytes,
            "sound": self.sound,
            "files": [asdict(file) for file in self.files],
            "subscriptions": [asdict(one) for one in self.subscriptions],
            "findings": [finding.as_dict() for finding in self.findings],
        }


def check_topic_directory(files: FileSystem, directory: str) -> CheckedTopic:
    """
    Read everything in a topic's directory, whatever its files are called.

    Raises:
        OSError: it cannot be read.
    """
    findings: list[Finding] = []
    checkpoint = load_checkpoint(files, directory)
    if isinstance(checkpoint, Damaged):
        findings.append(Finding(checkpoint.path, checkpoint.offset, "damaged", checkpoint.reason))
        checkpoint = None
    file_name = (None if checkpoint is None else base_name_of(checkpoint)) or ACTIVE_FILE
    found = local_files(files, directory, file_name=file_name, checkpoint=checkpoint)
    checked: list[CheckedFile] = []
    for at, file in enumerate(found):
        above = next((one.first_offset for one in found[at + 1 :] if one.first_offset is not None), None)
        checked.append(_check_file(files, file, above=above, is_last=at + 1 == len(found), findings=findings))
    ends = [file.next_offset for file in checked if file.next_offset is not None]
    tip = max(ends, default=0)
    synced = None if checkpoint is None else checkpoint.last_offset + 1
    if synced is not None and synced > tip and found:
        findings.append(
            Finding(found[-1].path, found[-1].size_bytes, "damaged", f"messages below {synced} were synced")
        )
    subscriptions, problems = saved_subscriptions(files, directory)
    findings += problems
    findings += _kept_aside(files, directory)
    start = next((file.first_offset for file in checked if file.first_offset is not None), synced or 0)
    return CheckedTopic(
        directory, start, max(tip, synced or 0), synced, tuple(checked), tuple(subscriptions), tuple(findings)
    )


def _check_file(
    files: FileSystem, file: LocalFile, *, above: int | None, is_last: bool, findings: list[Finding]
) -> CheckedFile:
    if file.first_offset is None:
        if file.size_bytes:
            findings.append(Finding(file.path, 0, "torn tail", "no whole message in it"))
        return CheckedFile(file.path, file.seq, None, None, 0, file.size_bytes)
    messages = 0
    with FrameScanner(files, file.path, position=0, end=None, expected=file.first_offset, marks=FileMarks()) as scanner:
        while (step := scanner.step()) is not None:
            if isinstance(step, Good):
                messages += len(step.frames)
                wrong = [at for at, place in enumerate(step.frames, step.first_offset) if place[0] != at]
                findings += [
                    Finding(file.path, step.position, "damaged", f"the header of message {at} says another offset")
                    for at in wrong
                ]
            elif step.next_offset is not None:
                lost = f"messages {step.first_offset} to {step.next_offset - 1}: {step.reason}"
                findings.append(Finding(file.path, step.start, "damaged", lost))
            else:
                findings.append(Finding(file.path, step.start, "torn tail" if is_last else "damaged", step.reason))
        end = scanner.expected
    if above is not None and above > end:
        findings.append(Finding(file.path, file.size_bytes, "damaged", f"messages {end} to {above - 1} are in no file"))
    return CheckedFile(file.path, file.seq, file.first_offset, end, messages, file.size_bytes)


def saved_subscriptions(files: FileSystem, directory: str) -> tuple[list[SavedSubscription], list[Finding]]:
    """
    Return the subscriptions of a topic, and what is wrong with those that cannot be read.
    """
    keep = SubscriptionFiles(files, directory)
    found: list[SavedSubscription] = []
    problems: list[Finding] = []
    for name in keep.names():
        try:
            saved = keep.load(name)
        except Damaged as error:
            problems.append(Finding(error.path, error.offset, "damaged", error.reason))
            continue
        if saved is not None:
            found.append(saved)
    return found, problems


def _kept_aside(files: FileSystem, directory: str) -> list[Finding]:
    path = f"{directory}/{QUARANTINE_DIR}"
    try:
        names = files.list_dir(path)
    except FileNotFoundError:
        return []
    return [
        Finding(f"{path}/{name}", 0, "quarantined", "kept aside: damaged, or replaced by another owner")
        for name in names
    ]
