"""The state of a topic that this process owns, beyond the topic's files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from quiver.metadata.ownership import Ownership
from quiver.topics.cold.catalog import ObjectCatalog
from quiver.topics.cold.cursor_mirror import CursorMirror
from quiver.topics.cold.deleter import Deleter
from quiver.topics.cold.uploader import Uploader
from quiver.topics.dispatch.saved import SubscriptionFiles
from quiver.topics.settings import TopicSettings
from quiver.topics.wal.writer import Wal

__all__ = ["OwnedTopic"]


@dataclass(slots=True)
class OwnedTopic:
    """One owned topic. `work` is held during uploads, deletions and the handover."""

    topic: str
    ownership: Ownership
    catalog: ObjectCatalog
    cursors: CursorMirror
    renew_at: float
    work: threading.Lock = field(default_factory=threading.Lock)
    wal: Wal | None = None
    kept: SubscriptionFiles | None = None
    uploader: Uploader | None = None
    deleter: Deleter | None = None
    delays: Iterator[float] | None = None
    cycles: int = 0  # uploads that ended, successfully or not
    problem: str = ""  # the error of the last one
    settings: TopicSettings = field(default_factory=TopicSettings)
    begins_at: int = 0  # messages below were deleted on purpose
    upload_at: float = 0.0
    delete_at: float = 0.0
