"""Groups of messages: each is stored in its slot once, however often it is sent and wherever it was interrupted."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from qwp_server import QwpServer

from quiver.errors import DirectoryInUseError, SenderHaltedError, UsageError
from quiver.observe import InMemoryObserver
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.qwp.groups import GROUP_NAME, Group, send_group
from quiver.qwp.rows import RowTable
from quiver.qwp.settings import SenderSettings
from quiver.qwp.slots.slot import open_slot
from quiver.qwp.wire.message import encode_message
from quiver.qwp.wire.responses import Refusal, Status, encode_refusal

pytestmark = pytest.mark.usefixtures("quiet")


def message(value):
    made = RowTable("t")
    made.append({}, {"v": value}, 1000 + value, bytes_max=1000)
    return encode_message([made.pack()])


MESSAGES = [message(value) for value in range(5)]


def settings(tmp_path, address="127.0.0.1:1", more=""):
    return SenderSettings.from_conf(
        f"ws::addr={address};sf_dir={tmp_path};sender_id=p0;close_flush_timeout_millis=0;{more}"
    )


def patient(tmp_path, server, more=""):
    return replace(settings(tmp_path, server.address, more), close_flush_s=20.0)


def test_a_group_that_is_sent_again_is_stored_once(tmp_path):
    """With and without a server in between."""
    group = Group("query", 7)
    first = send_group(settings(tmp_path), group, MESSAGES)
    again = send_group(settings(tmp_path), group, MESSAGES)
    assert [(one.messages, one.known, one.confirmed) for one in (first, again)] == [(5, 0, False), (5, 5, False)]

    with QwpServer() as server:
        assert send_group(patient(tmp_path, server), group, MESSAGES).confirmed
        assert send_group(patient(tmp_path, server), group, MESSAGES).known == 5
        assert server.frames == MESSAGES
        assert send_group(patient(tmp_path, server), Group("query", 8), [message(9)]).known == 0
        assert server.frames == [*MESSAGES, message(9)]


def test_another_content_under_the_same_number_is_sent(tmp_path):
    """The rows arrived in another order: duplicates are better than losses."""
    group = Group("query", 7)
    with QwpServer() as server:
        send_group(patient(tmp_path, server), group, MESSAGES)
        assert send_group(patient(tmp_path, server), group, MESSAGES[::-1]).known == 0
        assert server.frames == [*MESSAGES, *MESSAGES[::-1]]


@pytest.mark.parametrize("kept", range(6))
def test_an_interrupted_group_is_continued(tmp_path, kept):

    class Killed(Exception):
        pass

    def until_the_end():
        yield from MESSAGES[:kept]
        raise Killed

    group = Group("query", 1)
    send_group(settings(tmp_path), Group("query", 0), [message(77)])
    with pytest.raises(Killed):
        send_group(settings(tmp_path), group, until_the_end())

    with QwpServer() as server:
        sent = send_group(patient(tmp_path, server), group, MESSAGES)
        assert (sent.messages, sent.known, sent.confirmed) == (5, kept, True)
        assert server.frames == [message(77), *MESSAGES]
        # Everything was confirmed, and the slot starts at 0 again: only the note identifies the group.
        assert send_group(patient(tmp_path, server), group, MESSAGES).known == 5
        assert len(server.frames) == 6


PROGRAM = """
import os, sys
from quiver.qwp.groups import Group, send_group
from quiver.qwp.settings import SenderSettings
from test_groups import MESSAGES

def until_the_end():
    yield from MESSAGES[:3]
    os._exit(9)

