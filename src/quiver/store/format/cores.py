r"""
How stores share one size cap: the name of a core's directory, and how much of the cap the core claims.

A claim is one number, in the layout of `sidecar` with the magic b"QUIVER\0U". It is written in place and never
synced: after a crash, or when its owner has stopped, the sizes of the files next to it show how much is used. The file
is a Quiver extension: engines that do not know it ignore it.
"""

from __future__ import annotations

import re

from quiver.primitives.scan import Answer
from quiver.store.format.sidecar import decode_sidecar, encode_sidecar

__all__ = [
    "CLAIM_MAGIC",
    "CORE_CLAIM",
    "CORE_MAX",
    "EVICTED",
    "EVICT_LOCK",
    "core_directory",
    "decode_claim",
    "encode_claim",
    "parse_core_directory",
]

CLAIM_MAGIC = b"QUIVER\0U"

CORE_MAX = 1023
"""The highest core number."""

CORE_CLAIM = "quiver.core"
"""The claim of a store on the cap. It is in the store's root, as are the following two."""
EVICT_LOCK = "quiver.evict.lock"
"""Locked by a process while it deletes segments of a store that it does not own."""
EVICTED = "quiver.evicted"
"""The segments that other processes deleted, until the owner has recorded them: a drop ledger."""

_CORE = re.compile(r"core_(0|[1-9][0-9]{0,3})")


def core_directory(core: int) -> str:
    """Return the name of the directory of core *core*."""
    return f"core_{core}"


def parse_core_directory(name: str) -> int | None:
    """Return the core number in *name*, or None when it is not a core's directory."""
    match = _CORE.fullmatch(name)
    return int(match[1]) if match is not None and int(match[1]) <= CORE_MAX else None


def encode_claim(claim_bytes: int) -> bytes:
    """Return the 24 bytes of a claim file: its owner may use *claim_bytes* of the cap without asking again."""
    return encode_sidecar(CLAIM_MAGIC, claim_bytes)


def decode_claim(view: memoryview) -> Answer[int]:
    """Decode the claimed bytes from a claim file."""
    return decode_sidecar(view, CLAIM_MAGIC, "claim on the size cap")
