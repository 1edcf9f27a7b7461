"""A process that has no free descriptors still has reserved ones for its logs."""

import errno
import os
import subprocess
import sys
import textwrap

import pytest

from quiver.primitives.disk import descriptors
from quiver.primitives.disk.descriptors import DescriptorReserve, descriptor_limit, raise_descriptor_limit
from quiver.primitives.disk.disk_full import is_full_disk, is_out_of_descriptors, passes, what_is_short
from quiver.primitives.disk.real_files import REAL_FILES

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits of descriptors are those of Unix")

EXHAUSTED = """
import errno, os, resource
from quiver.primitives.disk.descriptors import RESERVE
from quiver.primitives.disk.real_files import REAL_FILES

resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
taken = []

def take_all():
    # What strangers do with sockets.
    while True:
        try:
            taken.append(os.dup(2))
        except OSError:
            return

"""


def in_a_small_process(program: str) -> str:
    """Run *program* in a process with 128 descriptors, `take_all` at hand; return what it prints."""
    code = EXHAUSTED + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr[-2000:]) == (0, "")
    return done.stdout.strip()


def test_errors_are_distinguished():
    full, short, machine, broken = (
        OSError(one, os.strerror(one)) for one in (errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.EIO)
    )
    assert [is_full_disk(one) for one in (full, short, machine, broken, None)] == [True, False, False, False, False]
    assert [is_out_of_descriptors(one) for one in (full, short, machine, broken, None)] == [
        False,
        True,
        True,
        False,
        False,
    ]
    assert [passes(one) for one in (full, short, machine, broken, ValueError())] == [True, True, True, False, False]
    assert what_is_short(full, "/d") == "the disk of /d is full"
    assert "no file descriptor left for /d (ulimit -n)" in what_is_short(short, "/d")
    assert "fs.file-max" in what_is_short(machine)


def test_reserved_descriptors_are_used_last_and_refilled_on_close():
    """In one step, so that no other thread can take the descriptor in between."""
    reserve = DescriptorReserve()
    reserve.keep(2)
    reserve.keep(1)
    assert len(reserve) == 2
    held = list(reserve._kept)
    refusals = iter([errno.EMFILE, errno.ENFILE])

    def opening():
        number = next(refusals, None)
        if number is not None:
            raise OSError(number, os.strerror(number))
        return os.open(os.devnull, os.O_RDONLY)

    opened = reserve.open(opening)
    assert len(reserve) == 2  # refilled: here there are descriptors
    for one in held:
        reserve._wanted = 3
        reserve.close(os.dup(one))
    assert len(reserve) == 3
    assert os.get_inheritable(reserve._kept[-1]) is False
    os.close(opened)
    for one in reserve._kept:
        os.close(one)


def test_only_a_lack_of_descriptors_uses_the_reserve():
    reserve = DescriptorReserve()

    def refused(number):
        def opening():
            raise OSError(number, os.strerror(number))

        return opening

    with pytest.raises(OSError, match="Too many open files"):
        reserve.open(refused(errno.EMFILE))
    reserve.keep(1)
    with pytest.raises(PermissionError):
        reserve.open(refused(errno.EACCES))
    assert len(reserve) == 1
    with pytest.raises(OSError, match="Too many open files"):
        reserve.open(refused(errno.EMFILE))
    os.close(os.open(os.devnull, os.O_RDONLY))


def test_the_limit_is_raised_to_the_hard_limit():
    program = """
        import resource
        from quiver.primitives.disk.descriptors import descriptor_limit, raise_descriptor_limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))
        print(descriptor_limit(), raise_descriptor_limit(), raise_descriptor_limit())
    """
    assert in_a_small_process(program) == "64 128 128"


def test_systems_without_limits_report_none(monkeypatch):
    monkeypatch.setattr(descriptors, "_resource", lambda: None)
    assert descriptor_limit() is None
    assert raise_descriptor_limit() is None


def test_a_log_can_write_while_other_code_uses_every_descriptor(tmp_path):
    """
    It opens ten times as many files as are reserved, one after the other, and syncs their names: closed descriptors
    return to the reserve.

    Readers are refused: they can try again.
    """
    program = f"""
        root = {str(tmp_path)!r}
        lock = REAL_FILES.try_lock(root + "/lock", note="test")
        take_all()
        for number in range(80):
            file = REAL_FILES.create(f"{{root}}/{{number}}")
            take_all()
            file.pwrite(b"x", 0)
            file.sync()
            file.close()
            take_all()
            REAL_FILES.rename(f"{{root}}/{{number}}", f"{{root}}/{{number}}.done")
            REAL_FILES.sync_dir(root)
            take_all()
        try:
            REAL_FILES.open_read(root + "/0.done")
        except OSError as error:
            print(error.errno == errno.EMFILE, len(RESERVE))
        for one in taken:
            os.close(one)
        lock.release()
    """
    assert in_a_small_process(program) == "True 8"
    assert len(list(tmp_path.glob("*.done"))) == 80


