"""
The contract of file systems: inherit it and provide fixtures, to test an implementation against the port.

::

    class TestMyFiles(FileSystemContract):
        @pytest.fixture
        def files(self): ...           # a quiver.primitives.disk.file_system.FileSystem
        @pytest.fixture
        def root(self): ...            # an existing, empty directory of it, without a trailing slash

Power loss is not part of it, because it cannot be tested on a real disk; use `quiver.testing.crashfs` for that.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quiver.primitives.disk.file_system import File, FileSystem
from quiver.primitives.disk.prealloc import reserve_blocks, zero_fill

__all__ = ["FileSystemContract"]


def _require(condition: bool, promise: str) -> None:  # noqa: FBT001
    if not condition:
        raise AssertionError(f"broken promise: {promise}")


@contextmanager
def _refused(kind: type[OSError], path: str, number: int | None = None) -> Iterator[None]:
    try:
        yield
    except kind as error:
        _require(error.filename == path, f"the error names {path}, not {error.filename}")
        _require(number is None or error.errno == number, f"the error is {number}, not {error.errno}")
    else:
        raise AssertionError(f"broken promise: {kind.__name__} is raised")


def _write(fs: FileSystem, path: str, data: bytes) -> None:
    file = fs.create_or_truncate(path)
    try:
        file.pwrite(data, 0)
    finally:
        file.close()


@contextmanager
def _opened(file: File) -> Iterator[File]:
    try:
        yield file
    finally:
        file.close()


class FileSystemContract:
    """Tests for every `FileSystem`. Subclasses provide the fixtures ``fs`` and ``root``."""

    def test_read_returns_written_bytes(self, fs: FileSystem, root: str) -> None:
        """A write is visible on return, at its offset, through any handle. A hole reads as zeros."""
        with _opened(fs.create(f"{root}/f")) as file:
            file.pwrite(b"world", 5000)
            file.pwrite(bytearray(b"hello"), 0)
            file.pwrite(memoryview(b"HELLO")[:2], 0)
            _require(file.pread(5, 0) == b"HEllo", "bytes are where they were written")
            with _opened(fs.open_read(f"{root}/f")) as reader:
                _require(reader.pread(10, 4998) == b"\0\0world", "a short read ends at the end of the file")
                _require(reader.pread(10, 9999) == b"", "a read past the end is empty")
                _require(reader.pread(0, 0) == b"", "a read of no bytes is empty")
                _require(reader.size() == 5005, "the size is the end of the last write")

    def test_gathered_writes_join_their_parts(self, fs: FileSystem, root: str) -> None:
        """`pwritev` writes any number of parts, including empty ones, in order."""
        for count in (0, 1, 3, 3000):
            parts = [b"%d," % index if index % 5 else b"" for index in range(count)]
            with _opened(fs.create_or_truncate(f"{root}/f")) as file:
                file.pwritev(parts, 7)
                _require(file.pread(100_000, 7) == b"".join(parts), f"{count} parts are joined")

    def test_wide_views_count_in_bytes(self, fs: FileSystem, root: str) -> None:
        """A view of 8-byte items is written completely."""
        with _opened(fs.create(f"{root}/f")) as file:
            file.pwrite(memoryview(bytes(range(16))).cast("Q"), 0)
            _require(file.pread(99, 0) == bytes(range(16)), "16 bytes are 16 bytes")

    def test_truncate_cuts_and_extends(self, fs: FileSystem, root: str) -> None:
        """Truncated bytes are lost: after the file is extended again, they read as zeros."""
        with _opened(fs.create(f"{root}/f")) as file:
            file.pwrite(b"x" * 10_000, 0)
            file.truncate(5000)
            _require(file.size() == 5000, "the file is truncated")
            file.truncate(10_000)
            _require(file.pread(10_000, 0) == b"x" * 5000 + bytes(5000), "new bytes are zero")

    def test_create_never_opens_an_existing_file(self, fs: FileSystem, root: str) -> None:
        """`create` refuses; `create_or_truncate` empties."""
        _write(fs, f"{root}/f", b"old")
        with _refused(FileExistsError, f"{root}/f"):
            fs.create(f"{root}/f")
        with _opened(fs.create_or_truncate(f"{root}/f")) as file:
            _require(file.size() == 0, "it is empty")

    def test_missing_names_are_errors(self, fs: FileSystem, root: str) -> None:
        """Calls that need an existing file raise FileNotFoundError with the path."""
        path = f"{root}/missing"
        calls: tuple[Callable[[str], object], ...] = (
            fs.open_read, fs.open_write, fs.map_read, fs.remove, fs.stat,
            fs.list_dir, fs.sync_dir, fs.free_bytes,
        )  # fmt: skip
        for call in calls:
            with _refused(FileNotFoundError, path):
                call(path)
        with _refused(FileNotFoundError, path):
            fs.rename(path, f"{root}/other")
        with _refused(FileNotFoundError, path):
            fs.read_all(path, size_max=10)
        with _refused(FileNotFoundError, f"{path}/f"):
            fs.create(f"{path}/f")
        _require(not fs.exists(path), "it does not exist")
        _require(not fs.exists(f"{path}/f"), "nor does anything below it")

    def test_a_file_is_not_a_directory(self, fs: FileSystem, root: str) -> None:
        """Calls that need a directory raise NotADirectoryError; nothing exists below a file."""
        _write(fs, f"{root}/f", b"")
        with _refused(NotADirectoryError, f"{root}/f"):
            fs.list_dir(f"{root}/f")
        with _refused(NotADirectoryError, f"{root}/f"):
            fs.sync_dir(f"{root}/f")
        with _refused(NotADirectoryError, f"{root}/f"):
            fs.make_dirs(f"{root}/f")
        _require(not fs.exists(f"{root}/f/g"), "nothing exists below a file")

    def test_a_reader_cannot_write(self, fs: FileSystem, root: str) -> None:
        """A handle of `open_read` refuses to write; a closed handle refuses every call."""
        _write(fs, f"{root}/f", b"x")
        with _opened(fs.open_read(f"{root}/f")) as reader, _refused(OSError, f"{root}/f", errno.EBADF):
            reader.pwrite(b"y", 0)
        file = fs.open_write(f"{root}/f")
        file.close()
        file.close()
        for call in (file.size, file.sync, file.sync_data, lambda: file.pread(1, 0), lambda: file.set_mode(0o600)):
            with _refused(OSError, f"{root}/f", errno.EBADF):
                call()

    def test_rename_replaces(self, fs: FileSystem, root: str) -> None:
        """After a rename only the new name exists; handles follow the file."""
        _write(fs, f"{root}/old", b"new contents")
        _write(fs, f"{root}/target", b"old contents")
        with _opened(fs.open_read(f"{root}/target")) as before:
            fs.rename(f"{root}/old", f"{root}/target")
            _require(before.pread(99, 0) == b"old contents", "an open handle keeps its file")
        _require(fs.list_dir(root) == ["target"], "one name is left")
        _require(fs.read_all(f"{root}/target", size_max=99) == b"new contents", "it was replaced")
        fs.rename(f"{root}/target", f"{root}/target")
        _require(fs.list_dir(root) == ["target"], "renaming to itself changes nothing")

    def test_link_gives_a_second_name(self, fs: FileSystem, root: str) -> None:
        """Both names refer to one file until the last is removed. An existing target stays unchanged."""
        _write(fs, f"{root}/first", b"same")
        _write(fs, f"{root}/taken", b"other")
        fs.link(f"{root}/first", f"{root}/second")
        _require(fs.stat(f"{root}/second").inode == fs.stat(f"{root}/first").inode, "both are one file")
        with _refused(FileExistsError, f"{root}/first"):
            fs.link(f"{root}/first", f"{root}/taken")
        with _refused(FileNotFoundError, f"{root}/nothing"):
            fs.link(f"{root}/nothing", f"{root}/third")
        fs.remove(f"{root}/first")
        _require(
            fs.read_all(f"{root}/second", size_max=9) == b"same", "the contents stay available under the other name"
        )
        _require(fs.list_dir(root) == ["second", "taken"], "nothing else was made")

    def test_rename_between_directories(self, fs: FileSystem, root: str) -> None:
        """A file moves with its contents."""
        fs.make_dirs(f"{root}/a")
        fs.make_dirs(f"{root}/b")
        _write(fs, f"{root}/a/f", b"x")
        fs.rename(f"{root}/a/f", f"{root}/b/g")
        fs.sync_dir(f"{root}/b")
        fs.sync_dir(f"{root}/a")
        _require(fs.list_dir(f"{root}/a") == [], "it is no longer in the source")
        _require(fs.read_all(f"{root}/b/g", size_max=1) == b"x", "it is in the target")

    def test_make_dirs_makes_parents(self, fs: FileSystem, root: str) -> None:
        """Missing parents are created with the mode; existing ones stay unchanged."""
        fs.make_dirs(f"{root}/a/b/c", mode=0o750)
        _write(fs, f"{root}/a/b/f", b"x")
        fs.make_dirs(f"{root}/a/b")
        fs.make_dirs(f"{root}/a/b/c/d/")
        _require(fs.list_dir(f"{root}/a/b") == ["c", "f"], "names are sorted")
        _require(fs.exists(f"{root}/a/b/c/d"), "the last one exists, too")
        _require(fs.stat(f"{root}/a/b/c").mode == 0o750, "the mode is the requested one, regardless of the umask")

    def test_stat(self, fs: FileSystem, root: str) -> None:
        """Size, mode, time and inode are right; another file has another inode."""
        with _opened(fs.create(f"{root}/f", mode=0o640)) as file:
            file.pwrite(b"12345", 0)
            file.sync_data()
            found = fs.stat(f"{root}/f")
            _require(found.size_bytes == 5, "the size is right")
            _require(found.mode == 0o640, "the mode is the requested one, regardless of the umask")
            _require(found.modified_ns > 0, "there is a time")
            file.set_mode(0o440)
            file.sync()
            _require(fs.stat(f"{root}/f").mode == 0o440, "the mode can be changed")
        _write(fs, f"{root}/g", b"")
        _require(fs.stat(f"{root}/g").inode != found.inode, "two files have two inodes")
        _require(fs.free_bytes(root) > 0, "the disk has free space")

    def test_read_all_is_bounded(self, fs: FileSystem, root: str) -> None:
        """A file of exactly the limit is read; one byte more is EFBIG."""
        _write(fs, f"{root}/f", b"12345")
        _require(fs.read_all(f"{root}/f", size_max=5) == b"12345", "the limit itself is fine")
        with _refused(OSError, f"{root}/f", errno.EFBIG):
            fs.read_all(f"{root}/f", size_max=4)

    def test_a_mapping_outlives_everything(self, fs: FileSystem, root: str) -> None:
        """A view stays valid after its mapping is closed and its file unlinked. An empty file maps to an empty view."""
        _write(fs, f"{root}/f", b"x" * 10_000)
        mapping = fs.map_read(f"{root}/f")
        view = mapping.view()
        _require(view.readonly, "the view is read-only")
        fs.remove(f"{root}/f")
        mapping.close()
        mapping.close()
        _require(bytes(view[9_990:]) == b"x" * 10, "the bytes are still there")
        _write(fs, f"{root}/empty", b"")
        _require(len(fs.map_read(f"{root}/empty").view()) == 0, "empty is empty")

    def test_a_writable_mapping_is_the_file(self, fs: FileSystem, root: str) -> None:
        """Stores are visible through any handle immediately, and writes are visible in the mapping."""
        with _opened(fs.create(f"{root}/f")) as file:
            reserve_blocks(file, 0, 10_000, on_unsupported="zeros")
            mapping = file.map_write()
            view = mapping.view()
            view[5_000:5_004] = b"data"
            _require(file.pread(6, 4_999) == b"\0data\0", "a store is visible in the file")
            file.pwrite(b"DA", 5_000)
            _require(bytes(view[5_000:5_004]) == b"DAta", "a write is visible in the mapping")
            mapping.touch(0, 10_000)
            mapping.sync()
            _require(file.pread(4, 5_000) == b"DAta", "writing again and syncing change nothing")
            mapping.close()
            mapping.close()
        _require(fs.read_all(f"{root}/f", size_max=10_000)[5_000:5_004] == b"DAta", "it stays after closing")

    def test_a_removed_file_frees_its_name(self, fs: FileSystem, root: str) -> None:
        """Its name is free immediately; open handles stay valid."""
        with _opened(fs.create(f"{root}/f")) as file:
            file.pwrite(b"old", 0)
            fs.remove(f"{root}/f")
            fs.sync_dir(root)
            _write(fs, f"{root}/f", b"new")
            _require(file.pread(9, 0) == b"old", "the handle keeps its file")
            _require(fs.read_all(f"{root}/f", size_max=9) == b"new", "the name belongs to another file")

    def test_an_empty_directory_can_be_removed(self, fs: FileSystem, root: str) -> None:
        """A directory that is not empty cannot be removed and stays unchanged."""
        fs.make_dirs(f"{root}/d")
        _write(fs, f"{root}/d/f", b"kept")
        with _refused(OSError, f"{root}/d", errno.ENOTEMPTY):
            fs.remove_dir(f"{root}/d")
        _require(fs.read_all(f"{root}/d/f", size_max=9) == b"kept", "nothing was removed")
        fs.remove(f"{root}/d/f")
        fs.remove_dir(f"{root}/d")
        _require(not fs.exists(f"{root}/d"), "it is removed")
        with _refused(FileNotFoundError, f"{root}/d"):
            fs.remove_dir(f"{root}/d")

    def test_locks_exclude(self, fs: FileSystem, root: str) -> None:
        """A lock has one holder at a time, who is named in the note. A second release has no effect."""
        first = fs.try_lock(f"{root}/lock", note="the first")
        _require(first is not None, "a free lock is taken")
        _require(fs.try_lock(f"{root}/lock", note="the second") is None, "a held lock is not")
        note = fs.read_all(f"{root}/lock", size_max=4096).decode()
        _require(note.startswith("pid ") and note.endswith(" the first\n"), f"the note names the holder: {note!r}")
        if first is not None:
            first.release()
            second = fs.try_lock(f"{root}/lock", note="the second")
            _require(second is not None, "a released lock is free")
            first.release()
            _require(fs.try_lock(f"{root}/lock", note="the third") is None, "its first holder cannot free it")
            if second is not None:
                second.release()

    def test_a_removed_lock_file_has_no_effect(self, fs: FileSystem, root: str) -> None:
        """The lock of a path is the lock of the file that has this path now."""
        old = fs.try_lock(f"{root}/lock", note="old")
        fs.remove(f"{root}/lock")
        new = fs.try_lock(f"{root}/lock", note="new")
        _require(old is not None and new is not None, "both are held, of two files")
        for lock in (old, new):
            if lock is not None:
                lock.release()

    def test_reserved_blocks_read_as_zeros(self, fs: FileSystem, root: str) -> None:
        """Reserving grows the file without changing its contents, and never shrinks it."""
        with _opened(fs.create(f"{root}/f")) as file:
            file.pwrite(b"data", 0)
            reserve_blocks(file, 2, 10_000, on_unsupported="zeros")
            reserve_blocks(file, 0, 100, on_unsupported="zeros")
            _require(file.pread(99_999, 0) == b"data" + bytes(9_998), "data, then zeros")
            zero_fill(file, 1, 2)
            _require(file.pread(4, 0) == b"d\0\0a", "zero_fill overwrites the range")

    def test_threads_write_concurrently(self, fs: FileSystem, root: str) -> None:
        """Offsets are explicit: writers of different ranges do not affect each other."""
        with _opened(fs.create(f"{root}/f")) as file:

            def fill(worker: int) -> None:
                for index in range(50):
                    file.pwrite(bytes([worker + 1]) * 100, (index * 4 + worker) * 100)

            threads = [threading.Thread(target=fill, args=(worker,)) for worker in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            expected = b"".join(bytes([worker + 1]) * 100 for worker in range(4)) * 50
            _require(file.pread(99_999, 0) == expected, "every byte is where its writer put it")
