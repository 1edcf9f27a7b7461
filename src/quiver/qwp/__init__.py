"""
Store and forward for QuestDB: rows are kept on disk until the server has confirmed them, across crashes and outages.

::

    with Sender.from_conf("ws::addr=127.0.0.1:9000;sf_dir=sf;sender_id=edge-1;") as sender:
        sender.row("trades", symbols={"sym": "ETH-USD"}, columns={"price": 2615.5}, at=timestamp_ns)

===================  ============================================================================================
module               purpose
===================  ============================================================================================
`connection/`        the connection to QuestDB: hosts, TLS, frames out, answers in
`slots/`             the directory of a sender: frames on disk until the server has confirmed them
`sender.py`          `Sender`: rows and tables in, frames into the slot
`sender_figures.py`  statistics of a sender
`settings.py`        the settings of a sender: every key of a connect string
`conf.py`            parsing of connect strings
`environment.py`     the connect string in the environment
`rows.py`            rows of Python values, packed at a flush
`row_checks.py`      generated functions that check a row like the previous one
`values.py`          types for `Sender.row` that Python lacks
`tables.py`          Arrow tables and data frames, split into messages
`wire/`              the encoding of messages and answers (pure)
`format/`            the formats of all files in a slot (pure)
`drainers.py`        background draining of slots that other senders left
`inbox.py`           delivery of errors to the caller's handler
`groups.py`          idempotent groups of messages, for tasks that may be retried
===================  ============================================================================================
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
        extra="qwp",
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
