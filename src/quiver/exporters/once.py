"""A bundle sent once, by hand: no retry, no thread, one outcome."""

from __future__ import annotations

from quiver.bundle import Bundle
from quiver.delivery.policy import Delivered, Outcome, Permanent, Transient
from quiver.errors import CorruptionError, InvalidBundleError
from quiver.exporters.parts import PartSender, RequestProgress
from quiver.exporters.requests import requests_of

__all__ = ["send_once"]


def send_once(parts: PartSender, bundle: Bundle, batch_id: str = "") -> Outcome:
    """
    Send every request of *bundle*, in as many parts as it takes; return what became of it. The first that is not
    confirmed ends it.

    Args:
        parts: where to.
        bundle: what to send.
        batch_id: with a slash and the number of a request after it, the batch id of that.
    """
    try:
        requests = requests_of(bundle)
    except (InvalidBundleError, CorruptionError) as error:
        return Permanent(type(error).__name__, str(error))
    if not requests:
        return Permanent("EMPTY", "there is nothing in it to send")
    for number, (signal, request) in enumerate(requests):
        progress = RequestProgress()
        later = parts.send(signal, request, progress, f"{batch_id}/{number}" if batch_id else "")
        if later is not None:
            return Transient(later.reason, later.message, later.retry_after_s)
        if progress.why is not None:
            return progress.why
    return Delivered()
