"""Shared by tests of topics: a store on a disk in memory, and access to its files."""

from __future__ import annotations

from typing import Any

from quiver.clock import Clock
from quiver.primitives.disk.file_system import FileSystem
from quiver.testing.clock import ManualClock
from quiver.topics.settings import TopicSettings, WalSettings
from quiver.topics.store import TopicStore

ROOT = "/topics"
TOPIC = "default/orders"
DIRECTORY = f"{ROOT}/{TOPIC}"


def open_topics(fs: FileSystem, *, clock: Clock | None = None, cold: Any = None, **wal: Any) -> TopicStore:
    """Open the store without threads; nothing in it waits for real time."""
    return TopicStore.open(
        ROOT, settings=TopicSettings(wal=WalSettings(**wal)), fs=fs, clock=clock or ManualClock(), cold=cold,
        background=False,
    )  # fmt: skip


def payloads(log: Any, start: Any = "earliest") -> list[bytes]:
    """Return the payloads from *start* on; lost ranges are skipped."""
    with log.reader(start, follow=False, on_lost="skip") as reader:
        return [message.payload for message in reader]


def offsets(log: Any, start: Any = "earliest") -> list[int]:
    with log.reader(start, follow=False, on_lost="skip") as reader:
        return [message.offset for message in reader]
