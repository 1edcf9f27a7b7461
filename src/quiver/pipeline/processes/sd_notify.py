"""Messages to systemd like those of `sd_notify(3)`: a datagram to the socket that `NOTIFY_SOCKET` names."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

__all__ = ["notify", "watchdog_interval_s"]

SEND_TIMEOUT_S = 1.0

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
            sender.settimeout(SEND_TIMEOUT_S)  # a manager that does not read must not stop the service
            sender.sendto("\n".join(assignments).encode(), target)
    except OSError as error:
        _log.warning("cannot notify systemd at %s: %s", address, error)


def watchdog_interval_s(environment: Mapping[str, str]) -> float | None:
    """
    Return how often systemd must get ``WATCHDOG=1``: twice in the time of `WatchdogSec`; None without a watchdog.

    Args:
        environment: has `WATCHDOG_USEC` and `WATCHDOG_PID`, which is another process if that one is watched.
    """
    microseconds = environment.get("WATCHDOG_USEC", "")
    process = environment.get("WATCHDOG_PID", "")
    if not microseconds.isdecimal() or int(microseconds) == 0 or (process and process != str(os.getpid())):
        return None
    return int(microseconds) / 1e6 / 2
