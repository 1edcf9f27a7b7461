"""
How the conversion between OTLP and OTAP gives up: one exception inside the package, one answer outside of it.
"""

from __future__ import annotations

__all__ = ["Refused"]


class Refused(Exception):
    """
    These bytes or tables are not what they should be; the text says why. Never leaves this package.
    """
