"""
AOF2: a segmented append-only log with ids for its records, for one writing process.

::

    append_record ──▶ tail (memory, mapped) ──▶ flush (sync) ──▶ seal (footer, pointer) ──▶ retention
                        │                          │                 │
                        └── readers see it         └── durable       └── the catalog of sealed segments

==================  ================================================================================
module              purpose
==================  ================================================================================
`append/`           the write path: mapped segments, syncs, and the threads
`reading/`          readers of the files, for any process: nothing here imports the engine
`manager.py`        a directory of logs, its lock, and the threads that the logs share
`log.py`            one log, as programs hold it
`log_reading.py`    the methods of a log that read
`log_context.py`    the engine of one open log: its parts, and the work of the threads
`maintenance.py`    seals, spares, the durability snapshot, retention
`follower.py`       records as they are appended
`recovery.py`       recovery of a log when it is opened, in listed steps
`recovered.py`      the state of a log after recovery
`damage.py`         reconstruction of damaged segments (pure)
`retention.py`      which segments expire (pure)
`expiry.py`         the expired segments of one log, by retention and head trimming
`compaction.py`     head trimming: cold segments that are no longer needed
`config.py`         the settings
`tiers/`            sealed segments that are packed, uploaded, evicted and hydrated
`restore.py`        restore of logs from their objects, on another disk
`upstream.py`       import of an upstream operation log, each entry once
`staged_import.py`  import of batches that Spark sinks staged and committed
`segment_index.py`  the segments of an open log, for its readers
`snapshots.py`      the state of a log, for metrics and human readers
`status.py`         the status file that a writer publishes
`format/`           the bytes (pure)
==================  ================================================================================
"""

from typing import TYPE_CHECKING

from quiver.lazy_names import lazy_names

if TYPE_CHECKING:
    from quiver.aof.append.reservation import Reservation
    from quiver.aof.compaction import ColdSegment
    from quiver.aof.config import AofConfig, FlushConfig, Retention, TierConfig
    from quiver.aof.follower import TailFollower
    from quiver.aof.log import Aof
    from quiver.aof.manager import AofManager
    from quiver.aof.reading.reader import Reader
    from quiver.aof.reading.source import Record
    from quiver.aof.snapshots import LogSnapshot, SegmentSnapshot
    from quiver.aof.upstream import replay_upstream
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "quiver.aof.compaction": "ColdSegment",
            "quiver.aof.config": "AofConfig FlushConfig Retention TierConfig",
            "quiver.aof.follower": "TailFollower",
            "quiver.aof.log": "Aof",
            "quiver.aof.manager": "AofManager",
            "quiver.aof.reading.reader": "Reader",
            "quiver.aof.append.reservation": "Reservation",
            "quiver.aof.snapshots": "LogSnapshot SegmentSnapshot",
            "quiver.aof.reading.source": "Record",
            "quiver.aof.upstream": "replay_upstream",
        },
    )

__all__ = [
    "Aof",
    "AofConfig",
    "AofManager",
    "ColdSegment",
    "FlushConfig",
    "LogSnapshot",
    "Reader",
    "Record",
    "Reservation",
    "Retention",
    "SegmentSnapshot",
    "TailFollower",
    "TierConfig",
    "replay_upstream",
]
