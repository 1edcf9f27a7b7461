"""
The report of a node about itself: JSON text; values in and out.

A node writes its record when it starts, every few minutes, and when it stops. It replaces only its own last version. If
another process wrote the record meanwhile, two stores have the same identity, for example because a disk image was
cloned: both stop uploading. Readers use the record for names, labels and figures. No position depends on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

from quiver.errors import UsageError
from quiver.primitives.scan import Damage, Frame
from quiver.store.format.fleet.names import is_identity, is_node_name
from quiver.store.format.names import U64_MAX, is_subscriber_id

__all__ = [
    "LABELS_MAX",
    "LABEL_CHARS_MAX",
    "NODE_RECORD_BYTES_MAX",
    "NODE_RECORD_VERSION",
    "NodeRecord",
    "NodeState",
    "decode_node_record",
    "encode_node_record",
]

NodeState = Literal["running", "stopped", "conflict"]

NODE_RECORD_VERSION = 1
NODE_RECORD_BYTES_MAX = 65_536
LABELS_MAX = 64
LABEL_CHARS_MAX = 256

_KIND = "fleet node"
_TEXT_CHARS_MAX = 400
_SUBSCRIBERS_MAX = 64
_NUMBERS = ("written_at_ns", "started_at_ns", "next_segment", "waiting_segments", "waiting_bytes", "disk_bytes")
_OPTIONAL = ("oldest_waiting_ns", "disk_cap_bytes", "disk_free_bytes")


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """
    The state of one node when it wrote its record. Times are nanoseconds since the epoch, by the node's clock.

    Attributes:
        identity: of its store; another one after the machine was installed again.
        name: the configured name; several nodes may have the same one.
        boot: random, different whenever the store is opened.
        state: `conflict`: the node found that another process uses its identity, and uploads nothing.
        version: of Quiver.
        written_at_ns: when this record was written.
        started_at_ns: when the store was opened.
        next_segment: the position after the last segment that was uploaded, or that is gone.
        waiting_segments: how many sealed segments are not uploaded.
        waiting_bytes: their size.
        disk_bytes: space that the store uses.
        oldest_waiting_ns: when the oldest bundle that is not uploaded was stored; None without one.
        disk_cap_bytes: the configured limit of `disk_bytes`; None without one.
        disk_free_bytes: free space of its disk; None if unknown.
        problem: why the node does not upload at the moment; None if it does.
        subscribers: the fleet subscribers that it waits for.
        labels: configured texts, for example of a site.
    """

    identity: str
    name: str
    boot: str
    state: NodeState
    version: str
    written_at_ns: int
    started_at_ns: int
    next_segment: int
    waiting_segments: int
    waiting_bytes: int
    disk_bytes: int
    oldest_waiting_ns: int | None = None
    disk_cap_bytes: int | None = None
    disk_free_bytes: int | None = None
    problem: str | None = None
    subscribers: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    def in_state(self, state: NodeState) -> NodeRecord:
        """Return the same record in another state."""
        return replace(self, state=state)


def encode_node_record(record: NodeRecord) -> bytes:
    """
    Return the text of a record.

    Raises:
        UsageError: it could not be read again; the message names the field.
    """
    value = {"kind": _KIND, "record_version": NODE_RECORD_VERSION, **asdict(record)}
    data = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    answer = decode_node_record(memoryview(data))
    if not isinstance(answer, Frame):
        raise UsageError(f"the record of a node cannot be written: {answer.reason}")
    return data


def decode_node_record(view: memoryview) -> Frame[NodeRecord] | Damage:
    """Decode a complete record. Unknown members are skipped."""
    if len(view) > NODE_RECORD_BYTES_MAX:
        return Damage(0, f"not the record of a node: it has more than {NODE_RECORD_BYTES_MAX} bytes")
    try:
        found = json.loads(bytes(view))
    except (ValueError, RecursionError):
        return Damage(0, "not the record of a node: it is not JSON text")
    if not isinstance(found, dict) or found.get("kind") != _KIND:
        return Damage(0, "not the record of a node: `kind` is missing or different")
    if found.get("record_version") != NODE_RECORD_VERSION:
        return Damage(0, f"unsupported version {str(found.get('record_version'))[:20]!r}")
    for name, is_valid in _CHECKS.items():
        if not is_valid(found.get(name)):
            return Damage(0, f"not the record of a node: {name} is missing or not valid")
    values: dict[str, Any] = {one.name: found.get(one.name) for one in fields(NodeRecord)}
    values["subscribers"] = tuple(found["subscribers"])
    return Frame(NodeRecord(**values), len(view))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= U64_MAX


def _is_text(value: Any, chars_max: int = _TEXT_CHARS_MAX) -> bool:
    return isinstance(value, str) and len(value) <= chars_max and value.isprintable()


def _are_labels(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= LABELS_MAX
        and all(
            key and _is_text(key, LABEL_CHARS_MAX) and _is_text(text, LABEL_CHARS_MAX) for key, text in value.items()
        )
    )


def _are_subscribers(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= _SUBSCRIBERS_MAX
        and all(isinstance(one, str) and is_subscriber_id(one) for one in value)
    )


_CHECKS = {
    "identity": lambda value: isinstance(value, str) and is_identity(value),
    "name": lambda value: isinstance(value, str) and is_node_name(value),
    "boot": lambda value: _is_text(value) and value != "",
    "state": lambda value: value in get_args(NodeState),
    "version": _is_text,
    **dict.fromkeys(_NUMBERS, _is_number),
    **dict.fromkeys(_OPTIONAL, lambda value: value is None or _is_number(value)),
    "problem": lambda value: value is None or _is_text(value),
    "subscribers": _are_subscribers,
    "labels": _are_labels,
}