@pytest.mark.skipif(sys.platform != "linux", reason="on other systems, `sync` only starts writing")
def test_a_directory_is_synced_without_any_descriptor(tmp_path):
    """A rename cannot be undone, so a log that could not sync the directory would fail."""
    program = f"""
        take_all()
        REAL_FILES.sync_dir({str(tmp_path)!r})
        try:
            REAL_FILES.create({str(tmp_path / "file")!r})
        except OSError as error:
            print(error.errno == errno.EMFILE)
    """
    assert in_a_small_process(program) == "True"


def test_a_missing_directory_is_still_an_error():
    with pytest.raises(FileNotFoundError):
        REAL_FILES.sync_dir("/no/such/directory")


ALL_LOGS = """
import logging
from contextlib import closing

import pyarrow as pa, quiver
from quiver import Bundle, Settings
from quiver.aof import AofConfig, AofManager
from quiver.errors import TransientError
from quiver.qwp.slots.ring import RingSettings
from quiver.qwp.slots.slot import open_slot
from quiver.observe import InMemoryObserver
from quiver.topics import TopicStore

logging.disable(logging.CRITICAL)
store = quiver.open(root + "/store", Settings(segment_bytes_max=2000, wal_rotate_bytes=4000), background=False)
store.register("s", start="earliest")
topics = TopicStore.open(root + "/topics", settings={"wal": {"rotate_max_bytes": 2000}}, background=False)
topic = topics.topic("default/t")
aof = AofManager.open(root + "/aof", AofConfig(segment_min_bytes=65536, segment_target_bytes=65536), background=False)
log = aof.log("a")
slot = open_slot(REAL_FILES, root + "/sf", "edge", RingSettings(4096, 1 << 20, 0.0), observer=InMemoryObserver())
accepted = {"store": 0, "topics": 0, "aof": 0, "qwp": 0}

def attempt(name, work):
    try:
        work()
    except TransientError:
        return
    accepted[name] += 1

def work_once(number):
    text = str(number).zfill(4).encode() * 50
    attempt("store", lambda: store.ingest(Bundle({30: pa.record_batch({"n": [number], "t": [text]})}), durable=True))
    attempt("topics", lambda: topic.append(text, durable=True))
    attempt("aof", lambda: log.append_record(text * 20))
    attempt("qwp", lambda: slot.ring.append(text))
    for upkeep in (store.maintain, topics.maintain, aof.maintain, slot.ring.maintain):
        try:
            upkeep()
        except OSError as error:
            assert error.errno == errno.EMFILE, error
        except TransientError:
            pass

for number in range(40):
    work_once(number)
take_all()
for number in range(40, 120):
    work_once(number)
    take_all()
held = dict(accepted)
for one in taken:
    os.close(one)
store.seal()  # at once; by itself it would try again after a second
for number in range(120, 160):
    work_once(number)
assert all(accepted[name] - held[name] >= 39 for name in accepted), (held, accepted)
store.close(); topics.close(); aof.close(); slot.close()
bundles = sum(1 for _ in quiver.read(root + "/store").bundles())
with TopicStore.open(root + "/topics", background=False) as again:
    messages = sum(1 for _ in again.topic("default/t").reader(0, follow=False))
with AofManager.open(root + "/aof", aof.config, background=False) as again:
    records = sum(1 for _ in again.log("a").open_reader())
with closing(open_slot(REAL_FILES, root + "/sf", "edge", slot.ring.settings, observer=InMemoryObserver())) as again:
    frames = again.ring.published_fsn + 1
assert {"store": bundles, "topics": messages, "aof": records, "qwp": frames} == accepted, accepted
print({name: held[name] for name in held})
"""


def test_no_log_fails_when_descriptors_run_out(tmp_path):
    """A segment's temporary file could not be opened, and the log refused every further request."""
    found = eval(in_a_small_process(f"root = {str(tmp_path)!r}\n" + ALL_LOGS))
    assert all(40 <= count <= 120 for count in found.values())  # as long as what is kept for them lasts
