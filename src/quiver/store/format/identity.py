"""The identity of a store: one line with a UUID, created with the directory. Bytes only."""

from __future__ import annotations

import re

from quiver.primitives.scan import Answer, Damage, Frame

__all__ = ["decode_identity"]

_IDENTITY = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def decode_identity(view: memoryview) -> Answer[str]:
    """Decode the line that identifies a store."""
    text = bytes(view).decode("ascii", "replace").strip()
    if _IDENTITY.fullmatch(text) is None:
        return Damage(0, "the store's identity is not a UUID")
    return Frame(text, len(view))
