"""TCP ports of the loopback address on which no process listens."""

from __future__ import annotations

import contextlib
import secrets
import socket


def free_ports(count: int) -> list[int]:
    """Return *count* different ports below the ephemeral range, so that no outgoing connection takes one meanwhile."""
    found: set[int] = set()
    while len(found) < count:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.add(port)
    return list(found)


def free_port() -> int:
    """Return one port below the ephemeral range."""
    return free_ports(1)[0]
