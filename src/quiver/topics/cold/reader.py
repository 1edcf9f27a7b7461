"""
Reading one topic's objects from any offset on, frame by frame, with range requests.

A reader stores only the next offset and prefetched bytes. The catalog names the objects; a reader enters them at the
nearest entry of their index and reads them in pieces. Every frame's checksum and offset are verified. Damaged and
missing messages are reported with the object's name, the byte, and the lost range of offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quiver.errors import MetadataUnavailableError, ObjectNotFoundError, ObjectsUnavailableError
from quiver.objects.port import ObjectTier
from quiver.observe import Observer
from quiver.primitives.scan import Damage, NeedMore
from quiver.topics.cold.blocks import unpack_block
from quiver.topics.cold.catalog import ObjectCatalog
from quiver.topics.cold.pieces import ColdLost, ColdPiece
from quiver.topics.cold.spans import ObjectSpan
from quiver.topics.format.descriptor import ObjectDescriptor, object_key
from quiver.topics.format.frame import FRAME_HEADER_BYTES, take_frames
from quiver.topics.format.message import NS_PER_MS, decode_message
from quiver.topics.format.names import objects_prefix
from quiver.topics.format.salvage import next_frame_after, offset_within

__all__ = ["READ_BYTES", "ObjectReader"]

READ_BYTES = 4 * 1024 * 1024
_ATTEMPTS_MAX = 5
_SALVAGE_BYTES_MAX = 128 * 1024 * 1024


@dataclass(slots=True)
class _Place:
    """The position of the next frame in an object: `data` from `at` on, followed by byte `fetched` of the object."""

    descriptor: ObjectDescriptor
    expected: int
    fetched: int
    data: bytes = b""
    at: int = 0

    @property
    def position(self) -> int:
        """The position in the object of the next frame, or of the next block in a packed object."""
        packed = self.descriptor.compression != "none"
        return self.fetched if packed else self.fetched - (len(self.data) - self.at)


class ObjectReader:
    """
    Reads one topic's objects for one reader. Not thread-safe.

    Args:
        objects: the object store.
        catalog: of the topic; shared with other readers.
        observer: where counts are sent.
        follows_others: another process writes the catalog, so it is read again where it has no answer.
        read_bytes: the size of a range request.
    """

    def __init__(
        self,
        objects: ObjectTier,
        catalog: ObjectCatalog,
        *,
        observer: Observer,
        follows_others: bool = False,
        read_bytes: int = READ_BYTES,
    ) -> None:
        self._objects = objects
        self._catalog = catalog
        self._observer = observer
        self._follows_others = follows_others
        self._read_bytes = read_bytes
        self._place: _Place | None = None

    # ── lookups ──────────────────────────────────────────────────────────────────────────────────────────

    def take(self, offset: int, end: int) -> ColdPiece | ColdLost | None:
        """
        Return messages from exactly *offset* on and below *end*, or their damage.

        Return None if no object has *offset*.

        Raises:
            ObjectsUnavailableError, MetadataUnavailableError: the same call may succeed later.
        """
        place = self._place
        if place is None or place.expected != offset:
            place = self._enter(offset)
            if place is None:
                return None
        try:
            found = self._step(place, offset, end)
        except ObjectNotFoundError:
            self._place = None
            return self._missing(place.descriptor, offset)
        except ObjectsUnavailableError:
            self._place = None
            raise
        self._place = None if isinstance(found, ColdLost) or place.expected > place.descriptor.end_offset else place
        return found

    def next_offset(self, offset: int) -> int | None:
        """Return the first offset at or above *offset* that an object has; None if there is none."""
        found = self._find(offset)
        return None if found is None else max(offset, found.start_offset)

    def offset_at(self, time_ms: int) -> int | None:
        """
        Return the offset of the first message published at or after *time_ms*; None if the objects have none.

        Publish times come from producers: where they decrease, the result is still a message at or after the time, but
        may not be the first one.

        Raises:
            ObjectsUnavailableError, MetadataUnavailableError: the same call may succeed later.
        """
        if self._follows_others:
            self._catalog.refresh()
        spans = self._catalog.spans()
        low = self._last_before(len(spans), lambda at: self._time_of(spans[at].start_offset), time_ms)
        for span in spans[max(low, 0) :]:
            descriptor = self._catalog.descriptor_of(span) or span.without_index()
            places = descriptor.offset_index or ((descriptor.start_offset, 0),)
            near = self._last_before(len(places), lambda at, of=places: self._time_of(of[at][0]), time_ms)  # type: ignore[misc]
            found = self._scan_for(places[max(near, 0)][0], descriptor.end_offset + 1, time_ms)
            if found is not None:
                return found
        return None

    def close(self) -> None:
        """Discard prefetched bytes. Idempotent."""
        self._place = None

    # ── finding ──────────────────────────────────────────────────────────────────────────────────────────

    def _find(self, offset: int) -> ObjectSpan | None:
        found = self._catalog.at_or_after(offset)
        if self._follows_others and (found is None or found.start_offset > offset):
            self._catalog.refresh()
            found = self._catalog.at_or_after(offset)
        return found

    def _enter(self, offset: int) -> _Place | None:
        for _ in range(_ATTEMPTS_MAX):
            span = self._find(offset)
            if span is None or span.start_offset > offset:
                return None
            descriptor = self._catalog.descriptor_of(span)
            if descriptor is not None:
                return _Place(descriptor, *descriptor.place_of(offset))
            self._catalog.refresh()
        raise MetadataUnavailableError(f"{self._catalog.topic}: its objects keep changing; try again")

    def _missing(self, descriptor: ObjectDescriptor, offset: int) -> ColdLost | None:
        # Retention withdraws a descriptor before it removes the object: then the messages were deleted, not lost.
        self._catalog.refresh()
        found = self._catalog.at_or_after(offset)
        if found is None or found.object_id != descriptor.object_id:
            return None
        if next(iter(self._objects.list_below(objects_prefix(self._catalog.topic))), None) is None:
            # An empty directory where a disk should be mounted, or another bucket, is not the loss of one object.
            reason = "no object of this topic is there: is it the right place, and is it mounted?"
            raise ObjectsUnavailableError("get", object_key(self._catalog.topic, descriptor.object_id), reason)
        return self._lost(descriptor, offset, descriptor.end_offset + 1, 0, "the object is missing")

    @staticmethod
    def _last_before(count: int, time_of: Callable[[int], int | None], time_ms: int) -> int:
        low, high = -1, count
        while high - low > 1:
            middle = (low + high) // 2
            time = time_of(middle)
            low, high = (middle, high) if time is not None and time < time_ms else (low, middle)
        return low

    def _time_of(self, offset: int) -> int | None:
        found = self.take(offset, offset + 1)
        message = decode_message(found.bodies[0]) if isinstance(found, ColdPiece) else None
        return None if message is None or isinstance(message, Damage) else message.publish_time_ns // NS_PER_MS

    def _scan_for(self, offset: int, end: int, time_ms: int) -> int | None:
        while offset < end:
            found = self.take(offset, end)
            if not isinstance(found, ColdPiece):
                if found is None:
                    return None
                offset = found.next_offset
                continue
            for at, body in enumerate(found.bodies, offset):
                message = decode_message(body)
                if not isinstance(message, Damage) and message.publish_time_ns // NS_PER_MS >= time_ms:
                    return at
            offset += len(found.bodies)
        return None

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────

    def _step(self, place: _Place, offset: int, end: int) -> ColdPiece | ColdLost:
        wanted = self._read_bytes
        while True:
            skip = offset - place.expected
            frames, _, stopped = take_frames(place.data, place.at, count_max=max(1, skip + min(end - offset, 1 << 20)))
            good = 0
            while good < len(frames) and frames[good][0] == place.expected + good:
                good += 1
            if not good and frames and offset_within(place.data, frames[0]) == place.expected:
                good = 1  # only the header is damaged, and the message repeats its offset
            if good:
                place.expected += good
                place.at = frames[good - 1][2]
                if good > skip:
                    data = place.data
                    bodies = [data[start + FRAME_HEADER_BYTES : stop] for _, start, stop in frames[skip:good]]
                    return ColdPiece(offset, bodies[: end - offset])
                continue
            if frames:
                trouble: str | None = f"message {frames[0][0]} where {place.expected} belongs"
            elif isinstance(stopped, Damage):
                trouble = stopped.reason
            else:
                missing = stopped.missing if isinstance(stopped, NeedMore) else 1
                trouble = self._fetch(place, max(wanted, missing))
            lost = None if trouble is None else self._damaged(place, offset, trouble)
            if lost is not None:
                return lost

    def _fetch(self, place: _Place, wanted: int) -> str | None:
        """Append more of the object to the data, or return what is wrong with it."""
        descriptor = place.descriptor
        packed = descriptor.compression != "none"
        end = descriptor.size
        if packed:
            end = next((byte for _, byte in descriptor.offset_index if byte > place.fetched), end)
            wanted = end - place.fetched
        wanted = min(wanted, end - place.fetched)
        if wanted <= 0:
            return "the object ends too early"
        key = object_key(self._catalog.topic, descriptor.object_id)
        data = self._objects.get_range(key, place.fetched, wanted)
        self._observer.count("danube_cloud_reader_bytes_read_total", len(data))
        if len(data) < wanted:
            size = self._objects.head(key).size_bytes
            if size >= place.fetched + wanted:
                raise ObjectsUnavailableError("get", key, f"{len(data)} bytes came where {wanted} were asked for")
            return f"the object has {size} bytes, not {descriptor.size}"
        if descriptor.compression != "none":
            try:
                data = unpack_block(data, descriptor.compression)
            except ValueError as error:
                return str(error)
        place.data = place.data[place.at :] + data
        place.at = 0
        place.fetched += wanted
        return None

    def _damaged(self, place: _Place, offset: int, reason: str) -> ColdLost | None:
        """Return the lost range, or None if no wanted message is lost and *place* is after the damage now."""
        descriptor = place.descriptor
        position = place.position
        first = max(offset, place.expected)
        later = [entry for entry in descriptor.offset_index if entry[0] > first]
        after, byte = later[0] if later else (descriptor.end_offset + 1, descriptor.size)
        if descriptor.compression == "none":
            # The index points to a frame after the damage; the next intact frame may be nearer.
            while place.fetched < byte and len(place.data) < _SALVAGE_BYTES_MAX:
                if self._fetch(place, self._read_bytes) is not None:
                    break
            near = next_frame_after(place.data, place.at, expected=place.expected)
            if near is not None and near[0] <= offset:
                place.expected, place.at = near[0], near[1]
                return None
            if near is not None and near[0] < after:
                after = near[0]
        return self._lost(descriptor, offset, after, position, reason)

    def _lost(self, descriptor: ObjectDescriptor, offset: int, after: int, position: int, reason: str) -> ColdLost:
        self._observer.count("danube_cloud_reader_errors_total", 1)
        name = object_key(self._catalog.topic, descriptor.object_id)
        return ColdLost(offset, after, name, position, reason)
