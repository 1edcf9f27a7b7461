"""
A bundle sent once, by hand: no retry, no thread, one outcome.
"""

from __future__ import annotations

from quiver.bundle import Bundle
from quiver.delivery.policy import Delivered, Outcome, Permanent, Transient
from quiver.errors import BundleInvalid, Damaged
from quiver.exporters.parts import PartSender, RequestProgress
from quiver.exporters.ports import Sender
from quiver.exporters.requests import requests_of
from quiver.exporters.size_limit import SizeLimit

__all__ = ["send_once"]


def send_once(sender: Sender, bundle: Bundle, limit: SizeLimit) -> Outcome:
    """
    Send every request of *bundle*, divided where *limit* or the receiver ask for it; return what became of it. The
    first that is not confirmed ends it.
    """
    try:
        requests = requests_of(bundle)
    except (BundleInvalid, Damaged) as error:
        return Permanent(type(error).__name__, str(error))
    if not requests:
        return Permanent("EMPTY", "there is nothing in it to send")
    parts = PartSender(sender, limit)
    for signal, request in requests:
        progress = RequestProgress()
        later = parts.send(signal, request, progress)
        if later is not None:
            return Transient(later.reason, later.message, later.retry_after_s)
        if progress.why is not None:
            return progress.why
    return Delivered()
