"""Messages to systemd like those of `sd_notify(3)`: a datagram to the socket that `NOTIFY_SOCKET` names."""

from __future__ import annotations

import logging
import socket

__all__ = ["notify"]

_log = logging.getLogger("quiver.pipeline")


def notify(address: str | None, *assignments: str) -> None:
    """
    Send *assignments*, such as ``READY=1``, to the service manager. Does nothing without an address.

    A message that cannot be sent is logged, and the service continues.

    Args:
        address: the value of `NOTIFY_SOCKET`: a path, or a name in the abstract namespace that starts with ``@``.
        assignments: the variables to send.
    """
    if not address:
        return
    target = f"\0{address[1:]}" if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.sendto("\n".join(assignments).encode(), target)
    except OSError as error:
        _log.warning("cannot notify systemd at %s: %s", address, error)
