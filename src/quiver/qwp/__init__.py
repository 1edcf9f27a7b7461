"""
Store and forward for QuestDB: what a producer hands over reaches the server, whatever happens to either in between.

::

    with Sender.from_conf("ws::addr=127.0.0.1:9000;sf_dir=sf;sender_id=edge-1;") as sender:
        sender.row("trades", symbols={"sym": "ETH-USD"}, columns={"price": 2615.5}, at=timestamp_ns)

===================  ============================================================================================
module               purpose
===================  ============================================================================================
`connection/`        The connection to QuestDB: hosts, TLS, frames out, answers in
`slots/`             The directory of a sender: frames on disk until the server has confirmed them
`sender.py`          `Sender`: rows and tables in, frames into the slot; `sender_figures.py` its numbers
`settings.py`        every key of a connect string; `conf.py` takes one apart
`environment.py`     where a program finds its connect string
`rows.py`            rows of Python values, packed at a flush; `values.py` for what Python lacks
`tables.py`          Arrow tables and data frames, cut into messages
`wire/`              the bytes of messages and answers (pure)
`format/`            the bytes of every file in a slot (pure)
`drainers.py`        slots that other senders left behind
`inbox.py`           errors on their way to the caller
`groups.py`          groups of messages, each once: for tasks that may be repeated
`conf.py`            Connect strings, taken apart: ``ws::addr=host:9000;sf_dir=/var/spool/qwp;sender_id=edge-1;``
`sender_figures.py`  What a sender says of itself in numbers
`values.py`          Values that Python has no type for, to be given to `Sender.row`
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
