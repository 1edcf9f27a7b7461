"""
The nodes of a fleet, their objects, and the positions of its readers, read from the bucket once.

Nothing is written, and no node and no reader needs to run. While they do, lag can only be too large: positions are read
before objects. A listing is not a snapshot: a hole in a chain is certain only if a second survey has it, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from quiver.errors import CorruptionError, ObjectNotFoundError, UsageError
from quiver.objects.port import ObjectInfo, ObjectTier
from quiver.primitives.scan import Frame
from quiver.store.format.fleet.acks import AckedNode
from quiver.store.format.fleet.names import (
    ACKS_FOLDER,
    INBOX_FOLDER,
    NODES_FOLDER,
    InboxObject,
    is_identity,
    parse_inbox_key,
    parse_node_key,
)
from quiver.store.format.fleet.node_record import NODE_RECORD_BYTES_MAX, NodeRecord, decode_node_record
from quiver.store.format.names import is_subscriber_id
from quiver.store.reading.fleet.listing import in_parallel, list_shards
from quiver.store.reading.fleet.positions import read_positions

__all__ = ["FleetSurvey", "ReaderPositions", "SurveyedNode", "find_nodes", "survey"]


@dataclass(slots=True)
class SurveyedNode:
    """
    One node.

    Attributes:
        identity: the UUID of its store.
        record: what it reports about itself; None without one, or if it is damaged.
        recorded_ns: when it wrote the record, by the clock of the object store; None without a record.
        problem: why its record cannot be read.
        objects: its segments, and its records of segments that are gone, with the time of each by the clock of the
            object store.
        others: keys below its folder that are neither, such as copies of damaged objects.
    """

    identity: str
    record: NodeRecord | None = None
    recorded_ns: int | None = None
    problem: str | None = None
    objects: list[tuple[InboxObject, int]] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its name; without a record, its identity."""
        return self.identity if self.record is None else self.record.name

    @property
    def clock_difference_s(self) -> float | None:
        """How far its clock is ahead of that of the object store, including the time of one request."""
        if self.record is None or self.recorded_ns is None:
            return None
        return (self.record.written_at_ns - self.recorded_ns) / 1e9

    def seen_s(self, now_ns: int) -> float | None:
        """Return how long ago it wrote its record; None without one."""
        return None if self.recorded_ns is None else max(0, now_ns - self.recorded_ns) / 1e9

    def is_silent(self, now_ns: int, silent_s: float) -> bool:
        """Return whether it should have written its record and did not for *silent_s*. A stopped node need not."""
        seen_s = self.seen_s(now_ns)
        is_stopped = self.record is not None and self.record.state == "stopped"
        return not is_stopped and (seen_s is None or seen_s > silent_s)


@dataclass(slots=True)
class ReaderPositions:
    """
    The acknowledged positions of one reader.

    Attributes:
        subscriber: its name.
        epoch: the highest one in its objects.
        nodes: its position in each node that it has read, by identity.
        problems: why some of its objects cannot be read, each with its key.
    """

    subscriber: str
    epoch: int = 0
    nodes: dict[str, AckedNode] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FleetSurvey:
    """
    A fleet.

    Attributes:
        nodes: by identity, ascending.
        readers: by name, ascending: those that acknowledged, and those that a node waits for.
        strangers: keys in the inbox that belong to no node.
    """

    nodes: Mapping[str, SurveyedNode]
    readers: Mapping[str, ReaderPositions]
    strangers: tuple[str, ...] = ()

    def readers_of(self, node: SurveyedNode) -> list[ReaderPositions]:
        """Return the readers that *node* waits for; without its record, those that have read it."""
        if node.record is not None:
            return [self.readers[name] for name in node.record.subscribers]
        return [one for one in self.readers.values() if node.identity in one.nodes]


