"""
Topics: a log per ``namespace/topic``, on local files first, in an object store later, read as one.

::

    append ─▶ encode ─▶ wal.<seq>.log ─▶ cache ─▶ readers that follow
                            │  synced by interval, size, or on demand
                            └─ rotated ─▶ (cold tier) objects ─▶ released

===================  =============================================================================================
module               purpose
===================  =============================================================================================
`cold/`              The object tier of topics: sealed log files become objects, and are read from there
`reading/`           Reading a topic from its files, in any process: nothing here imports the engine
`wal/`               The log files of a topic
`format/`            bytes: frames, messages, checkpoints, names, saved subscriptions (pure)
`settings.py`        every key of the broker's file, with its default
`store.py`           all topics of a directory; the one thread
`subscribing.py`     their subscriptions: made, listed, moved, removed
`administration.py`  whole topics: uploaded, truncated, deleted; `removal.py` removes a directory
`requests.py`        … asked for by another process
`takeover.py`        owners that may be dead are watched, over restarts
`handover.py`        topics handed over when the store closes
`log.py`             one topic as its users see it; `engine.py` has its files, memory and objects
`producer.py`        numbered messages, appended once
`recovery.py`        what is done when it is opened: scan, cut, set aside, go on
`cache.py`           the newest messages in memory
`reader.py`          one iterator over objects, files, memory and what arrives
`staged_import.py`   what Spark sinks committed, appended by the owner
`dispatch/`          subscriptions: who gets which message
`owned_topic.py`     What one process holds of a topic that it owns, behind the topic's files
`reappend.py`        Messages that another owner's have replaced, appended to their topic again: each exactly once
`removal.py`         Removing a topic's directory: renamed at once, emptied afterwards
===================  =============================================================================================
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
