"""
The log of compactions of a lake: which file replaces which others, one after another.

::

    _compaction/0000000007.json        the record: the output, its staged part, and the inputs
    _compaction/staged/0000000007-….part

A record is put only if there is none with its number, so of two compactors one continues and the other stops. A
compaction is finished before the next record is put:

1. the part is copied to its final name, if it is not there yet
2. the inputs are deleted
3. the part is deleted

The output is visible before the first input is deleted: no step leaves rows without a visible file. No object store can
exchange several files at once, so between 1 and the end of 2 a reader that lists the files sees rows twice. A reader
that asks `CompactionLog.current_files` never does: the record tells which files count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from quiver.errors import CorruptionError, ObjectExistsError, ObjectNotFoundError, ObjectsUnavailableError
from quiver.invariant import invariant
from quiver.objects.port import ObjectInfo, ObjectTier
from quiver.spark.exporters.commit_records import RECORD_BYTES_MAX, decode_record, encode_record

__all__ = ["COMPACTION_DIR", "CompactionLog", "CompactionRecord", "LakeFile", "visible_files"]

COMPACTION_DIR = "_compaction"
RECORDS_KEPT = 100
_STAGED = f"{COMPACTION_DIR}/staged"
_RECORD_VERSION = 1
_LISTINGS_MAX = 10


@dataclass(frozen=True, slots=True)
class LakeFile:
    """
    A visible file.

    Attributes:
        key: its name below the lake.
        size_bytes: its size.
    """

    key: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CompactionRecord:
    """
    One committed compaction.

    Attributes:
        number: of the record; they are consecutive.
        part: the key of the staged part.
        output: the file that replaces the inputs.
        rows: its rows.
        inputs: the files that it replaces.
    """

    number: int
    part: str
    output: LakeFile
    rows: int
    inputs: tuple[LakeFile, ...]

    def encode(self) -> bytes:
        """Return the record as JSON with a CRC-32 over its body."""
        return encode_record(_RECORD_VERSION, asdict(self))

    @classmethod
    def decode(cls, data: bytes, key: str) -> CompactionRecord:
        """
        Decode a record.

        Raises:
            CorruptionError: the record is damaged, or has a newer version.
        """
        return decode_record(data, key, "record of a compaction", {_RECORD_VERSION}, cls._parsed)

    @classmethod
    def _parsed(cls, body: dict[str, Any]) -> CompactionRecord:
        inputs = tuple(LakeFile(str(one["key"]), int(one["size_bytes"])) for one in body["inputs"])
        output = LakeFile(str(body["output"]["key"]), int(body["output"]["size_bytes"]))
        return cls(int(body["number"]), str(body["part"]), output, int(body["rows"]), inputs)


class CompactionLog:
    """
    The compactions of the lake in *objects*.

    Args:
        objects: the lake; keys are relative to it.
    """

    def __init__(self, objects: ObjectTier) -> None:
        self._objects = objects

    def last(self) -> CompactionRecord | None:
        """
        Return the newest record; None before the first compaction.

        Raises:
            CorruptionError: it is damaged.
            ObjectsUnavailableError: the object store does not answer.
        """
        numbers = [_number_of(info.key) for info in self._objects.list_below(COMPACTION_DIR)]
        number = max((one for one in numbers if one is not None), default=None)
        if number is None:
            return None
        key = _record_key(number)
        return CompactionRecord.decode(self._objects.get(key, size_max=RECORD_BYTES_MAX), key)

    def staged_key(self, number: int, token: str) -> str:
        """Return the key of the part of compaction *number*; *token* distinguishes compactors."""
        return f"{_STAGED}/{number:010}-{token}.part"

    def commit(self, record: CompactionRecord) -> bool:
        """Put *record* and return True; return False if another compactor has put its number."""
        try:
            self._objects.put(_record_key(record.number), record.encode(), if_absent=True)
        except ObjectExistsError:
            return False
        return True

    def finish(self, record: CompactionRecord) -> None:
        """
        Make the output of *record* visible, and delete its inputs. Repeating this is harmless.

        Raises:
            CorruptionError: the output is missing. Then the inputs stay.
            ObjectsUnavailableError: the object store does not answer. The next compaction continues.
        """
        output = self._head(record.output.key)
        if output is None:
            try:
                output = self._objects.copy(record.part, record.output.key)
            except ObjectNotFoundError:
                output = self._head(record.output.key)  # another process has just finished it
        if output is None:
            newest = self.last()
            if newest is not None and newest.number > record.number:
                return  # another process has finished it, and compacted its output since
            raise CorruptionError(
                record.output.key, 0, f"compaction {record.number} has neither its part nor its output; its inputs stay"
            )
        if output.size_bytes != record.output.size_bytes:
            raise ObjectsUnavailableError("copy", output.key, "the copy differs from the part in its size")
        inputs = [one.key for one in record.inputs]
        invariant(record.output.key not in inputs, "the inputs of a compaction are deleted after its output is visible")
        self._objects.delete(inputs)
        # A part of this number or an earlier one was copied, or belongs to a compactor that another one overtook.
        self._objects.delete(
            [info.key for info in self._objects.list_below(_STAGED) if _part_number(info.key) <= record.number]
        )
        if record.number >= RECORDS_KEPT:
            self._objects.delete([_record_key(record.number - RECORDS_KEPT)])

    def current_files(self) -> list[LakeFile]:
        """
        Return the files that have each row once, also while a compaction runs or after it was killed.

        Raises:
            CorruptionError: the newest record is damaged, or files that it names are missing.
            ObjectsUnavailableError: the object store does not answer.
        """
        for _ in range(_LISTINGS_MAX):
            record = self.last()
            files = {info.key: LakeFile(info.key, info.size_bytes) for info in visible_files(self._objects)}
            again = self.last()
            if record != again:
                continue
            if record is None:
                return list(files.values())
            inputs = {one.key for one in record.inputs}
            if record.output.key in files:
                return [one for key, one in files.items() if key not in inputs]
            if inputs <= files.keys():
                return list(files.values())  # no input is deleted before the output is visible
            # The listing took so long that the compaction went on meanwhile.
        raise ObjectsUnavailableError("list", COMPACTION_DIR, "files of the newest compaction are missing, or change")

    def _head(self, key: str) -> ObjectInfo | None:
        try:
            return self._objects.head(key)
        except ObjectNotFoundError:
            return None


def visible_files(objects: ObjectTier) -> Iterable[ObjectInfo]:
    """Yield the objects that a reader of ``**/*.parquet`` sees."""
    return (info for info in objects.list_below("") if _is_visible(info.key))


def _is_visible(key: str) -> bool:
    """Return whether readers see *key*: they ignore names that begin with ``_`` or a dot."""
    return key.endswith(".parquet") and not any(name.startswith(("_", ".")) for name in key.split("/"))


def _record_key(number: int) -> str:
    return f"{COMPACTION_DIR}/{number:010}.json"


def _number_of(key: str) -> int | None:
    stem, dot, suffix = key.removeprefix(f"{COMPACTION_DIR}/").partition(".")
    return int(stem) if dot and suffix == "json" and stem.isdecimal() else None


def _part_number(key: str) -> int:
    digits = key.removeprefix(f"{_STAGED}/").partition("-")[0]
    return int(digits) if digits.isdecimal() else 2**63