def survey(tier: ObjectTier, *, identity: str | None = None) -> FleetSurvey:
    """
    Return the fleet in the bucket *tier*; with *identity*, only this node and its readers.

    Damaged objects are reported in the result.

    Raises:
        ObjectsUnavailableError, AccessDeniedError: the bucket cannot be read.
    """
    readers = _read_readers(tier)
    nodes: dict[str, SurveyedNode] = {}
    strangers = []
    folder = INBOX_FOLDER if identity is None else f"{INBOX_FOLDER}/{identity[:2]}/{identity}"
    for info in list_shards(tier, folder) if identity is None else tier.list_below(folder):
        owner = _owner_of(info.key)
        if owner is None:
            strangers.append(info.key)
            continue
        node = nodes.setdefault(owner, SurveyedNode(owner))
        found = parse_inbox_key(info.key, info.size_bytes)
        if found is None:
            node.others.append(info.key)
        else:
            node.objects.append((found[1], info.modified_ns))
    for node_identity, info, record, problem in _read_records(tier, identity):
        node = nodes.setdefault(node_identity, SurveyedNode(node_identity))
        node.record, node.recorded_ns, node.problem = record, info.modified_ns, problem
        for name in () if record is None else record.subscribers:
            readers.setdefault(name, ReaderPositions(name))
    return FleetSurvey(dict(sorted(nodes.items())), dict(sorted(readers.items())), tuple(strangers))


def find_nodes(tier: ObjectTier, wanted: Iterable[str]) -> list[str]:
    """
    Return the identities of the nodes with the names or identities *wanted*, ascending. A name may belong to several.

    Raises:
        UsageError: one of them is neither the name nor the identity of a node.
        ObjectsUnavailableError, AccessDeniedError: the bucket cannot be read.
    """
    found = set()
    by_name: dict[str, list[str]] | None = None
    for text in wanted:
        if is_identity(text):
            known = [text] if text in survey(tier, identity=text).nodes else []
        else:
            if by_name is None:
                by_name = {}
                for identity, _, record, _ in _read_records(tier, None):
                    by_name.setdefault("" if record is None else record.name, []).append(identity)
            known = by_name.get(text, [])
        if not known:
            raise UsageError(f"no node of this fleet is named {text[:140]!r}: `quiver fleet list` shows all")
        found.update(known)
    return sorted(found)


def _owner_of(key: str) -> str | None:
    folders = key.split("/")
    is_below = len(folders) > 3 and is_identity(folders[2]) and folders[2][:2] == folders[1]
    return folders[2] if is_below else None


def _read_readers(tier: ObjectTier) -> dict[str, ReaderPositions]:
    names = {info.key.split("/")[1] for info in tier.list_below(ACKS_FOLDER)}
    readers = {}
    for name in sorted(filter(is_subscriber_id, names)):
        found = read_positions(tier, name)
        problems = [str(problem) for problem in found.problems.values()]
        readers[name] = ReaderPositions(name, found.epoch, dict(found.nodes), problems)
    return readers


def _read_records(
    tier: ObjectTier, identity: str | None
) -> list[tuple[str, ObjectInfo, NodeRecord | None, str | None]]:
    """Return identity, object, record and problem of each node, ascending."""
    folder = NODES_FOLDER if identity is None else f"{NODES_FOLDER}/{identity[:2]}"
    listed = list_shards(tier, folder) if identity is None else tier.list_below(folder)
    owners = [(owner, info) for info in listed if (owner := parse_node_key(info.key)) is not None]
    owners = [(owner, info) for owner, info in owners if identity in {None, owner}]
    datas = in_parallel(lambda one: _get(tier, one[1].key, NODE_RECORD_BYTES_MAX), owners)
    found: list[tuple[str, ObjectInfo, NodeRecord | None, str | None]] = []
    for (owner, info), data in zip(owners, datas, strict=True):
        if data is None:
            continue
        answer = decode_node_record(memoryview(data))
        if isinstance(answer, Frame) and answer.value.identity == owner:
            found.append((owner, info, answer.value, None))
        else:
            reason = "it is the record of another node" if isinstance(answer, Frame) else answer.reason
            found.append((owner, info, None, str(CorruptionError(info.key, 0, reason))))
    return found


def _get(tier: ObjectTier, key: str, size_max: int) -> bytes | None:
    """Return an object; None if it was removed meanwhile. One that is too large is cut, which is damage."""
    try:
        return tier.get(key, size_max=size_max)
    except ObjectNotFoundError:
        return None
    except UsageError:
        return tier.get_range(key, 0, size_max + 1)
