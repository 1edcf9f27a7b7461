"""
Topics: a log per ``namespace/topic``, on local files first, in an object store later, read as one.

::

    append ─▶ encode ─▶ wal.<seq>.log ─▶ cache ─▶ readers that follow
                            │  synced by interval, size, or on demand
                            └─ rotated ─▶ (cold tier) objects ─▶ released

===================  =============================================================================
file                 what it holds
===================  =============================================================================
`format/`            bytes: frames, messages, checkpoints, names, saved subscriptions (pure)
`settings.py`        every key of the broker's file, with its default
`store.py`           all topics of a directory; the one thread
`subscribing.py`     their subscriptions: made, listed, moved, removed
`administration.py`  whole topics: uploaded, truncated, deleted; `removal.py` removes a directory
`requests.py`        … asked for by another process
`takeover.py`        owners that may be dead are watched, over restarts
`handover.py`        topics handed over when the store closes
`log.py`             one topic: append, read, seal
`producer.py`        numbered messages, appended once
`wal.py`             its files: append, sync, rotate, release
`recovery.py`        what is done when it is opened: scan, cut, set aside, go on
`wal_files.py`       one file read in pieces, damage stepped over and kept
`file_list.py`       which files are sealed, and who holds them
`turns.py`           who syncs or rotates now
`arrivals.py`        who waits for the next message
`cache.py`           the newest messages in memory
`reader.py`          one iterator over objects, files, memory and what arrives
`cold.py`            what is asked of the tier behind the files
`object_tier.py`     that tier: who owns a topic, and the threads; `object_opening.py` opens it
`uploader.py`        log → objects, step by step; `object_source.py` and `object_blocks.py` make their bytes
`catalogue.py`       what is in the object store; `catalogue_rebuild.py` finds it out from the objects
`object_spans.py`    … in forty bytes an object, packed
`tiered_reader.py`   objects read from any offset
`replaced.py`        local files whose messages another owner's have replaced; `reappend.py` appends them again
`deleter.py`         which files and objects go
`cursor_mirror.py`   subscriptions, told to the metadata store
`adoption.py`        what Spark sinks committed, appended by the owner
`read.py`            files read beside a live writer, by another process
`check.py`           what is in a topic's directory, and what is wrong with it
`dispatch/`          subscriptions: who gets which message
===================  =============================================================================
"""

from typing import TYPE_CHECKING

from quiver.lazy_names import lazy_names

if TYPE_CHECKING:
    from quiver.topics.format.message import Message
    from quiver.topics.log import TopicLog
    from quiver.topics.producer import Producer
    from quiver.topics.reader import TopicReader
    from quiver.topics.settings import TopicSettings
    from quiver.topics.store import TopicStore
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "quiver.topics.format.message": "Message",
            "quiver.topics.log": "TopicLog",
            "quiver.topics.producer": "Producer",
            "quiver.topics.reader": "TopicReader",
            "quiver.topics.settings": "TopicSettings",
            "quiver.topics.store": "TopicStore",
        },
    )

__all__ = ["Message", "Producer", "TopicLog", "TopicReader", "TopicSettings", "TopicStore"]
