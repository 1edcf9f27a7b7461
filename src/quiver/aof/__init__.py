"""
AOF2: a segmented append-only log with ids for its records, for one writing process.

::

    append_record ──▶ tail (memory, mapped) ──▶ flush (sync) ──▶ seal (footer, pointer) ──▶ retention
                        │                          │                 │
                        └── readers see it         └── durable       └── the catalogue of sealed segments

==================  ==================================================================================================
module              purpose
==================  ==================================================================================================
`append/`           The writing side of an AOF2 log: records into mapped segments, syncs, and the threads behind them
`reading/`          Reading an AOF2 log from its files, in any process: nothing here imports the engine
`manager.py`        the directory of logs, its lock, and the threads that all logs share
`log.py`            one log: what programs call
`maintenance.py`    retire by age, make spares, seal, note durability, expire
`log_reading.py`    the calls of a log that read
`follower.py`       records as they come
`recovery.py`       opening what a crash left, in a listed order of steps
`retention.py`      which segments leave (pure)
`compaction.py`     which cold segments nobody needs any more
`config.py`         the settings
`tiers/`            sealed segments packed, uploaded, evicted, brought back
`restore.py`        logs made again from their objects, on another disk
`upstream.py`       an operation log taken over, each entry once
`snapshots.py`      what a log says of itself
`status.py`         the same, told to those beside the process
`format/`           the bytes (pure)
`damage.py`         What is left of a segment whose header is damaged, or records in its middle. Bytes only
`expiry.py`         Which sealed segments of one log leave by now
`recovered.py`      What opening a log found, and made of it
`segment_index.py`  Where the readers of an open log find its segments: those that are written, in memory; sealed ones
                    in their files, or brought back to them
`staged_import.py`  Records that Spark sinks staged and committed become records of the log. Only the log's owner does
                    this
==================  ==================================================================================================
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
