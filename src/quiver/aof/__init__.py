"""
AOF2: a segmented append-only log with ids for its records, for one writing process.

::

    append_record ──▶ tail (memory, mapped) ──▶ flush (sync) ──▶ seal (footer, pointer) ──▶ retention
                        │                          │                 │
                        └── readers see it         └── durable       └── the catalogue of sealed segments

===================  ========================================================================
file                 purpose
===================  ========================================================================
`manager.py`         the directory of logs, its lock, and the threads that all logs share
`log.py`             one log: what programs call
`writing.py`         its writing side
`tail.py`            where records go, and back-pressure
`segment_queue.py`   the segments at the end of a log: active, waiting to be sealed, spare
`segment.py`         one mapped segment that is being written
`reservation.py`     room at the end that the caller fills in place
`flush.py`           one sync for all who wait; retries; the failure flag
`upload_waiting.py`  one seal and one upload for all who wait for the object store
`upkeep.py`          retire by age, make spares, seal, note durability, expire
`workers.py`         the threads, and whose turn it is
`notify.py`          who waits for what
`catalog.py`         the sealed segments, and maps of them
`reading.py`         the calls of a log that read
`reader.py`          records in order; what is lost on the way is reported
`follower.py`        records as they come
`search.py`          one record by its id, the first one of a time
`resume.py`          where reading goes on behind damage                               (pure)
`batch.py`           many records at once, as columns and one buffer
`source.py`          segments as a reader sees them
`recovery.py`        opening what a crash left, in a listed order of steps
`retention.py`       which segments leave                                              (pure)
`compaction.py`      which cold segments nobody needs any more
`sizing.py`          how large the next segment is                                     (pure)
`config.py`          the settings
`tiers/`             sealed segments packed, uploaded, evicted, brought back
`manifest.py`        what happened to them, in a log of its own
`files.py`           a log read from beside it, by another process
`check.py`           a log's directory told to people
`restore.py`         logs made again from their objects, on another disk
`upstream.py`        an operation log taken over, each entry once
`snapshots.py`       what a log says of itself
`status.py`          the same, told to those beside the process
`format/`            the bytes                                                         (pure)
===================  ========================================================================
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
