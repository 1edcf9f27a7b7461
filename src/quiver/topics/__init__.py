"""
Topics: a log per ``namespace/topic``, first in local files, later in an object store, read as one.

::

    append ─▶ encode ─▶ wal.<seq>.log ─▶ cache ─▶ readers that follow
                            │  synced by interval, size, or on demand
                            └─ rotated ─▶ (object tier) objects ─▶ released

===================  =============================================================================================
module               purpose
===================  =============================================================================================
`store.py`           all topics of a directory, maintained by one thread
`subscribing.py`     their subscriptions: create, list, seek and remove
`administration.py`  operations on whole topics: upload, truncate, delete, reappend
`requests.py`        administration of topics that another process has open
`log.py`             one topic as its users see it
`engine.py`          one topic: its files, memory and objects
`producer.py`        producers that number their messages, so that each is appended once
`reader.py`          one iterator over objects, files, memory, and new messages
`cache.py`           the newest messages in memory
`recovery.py`        the steps of opening a topic
`settings.py`        every key of the broker's file, with its default
`staged_import.py`   the import of batches that Spark sinks staged
`reappend.py`        superseded messages, appended to their topic again
`owned_topic.py`     the state of a topic that this process owns
`takeover.py`        waiting for topics whose owner may be dead
`handover.py`        handing topics over when the store closes
`removal.py`         removing a topic's directory
`wal/`               the log files of a topic
`format/`            the bytes of a topic: frames, messages, checkpoints, names (pure)
`dispatch/`          delivery to subscriptions
`cold/`              the object tier
`reading/`           reading a topic from its files, in any process, without the engine
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
