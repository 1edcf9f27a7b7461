"""
The position of a reader in topics: the next offset of each. Pure.

Spark stores offsets as JSON text and compares the text, so the topics have a fixed order::

    {"v": 1, "topics": {"default/orders": 1200, "default/returns": -1}}

−1 is the beginning, wherever that is at the time of reading. It stays the same while old messages are removed. Spark
asks again for the first offset of a query that died in its first batch, and so always gets the same answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, TypeGuard

from quiver.errors import UsageError
from quiver.instant import IngestedAt
from quiver.topics.format.names import check_topic

__all__ = ["BEGINNING", "TOPIC_OFFSET_VERSION", "Bound", "offsets_from_json", "offsets_to_json", "parse_bound"]

TOPIC_OFFSET_VERSION = 1

BEGINNING = -1
"""The position before the oldest message that still exists."""

Bound = Literal["earliest", "latest"] | int | Mapping[str, int] | IngestedAt
"""One end of each topic, one offset for all topics, an offset per topic, or a time."""

_OFFSET_MAX = 2**63 - 1


def offsets_to_json(offsets: Mapping[str, int]) -> dict[str, Any]:
    """Return the dict that Spark stores. The order of the keys is part of the format."""
    return {"v": TOPIC_OFFSET_VERSION, "topics": dict(sorted(offsets.items()))}


def offsets_from_json(value: object) -> dict[str, int]:
    """
    Read offsets back from a checkpoint.

    Raises:
        UsageError: these are not offsets of this source, or they have a newer version.
    """
    if not isinstance(value, Mapping) or "v" not in value:
        raise UsageError(f"{_shown(value)} is not an offset of the quiver-topic source; is this its checkpoint?")
    if value["v"] != TOPIC_OFFSET_VERSION:
        raise UsageError(
            f"the checkpoint holds offsets of version {value['v']!r}; this release reads {TOPIC_OFFSET_VERSION}"
        )
    topics = value.get("topics")
    if not isinstance(topics, Mapping) or not all(_is_offset(one, BEGINNING) for one in topics.values()):
        raise UsageError(f"{_shown(value)} is not an offset of the quiver-topic source; is this its checkpoint?")
    return {check_topic(str(topic)): offset for topic, offset in topics.items()}


def parse_bound(text: str, *, option: str) -> Bound:
    """
    Parse ``earliest``, ``latest``, ``1200`` or ``{"default/orders": 1200}``.

    Raises:
        UsageError: *text* is none of these.
    """
    word = text.strip()
    if word.lower() == "earliest":
        return "earliest"
    if word.lower() == "latest":
        return "latest"
    try:
        value = json.loads(word)
    except ValueError:
        value = None
    if _is_offset(value, 0):
        return value
    if isinstance(value, Mapping) and all(_is_offset(one, 0) for one in value.values()):
        return {check_topic(topic): offset for topic, offset in value.items()}
    raise UsageError(
        f'{option}: {text!r} is not "earliest", "latest", an offset, or offsets by topic, as {{"default/orders": 1200}}'
    )


def _is_offset(value: object, least: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _OFFSET_MAX


def _shown(value: object) -> str:
    return repr(dict(value) if isinstance(value, Mapping) else value)[:120]
