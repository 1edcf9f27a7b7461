"""A topic fulfills the contract of all append logs."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from topic_disks import DIRECTORY, TOPIC, open_topics, payloads

from quiver.primitives.disk.file_system import FileSystem
from quiver.testing.clock import ManualClock
from quiver.testing.log_contract import AppendLogContract
from quiver.topics.format.frame import take_frames
from quiver.topics.format.names import parse_wal_file_name

pytestmark = pytest.mark.usefixtures("quiet")


class TopicAsLog:
    """One topic of a store, each message one record."""

    def __init__(self, fs: FileSystem, wal: dict[str, Any]) -> None:
        self._clock = ManualClock()
        self._store = open_topics(fs, clock=self._clock, **wal)
        try:
            self._log = self._store.topic(TOPIC)
        except BaseException:
            self._store.close()
            raise

    def append(self, record: bytes, *, durable: bool) -> int:
        # Without attributes a message ends with zeros, and replacing them by zeros would change nothing.
        return self._log.append(record, attributes={"kind": "record"}, durable=durable)

    def sync(self) -> None:
        self._log.flush()

    def upkeep(self) -> None:
        self._clock.advance(10)
        self._store.maintain()

    def read(self) -> list[bytes]:
        return payloads(self._log)

    def close(self) -> None:
        self._store.close()


class TestTopic(AppendLogContract):
    """Files of a few messages, and an even smaller cache."""

    seeds = (0, 2)
    wal: ClassVar[dict[str, Any]] = {"rotate_max_bytes": 2_000, "cache_capacity": 2}

    def open_log(self, fs: FileSystem) -> TopicAsLog:
        return TopicAsLog(fs, self.wal)

    def tail(self, fs: FileSystem) -> tuple[str, int]:
        found = []
        for name in fs.list_dir(DIRECTORY):
            seq = parse_wal_file_name(name)
            if seq is not None:
                data = fs.read_all(f"{DIRECTORY}/{name}", size_max=1 << 20)
                frames, end, _ = take_frames(data)
                found += [(seq, f"{DIRECTORY}/{name}", end)] if frames else []
        _, path, end = max(found)
        return path, end


@pytest.mark.slow
class TestTopicWithEveryPowerLoss(TestTopic):
    """With all outcomes of a power loss."""

    seeds = AppendLogContract.seeds


class TestTopicInOneFile(TestTopic):
    """Nothing rotates, and memory contains everything."""

    wal: ClassVar[dict[str, Any]] = {}


class TestTopicThatRotatesByTime(TestTopic):
    """Each maintenance pass rotates the file by time."""

    wal: ClassVar[dict[str, Any]] = {"rotate_max_seconds": 5, "cache_max_bytes": 1}
