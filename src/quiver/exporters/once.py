"""One attempt to send a bundle, without retry or threads."""

from __future__ import annotations

from quiver.bundle import Bundle
from quiver.delivery.policy import Delivered, Outcome, Permanent, Transient
from quiver.errors import CorruptionError, InvalidBundleError
from quiver.exporters.parts import PartSender, RequestProgress
from quiver.exporters.requests import requests_of

__all__ = ["send_once"]


def send_once(parts: PartSender, bundle: Bundle, batch_id: str = "") -> Outcome:
    """
    Send every request of *bundle*, in parts where necessary, up to the first that is not confirmed. Return the outcome.

    Args:
        parts: sends the requests.
        bundle: the bundle to send.
        batch_id: prefix of the batch ids of the requests: a slash and the number of the request follow.
    """
    try:
        requests = requests_of(bundle)
    except (InvalidBundleError, CorruptionError) as error:
        return Permanent(type(error).__name__, str(error))
    if not requests:
        return Permanent("EMPTY", "the bundle has no data to send")
    for number, (signal, request) in enumerate(requests):
        progress = RequestProgress()
        later = parts.send(signal, request, progress, f"{batch_id}/{number}" if batch_id else "")
        if later is not None:
            return Transient(later.reason, later.message, later.retry_after_s)
        if progress.why is not None:
            return progress.why
    return Delivered()
