"""Real processes are killed while the threads of the tier work."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from quiver.errors import DirectoryInUseError
from quiver.topics.settings import DeleterSettings, TopicSettings, UploaderSettings, WalSettings
from quiver.topics.store import TopicStore

NAME = "default/orders"
CHILD = """
import sys
from test_cold_kill import NAME, opened
with opened(sys.argv[1], sys.argv[2]) as store:
    log = store.topic(NAME)
    store._cold._find(NAME).upload_at = 0.0
    while True:
        number = log._engine.wal.next_offset
        log.append(b"message %d" % number)
        if number % 20 == 19:
            store.maintain()
        print(number, flush=True)
"""


def opened(root, owner, *, background=True):
    chosen = TopicSettings(
        wal=WalSettings(rotate_max_bytes=2000, cache_capacity=4),
        uploader=UploaderSettings(interval_seconds=1),
        deleter=DeleterSettings(retention_time_minutes=0),
    )
    return TopicStore.open(
        f"{root}/{owner}", objects=f"{root}/cold", metadata=f"sqlite://{root}/shared.db", settings=chosen,
        background=background,
    )  # fmt: skip


def killed_after(root, owner, count):
    """Let a process append until it has printed *count* numbers, kill it, and return the last printed number."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(root), owner], stdout=subprocess.PIPE, cwd=Path(__file__).parent, text=True
    ) as child:
        lines = [int(line) for line in itertools.islice(child.stdout, count)]
        child.kill()
        lines += [int(line) for line in child.stdout if line.endswith("\n")]
    return lines[-1]


def check(root, owner, last):
    with opened(root, owner, background=False) as store:
        log = store.topic(NAME)
        count = log._engine.wal.next_offset
        assert count > last
        store.maintain()
        with log.reader(start=0, follow=False) as reader:
            assert [message.payload for message in reader] == [b"message %d" % number for number in range(count)]
        assert log._engine.wal.start_offset > 0
    return count


def kill_and_check(root, kills):
    for kill in range(kills):
        last = killed_after(root, "one", 30 + 17 * kill % 50)
        check(root, "one", last)


def test_a_kill_loses_no_confirmed_message(tmp_path):
    """It is killed during appends, uploads and deletions; the next process reads all messages from the first one on."""
    kill_and_check(tmp_path, 2)


@pytest.mark.kill
@pytest.mark.timeout(3600)
def test_repeated_kills_lose_no_confirmed_message(tmp_path, request):
    """The same topic grows between the kills."""
    kill_and_check(tmp_path, max(10, request.config.getoption("--kill-cycles") // 50))


def test_a_second_directory_is_refused_while_the_first_process_lives(tmp_path):
    """Two real processes share one metadata file."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path), "one"],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent,
        text=True,
    ) as child:
        child.stdout.readline()
        with opened(tmp_path, "two", background=False) as store, pytest.raises(DirectoryInUseError):
            store.topic(NAME)
        assert child.poll() is None
        child.kill()