send_group(SenderSettings.from_conf(sys.argv[1]), Group("query", 1), until_the_end())
"""


def test_an_executor_that_dies_halfway_leaves_no_duplicates(tmp_path):
    """No destructor runs: the lock is released with the process, and the note records that the group was started."""
    conf = f"ws::addr=127.0.0.1:1;sf_dir={tmp_path};sender_id=p0;close_flush_timeout_millis=0;"
    command = [sys.executable, "-c", PROGRAM, conf]
    died = subprocess.run(command, env={"PYTHONPATH": str(Path(__file__).parent)}, check=False, timeout=60)
    assert died.returncode == 9

    with QwpServer() as server:
        sent = send_group(patient(tmp_path, server), Group("query", 1), MESSAGES)
        assert (sent.known, sent.confirmed, server.frames) == (3, True, MESSAGES)


def test_an_unreadable_note_is_ignored(tmp_path):
    """The group is sent."""
    group = Group("query", 7)
    send_group(settings(tmp_path), group, MESSAGES)
    for text in ("", "{", "[]", '{"writer": "query"}'):
        (tmp_path / "p0" / GROUP_NAME).write_text(text)
        assert send_group(settings(tmp_path), group, MESSAGES[:1]).known == 0


def test_an_empty_group_leaves_no_note(tmp_path):
    """For example an empty partition."""
    assert send_group(settings(tmp_path), Group("query", 7), []).messages == 0
    assert not (tmp_path / "p0" / GROUP_NAME).exists()


def test_a_refusal_of_the_server_is_raised(tmp_path):
    """The messages stay in the slot, and the next attempt does not add any."""

    def refuse(_life, sequence, _frame):
        return encode_refusal(Refusal(Status.SECURITY_ERROR, sequence, "no"))

    with QwpServer(refuse) as server:
        for known in (0, 5):
            with pytest.raises(SenderHaltedError, match="no"):
                send_group(patient(tmp_path, server), Group("query", 7), MESSAGES)
            assert send_group(settings(tmp_path), Group("query", 7), MESSAGES).known == 5, known


def test_slots_of_dead_tasks_are_drained(tmp_path):
    """The next group of any partition drains them."""
    send_group(settings(tmp_path), Group("query", 1), MESSAGES)
    with QwpServer() as server:
        other = replace(patient(tmp_path, server, "drain_orphans=on;"), sender_id="p1")

        def wait_for_the_orphan():
            yield message(8)
            server.wait_for(lambda: len(server.frames) == 6)

        send_group(other, Group("query", 1), wait_for_the_orphan())
        assert sorted(server.frames) == sorted([*MESSAGES, message(8)])


def test_a_long_task_does_not_keep_orphaned_slots_during_an_outage(tmp_path):
    """It releases them without a mark, however long the outage is."""
    send_group(settings(tmp_path), Group("query", 1), MESSAGES)
    long = replace(settings(tmp_path, more="drain_orphans=on;reconnect_max_duration_millis=1;"), sender_id="p1")
    observer = InMemoryObserver()
    let_go, may_end = threading.Event(), threading.Event()
    observer.event = lambda name, **said: let_go.set() if said.get("kind") == "stopped" else None

    def rows():
        yield message(8)
        assert may_end.wait(30)

    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(send_group, long, Group("query", 1), rows(), observer=observer)
        try:
            assert let_go.wait(30)
            assert send_group(settings(tmp_path), Group("query", 2), [message(9)], lock_wait_s=0).messages == 1
        finally:
            may_end.set()
        with suppress(SenderHaltedError):
            task.result()
    assert not (tmp_path / "p0" / ".failed").exists()
    with QwpServer() as server:
        assert send_group(patient(tmp_path, server), Group("query", 2), [message(9)]).confirmed
        assert server.frames == [*MESSAGES, message(9)]


def test_a_slot_that_stays_in_use_is_reported(tmp_path):
    made = settings(tmp_path)
    slot = open_slot(REAL_FILES, str(tmp_path), "p0", made.ring, observer=InMemoryObserver())
    try:
        with pytest.raises(DirectoryInUseError):
            send_group(made, Group("query", 1), MESSAGES, lock_wait_s=0.2)
    finally:
        slot.close()


def test_a_group_needs_a_directory(tmp_path):
    with pytest.raises(UsageError, match="sf_dir is missing"):
        send_group(SenderSettings.from_conf("ws::addr=127.0.0.1:1;"), Group("query", 1), MESSAGES)
