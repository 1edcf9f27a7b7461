"""The smallest log that fulfils the contract of append logs; each careless variant of it fails."""

from __future__ import annotations

import struct

import pytest

from quiver.errors import CapacityError, StoreClosedError, StoreFailedError
from quiver.primitives.checksum import crc32
from quiver.testing.log_contract import AppendLogContract

HEAD = struct.Struct("<II")
PATH = "/log/data"


class SmallLog:
    """One file of length, checksum, record."""

    retries_syncs = False
    syncs_on_open = True
    syncs_names = True
    checks_sums = True
    cuts_failed_writes = True

    def __init__(self, fs):
        self.fs = fs
        self.failed = self.closed = False
        fs.make_dirs("/log")
        if not fs.exists(PATH):
            fs.create(PATH).close()
        if self.syncs_names:
            fs.sync_dir("/log")
        self.file = fs.open_write(PATH)
        self.end = self.scan()[1]
        self.file.truncate(self.end)
        if self.syncs_on_open:
            self.file.sync()

    def scan(self):
        data = self.file.pread(1 << 20, 0)
        found, at = [], 0
        while at + HEAD.size <= len(data):
            size, checksum = HEAD.unpack_from(data, at)
            body = data[at + HEAD.size : at + HEAD.size + size]
            if size == 0 or len(body) < size or (self.checks_sums and crc32(body) != checksum):
                break
            found.append(body)
            at += HEAD.size + size
        return found, at

    def append(self, record, *, durable):
        if self.closed:
            raise StoreClosedError("closed")
        if self.failed:
            raise StoreFailedError("failed")
        entry = HEAD.pack(len(record), crc32(record)) + record
        try:
            self.file.pwrite(entry, self.end)
        except OSError as error:
            if error.errno == 28:
                if self.cuts_failed_writes:
                    self.file.truncate(self.end)
                else:
                    self.end = self.file.size()
                raise CapacityError("disk") from error
            self.failed = True
            raise StoreFailedError(str(error)) from error
        self.end += len(entry)
        if durable:
            self.sync()
        return self.end

    def sync(self):
        try:
            self.file.sync_data()
        except OSError as error:
            if self.retries_syncs:
                self.file.sync_data()
                return
            self.failed = True
            raise StoreFailedError(str(error)) from error

    def upkeep(self):
        pass

    def read(self):
        return self.scan()[0]

    def close(self):
        if not self.closed and not self.failed:
            self.sync()
        self.closed = True
        self.file.close()


class SmallLogContract(AppendLogContract):
    log = SmallLog
    seeds = tuple(range(10))

    def open_log(self, fs):
        return self.log(fs)

    def tail(self, fs):
        return PATH, self.log(fs.clone_after_kill()).end


class TestSmallLog(SmallLogContract):
    """It fulfils every guarantee."""


@pytest.mark.parametrize(
    ("carelessness", "test", "words"),
    [
        ("retries_syncs", "a_failed_log_refuses_until_it_is_opened_again", "were promised"),
        ("syncs_on_open", "a_crash_at_any_step_keeps_what_was_acknowledged", "recovering twice equals once"),
        ("syncs_names", "a_crash_at_any_step_keeps_what_was_acknowledged", "recovering twice equals once"),
        ("checks_sums", "a_crash_at_any_step_keeps_what_was_acknowledged", "a record is complete"),
        ("cuts_failed_writes", "a_full_disk_is_temporary", "each record exists once"),
    ],
)
def test_a_broken_guarantee_is_detected(carelessness, test, words):
    """The test of a guarantee fails when the guarantee is broken, and names it."""
    careless = type("Careless", (SmallLog,), {carelessness: not getattr(SmallLog, carelessness)})
    contract = type("Contract", (SmallLogContract,), {"log": careless})()
    with pytest.raises(AssertionError, match=f"broken promise: .*{words}"):
        getattr(contract, f"test_{test}")()
