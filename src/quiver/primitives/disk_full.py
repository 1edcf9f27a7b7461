"""
Tell a full disk, which passes, from a broken one, which does not.
"""

from __future__ import annotations

import errno

__all__ = ["is_full_disk"]

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_full_disk(error: OSError) -> bool:
    """
    Say whether *error* means that there is no room: no space, no quota, or the file may not grow further.
    """
    return error.errno in _FULL
