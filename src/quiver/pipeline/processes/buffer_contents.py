"""
The contents of the buffers of a pipeline, for the reports at its start and its end.

Counting bundles reads segments, and that loads Arrow. `count_in_short_process` counts in another process, so that the
supervisor of a pipeline never loads it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from quiver.clock import SYSTEM_CLOCK
from quiver.errors import QuiverError, UsageError
from quiver.pipeline.model import Pipeline
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.short_process import call_in_short_process
from quiver.store.cores.instances import instance_roots
from quiver.store.format.names import parse_progress_name

__all__ = [
    "BufferPlace",
    "Count",
    "count_in_short_process",
    "has_other_subscribers",
    "lost_dead_letters",
    "not_sealed",
    "places_of",
    "remaining",
    "undelivered",
]

_log = logging.getLogger("quiver.pipeline")

Count = tuple[str, int, str]
"""Of what, how many, and the directory of the buffer."""


@dataclass(frozen=True, slots=True)
class BufferPlace:
    """
    Where a buffer is, and who reads it.

    Attributes:
        name: its node.
        path: its directory.
        exporters: the exporters that read it.
        is_durable: whether it is on disk; otherwise it is lost with the run.
        fleet: the subscribers of its fleet, which read the bucket.
    """

    name: str
    path: str
    exporters: Sequence[str]
    is_durable: bool
    fleet: Sequence[str] = ()

    def is_read_as(self, subscriber: str) -> bool:
        """Return whether *subscriber* belongs to an exporter or to the fleet."""
        return subscriber in self.exporters or subscriber in self.fleet


def places_of(pipeline: Pipeline) -> list[BufferPlace]:
    """Return the buffers of *pipeline*."""
    return [
        BufferPlace(
            buffer.name,
            buffer.config.path,
            [route.name for route in buffer.routes],
            is_durable=buffer.kind != "memory",
            fleet=buffer.config.settings.fleet_subscribers,
        )
        for buffer in pipeline.buffers
    ]


def remaining(buffers: Sequence[BufferPlace]) -> list[Count]:
    """Return each exporter with unresolved bundles: its name, the number of sealed ones, and the directory."""
    found = []
    for buffer in buffers:
        lags = _lags(buffer.path)
        found += [(name, lags[name], buffer.path) for name in buffer.exporters if lags.get(name)]
    return found


def not_sealed(buffers: Sequence[BufferPlace]) -> list[Count]:
    """Return each buffer that could not seal all data: its name, the number of unsealed bundles, and the directory."""
    from quiver.store.reading.log_tail import sealed_and_logged  # noqa: PLC0415 - loads Arrow

    found = []
    for buffer in buffers:
        try:
            bundles = sum(sealed_and_logged(REAL_FILES, root)[1] for root in _roots(buffer.path))
        except (QuiverError, OSError) as error:
            _log.warning("%s cannot be looked at: %s", buffer.path, error)
            continue
        if bundles:
            found.append((buffer.name, bundles, buffer.path))
    return found


def lost_dead_letters(buffers: Sequence[BufferPlace]) -> list[Count]:
    """Return the dead letters that are lost with the run because they are in memory: exporter, number, directory."""
    from quiver.delivery.dead_letters import count_dead_letters, exporters_with_dead_letters  # noqa: PLC0415 - loads Arrow

    found = []
    for directory in (buffer.path for buffer in buffers if not buffer.is_durable):
        counts: dict[str, int] = {}
        try:
            for root in _roots(directory):
                for name in exporters_with_dead_letters(REAL_FILES, root):
                    counts[name] = counts.get(name, 0) + count_dead_letters(REAL_FILES, root, name)
        except (QuiverError, OSError) as error:
            _log.warning("%s cannot be looked at: %s", directory, error)
        found += [(name, count, directory) for name, count in counts.items() if count]
    return found


def undelivered(buffers: Sequence[BufferPlace]) -> list[Count]:
    """
    Return each subscriber that retains data and belongs neither to an exporter of its buffer nor to its fleet: its
    name, the number of bundles, the directory.

    It may be another program. Or an exporter was renamed: then nothing reads for the old name, and the buffer fills up.
    """
    return [
        (name, bundles, buffer.path)
        for buffer in buffers
        for name, bundles in sorted(_lags(buffer.path).items())
        if bundles and not buffer.is_read_as(name)
    ]


def has_other_subscribers(buffers: Sequence[BufferPlace]) -> bool:
    """Return whether a buffer has a subscriber that belongs neither to an exporter nor to its fleet. Loads no Arrow."""
    try:
        return any(
            name is not None and not buffer.is_read_as(name)
            for buffer in buffers
            for root in _roots(buffer.path)
            for name in map(parse_progress_name, REAL_FILES.list_dir(root))
        )
    except OSError:
        return True  # `undelivered` reports the reason


_COUNTS: Mapping[str, Callable[[Sequence[BufferPlace]], list[Count]]] = {
    count.__name__: count for count in (remaining, not_sealed, lost_dead_letters, undelivered)
}


def count_in_short_process(buffers: Sequence[BufferPlace], *names: str) -> list[list[Count]]:
    """
    Return what the functions of these names return for *buffers*, called in a process that ends afterwards.

    Raises:
        QuiverError: the process failed.
    """
    answer = call_in_short_process(f"{__name__}:count_places", [asdict(one) for one in buffers], list(names))
    return [[(name, count, directory) for name, count, directory in found] for found in answer]


def count_places(buffers: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[list[Count]]:
    """Return what the functions of these names return. The function that the short process calls."""
    places = [BufferPlace(**one) for one in buffers]
    return [_COUNTS[name](places) for name in names]


def _lags(directory: str) -> dict[str, int]:
    from quiver.store.reading.listing import summarize_subscribers  # noqa: PLC0415 - loads Arrow

    lags: dict[str, int] = {}
    try:
        for root in _roots(directory):
            for one in summarize_subscribers(REAL_FILES, root, now_ns=SYSTEM_CLOCK.now_ns()):
                lags[one.subscriber] = lags.get(one.subscriber, 0) + (one.lag_bundles or 0)
    except (QuiverError, OSError) as error:
        _log.warning("%s cannot be looked at: %s", directory, error)
    return lags


def _roots(directory: str) -> list[str]:
    """Return the stores at *directory*; empty before the first one exists, even if the directory does."""
    try:
        return instance_roots(REAL_FILES, directory)
    except UsageError:
        return []
