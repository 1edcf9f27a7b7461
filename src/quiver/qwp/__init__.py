"""
Store and forward for QuestDB: what a producer hands over reaches the server, whatever happens to either in between.

::

    with Sender.from_conf("ws::addr=127.0.0.1:9000;sf_dir=sf;sender_id=edge-1;") as sender:
        sender.row("trades", symbols={"sym": "ETH-USD"}, columns={"price": 2615.5}, at=timestamp_ns)

===================  =======================================================================
file or room         purpose, in the order in which data passes
===================  =======================================================================
`sender.py`          `Sender`: rows and tables in, frames into the slot; `sender_figures.py` its numbers
`settings.py`        every key of a connect string; `conf.py` takes one apart
`environment.py`     where a program finds its connect string
`rows.py`            rows of Python values, packed at a flush; `values.py` for what Python lacks
`tables.py`          Arrow tables and data frames, cut into messages
`wire/`              the bytes of messages and answers                                (pure)
`slot.py`            the directory of a sender: lock, recovery, ring, dead letters
`dead_letters.py`    what was given up, on disk; `resending.py` sends it again
`recovery.py`        what a crash left of it, step by step
`ring.py`            frames by number: append, confirm, trim
`segment_files.py`   one segment, on disk or in memory
`format/`            the bytes of every file in a slot                                (pure)
`wire_loop.py`       the thread that drains a slot
`fitting.py`         frames cut to what the server takes
`session.py`         what a connection means: answers in, decisions out              (pure)
`failover.py`        which host next, after which pause
`transport.py`       one WebSocket connection
`trust_store.py`     roots behind a password; `java_keystore.py` for those of Java
`drainers.py`        slots that other senders left behind
`inbox.py`           errors on their way to the caller
`groups.py`          groups of messages, each once: for tasks that may be repeated
`inspection.py`      what lies in slots, for people
===================  =======================================================================
"""

from typing import TYPE_CHECKING

from quiver.lazy_names import lazy_names

if TYPE_CHECKING:
    from quiver.qwp.connection.session import Category, Policy, SenderError
    from quiver.qwp.drainers import DrainerEvent
    from quiver.qwp.sender import Sender
    from quiver.qwp.settings import SenderSettings
    from quiver.qwp.values import Char, DateMillis, Geohash, Long256, TimestampMicros, TimestampNanos
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "quiver.qwp.drainers": "DrainerEvent",
            "quiver.qwp.sender": "Sender",
            "quiver.qwp.connection.session": "Category Policy SenderError",
            "quiver.qwp.settings": "SenderSettings",
            "quiver.qwp.values": "Char DateMillis Geohash Long256 TimestampMicros TimestampNanos",
        },
    )

__all__ = [
    "Category",
    "Char",
    "DateMillis",
    "DrainerEvent",
    "Geohash",
    "Long256",
    "Policy",
    "Sender",
    "SenderError",
    "SenderSettings",
    "TimestampMicros",
    "TimestampNanos",
]
