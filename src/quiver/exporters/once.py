"""
A bundle sent once, by hand: no retry, no thread, one outcome.
"""

from __future__ import annotations

from quiver.bundle import Bundle
from quiver.delivery.policy import Delivered, Outcome, Permanent, Transient
from quiver.errors import BundleInvalid, Damaged
from quiver.exporters.ports import Sender
from quiver.exporters.requests import requests_of

__all__ = ["send_once"]


def send_once(sender: Sender, bundle: Bundle) -> Outcome:
    """
    Send every request of *bundle*; return what became of it. The first that is not confirmed ends it.
    """
    try:
        requests = requests_of(bundle)
    except (BundleInvalid, Damaged) as error:
        return Permanent(type(error).__name__, str(error))
    if not requests:
        return Permanent("EMPTY", "there is nothing in it to send")
    for signal, request in requests:
        reply = sender.send(signal, request)
        if reply.outcome == "retry":
            return Transient(reply.reason, reply.message, reply.retry_after_s)
        if reply.outcome == "refused":
            return Permanent(reply.reason, reply.message)
    return Delivered()
