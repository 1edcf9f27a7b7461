"""
The content of `/api/status`: what `quiver top` shows, the graph of the pipeline, its last events, and the tracks.

A reading takes time in proportion to the number of segments. So there is one reading at a time, and its result serves
all clients for a while.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quiver.cli.describers import describer_of
from quiver.cli.stats.top_figures import PipelineSnapshot, Showing, load_state, showing, store_places, take_snapshot
from quiver.cli.status.tracks import Track, store_tracks
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import QuiverError, UsageError
from quiver.primitives.disk.real_files import REAL_FILES

if TYPE_CHECKING:
    from quiver.cli.stats.store import SubscriberStats

__all__ = ["StatusReader", "StatusSource"]

REUSE_S_MIN = 1.0
REUSE_TIMES = 10
"""A result is reused for ten times as long as its reading took: the page takes at most a tenth of a core."""

_NOT_COUNTED = dict.fromkeys(("records", "records_per_second", "bytes", "bytes_per_second"))
"""The figures of a receiver whose counts are unknown, as of one that polls a log."""

_RECEIVED = {"OTLP requests": "requests", "OTAP batches": "batches"}


@dataclass(frozen=True, slots=True)
class StatusSource:
    """
    The path to report on.

    Attributes:
        directory: of a store, a QWP slot, append-only logs or topics.
        run_dir: where a pipeline of this store has its state file.
        endpoint: its metrics port; None for the one in the state file.
    """

    directory: str
    run_dir: str
    endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class _Reading:
    at_s: float
    took_s: float
    snapshot: PipelineSnapshot | None
    positions: Mapping[tuple[str, str], int]
    content: dict[str, Any]


class StatusReader:
    """
    Reads the status of *source*, at most one reading at a time. Thread-safe.

    Args:
        source: the path.
        clock: measures intervals and ages.
        may_change: whether the page may replay and drop dead letters, which the content reports.
    """

    def __init__(self, source: StatusSource, *, clock: Clock = SYSTEM_CLOCK, may_change: bool = False) -> None:
        self._source = source
        self._clock = clock
        self._may_change = may_change
        self._lock = threading.Lock()
        self._last: _Reading | None = None

    def current(self) -> dict[str, Any]:
        """
        Return the content, not older than a second or ten times the duration of a reading.

        Raises:
            UsageError: the path is not a log of Quiver, and no pipeline has left a state file.
            OSError: a file cannot be read.
        """
        with self._lock:
            last = self._last
            now_s = self._clock.monotonic()
            if last is None or now_s - last.at_s >= max(REUSE_S_MIN, REUSE_TIMES * last.took_s):
                last = self._last = self._read(last)
            return last.content

    def _read(self, before: _Reading | None) -> _Reading:
        source, at_s, now_ns = self._source, self._clock.monotonic(), self._clock.now_ns()
        state = load_state(REAL_FILES, source.run_dir)
        described = describer_of(Path(source.directory)) if Path(source.directory).exists() else None
        snapshot = None
        if state or described is None or described.stats is not None:
            snapshot = take_snapshot(
                REAL_FILES, source.directory, source.run_dir, source.endpoint, at_s=at_s, now_ns=now_ns
            )
            kind = "a pipeline" if state else "a store"
            tracks, problems = _tracks_of(store_places(REAL_FILES, source.directory, state))
        elif described.tracks is not None:
            kind = described.name
            tracks, problems = list(described.tracks(source.directory)), []
        else:
            raise UsageError(f"{source.directory} is {described.name}, which has no status page")
        positions = dict(_positions(tracks))
        passed_s = 0.0 if before is None else at_s - before.at_s
        rates = {} if before is None else _rates(positions, before.positions, passed_s)
        found = None if snapshot is None else showing(snapshot, None if before is None else before.snapshot)
        content = {
            "kind": kind,
            "directory": source.directory,
            "at_ns": now_ns,
            "may_change": self._may_change,
            "pipeline": {key: state.get(key) for key in ("pipeline", "state", "pid", "cores")} if state else None,
            "events": list(state.get("events") or ()),
            "disk": self._disk(found, state),
            "problems": [*([] if found is None or not found.problem else [found.problem]), *problems],
            **_pipeline_content(found, tracks, rates, state, now_ns),
            "tracks": [_track_content(track, rates) for track in tracks],
        }
        took_s = self._clock.monotonic() - at_s
        return _Reading(at_s, took_s, snapshot, positions, content)

    def _disk(self, found: Showing | None, state: Mapping[str, Any]) -> dict[str, Any]:
        directory = self._source.directory
        caps = [cap for cap in dict(state.get("size_caps") or {}).values() if isinstance(cap, int)]
        cap = state.get("disk_cap") or (sum(caps) if caps else None)
        free = REAL_FILES.free_bytes(directory) if Path(directory).exists() else None
        return {**(dict(found.disk) if found is not None else {}), "cap_bytes": cap, "free_bytes": free}


def _tracks_of(places: Sequence[str]) -> tuple[list[Track], list[str]]:
    """Return the tracks of the stores at *places*, and why others cannot be read."""
    tracks: list[Track] = []
    problems: list[str] = []
    for place in places:
        try:
            tracks += store_tracks(place)
        except (QuiverError, OSError) as error:
            problems.append(f"{place}: {error}")
    return tracks, problems


def _positions(tracks: Sequence[Track]) -> Iterator[tuple[tuple[str, str], int]]:
    for track in tracks:
        if track.head is not None:
            yield (track.name, ""), track.head
        for cursor in track.cursors:
            if cursor.position is not None:
                yield (track.name, cursor.name), cursor.position


def _rates(
    now: Mapping[tuple[str, str], int], before: Mapping[tuple[str, str], int], passed_s: float
) -> dict[tuple[str, str], float]:
    """Return how far each position moved per second. A position that decreased has no rate: it was moved back."""
    return {
        key: (value - before[key]) / passed_s
        for key, value in now.items()
        if passed_s > 0 and key in before and value >= before[key]
    }


def _track_content(track: Track, rates: Mapping[tuple[str, str], float]) -> dict[str, Any]:
    content = asdict(track) | {"per_second": rates.get((track.name, ""))}
    for cursor in content["cursors"]:
        cursor["per_second"] = rates.get((track.name, cursor["name"]))
    return content


def _pipeline_content(
    found: Showing | None,
    tracks: Sequence[Track],
    rates: Mapping[tuple[str, str], float],
    state: Mapping[str, Any],
    now_ns: int,
) -> dict[str, Any]:
    if found is None:
        return {"graph": None, "processes": [], "flows": [], "receivers": [], "exporters": [], "errors": []}
    exporters = [_exporter(one, found, rates, now_ns) for one in found.subscribers]
    # Older versions wrote no graph.
    graph = state.get("graph") or _graph_of_store(tracks, exporters)
    receivers = _receivers(graph, found)
    return {
        "graph": _annotated(graph, found, tracks, {one["name"]: one for one in receivers}, exporters, rates),
        "processes": [asdict(one) for one in found.nodes],
        "flows": [asdict(one) for one in found.flows],
        "receivers": receivers,
        "exporters": exporters,
        "errors": list(found.errors),
    }


def _receivers(graph: Mapping[str, Any], found: Showing) -> list[dict[str, Any]]:
    """Return the receivers of *graph*, with what each has received where that is counted."""
    nodes = [node for node in graph["nodes"] if node["kind"] == "receiver"]
    only = found.received.get("") if len(nodes) == 1 else None
    received = [found.received.get(node["name"], only) for node in nodes]
    return [
        {"name": node["name"], "note": node["note"], **(_NOT_COUNTED if one is None else asdict(one))}
        for node, one in zip(nodes, received, strict=True)
    ]


def _exporter(
    one: SubscriberStats, found: Showing, rates: Mapping[tuple[str, str], float], now_ns: int
) -> dict[str, Any]:
    """Return the figures of one subscriber: those of `quiver top`, with ages in seconds."""
    waits, report = found.waiting.get(one.subscriber), found.reports.get(one.subscriber)
    from_files = [rate for (_, cursor), rate in rates.items() if cursor == one.subscriber]
    error = None if report is None else report.error
    success_ns = None if report is None else report.last_success_at_ns
    return {
        "name": one.subscriber,
        "lag_bundles": one.lag_bundles,
        "lag_bytes": one.lag_bytes,
        "oldest_age_s": one.oldest_age_s,
        "per_second": found.rates.get(one.subscriber, sum(from_files) if from_files else None),
        "retrying": 0 if waits is None else waits.retrying,
        "attempts": 0 if waits is None else waits.attempts,
        "next_retry_s": None if waits is None else waits.next_retry_s,
        "halted": waits is not None and waits.halted,
        "dead_letters": found.dead_letters.get(one.subscriber, 0),
        "last_success_age_s": None if success_ns is None else max(now_ns - success_ns, 0) / 1e9,
        "last_error": error.in_words(now_ns) if error is not None else None if waits is None else waits.last_failure,
        "problem": one.problem,
    }


def _graph_of_store(tracks: Sequence[Track], exporters: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a graph for a store without a pipeline: the store and its subscribers."""
    name = Path(tracks[0].name).name if tracks else "store"
    nodes = [{"name": name, "kind": "buffer", "note": tracks[0].name if tracks else ""}]
    nodes += [{"name": one["name"], "kind": "subscriber", "note": ""} for one in exporters]
    return {"nodes": nodes, "edges": [(name, one["name"]) for one in exporters]}


def _annotated(
    graph: Mapping[str, Any],
    found: Showing,
    tracks: Sequence[Track],
    receivers: Mapping[str, Mapping[str, Any]],
    exporters: Sequence[Mapping[str, Any]],
    rates: Mapping[tuple[str, str], float],
) -> dict[str, Any]:
    """Return *graph* with the rate and the lag of each node, where they are known."""
    of_exporter = {one["name"]: one for one in exporters}
    buffers = [node["name"] for node in graph["nodes"] if node["kind"] == "buffer"]
    nodes = []
    for node in graph["nodes"]:
        figures: dict[str, Any] = {"per_second": None, "unit": "bundles", "lag": None, "trouble": False}
        if node["kind"] == "buffer":
            received = _received(found, node["name"], is_only=len(buffers) == 1)
            place = Path(node["note"])
            inside = [one for one in tracks if place in {Path(one.name), *Path(one.name).parents}]
            sealed = [rates[key] for track in inside if (key := (track.name, "")) in rates]
            figures["per_second"], figures["unit"] = received or (sum(sealed) if sealed else None, "bundles")
        elif node["name"] in receivers:
            figures |= {"per_second": receivers[node["name"]]["records_per_second"], "unit": "records"}
        elif node["name"] in of_exporter:
            one = of_exporter[node["name"]]
            figures |= {"per_second": one["per_second"], "lag": one["lag_bundles"]}
            figures["trouble"] = bool(one["problem"] or one["last_error"] or one["halted"] or one["dead_letters"])
        nodes.append({**node, **figures})
    return {"nodes": nodes, "edges": graph["edges"]}


def _received(found: Showing, buffer: str, *, is_only: bool) -> tuple[float, str] | None:
    """Return the rate at which receivers fill *buffer*, from the metrics; None if nothing was received through them."""
    for what, unit in _RECEIVED.items():
        lines = [flow for flow in found.flows if flow.what == what and (is_only or flow.of.split(" ")[0] == buffer)]
        rates = [flow.per_second for flow in lines if flow.per_second is not None]
        if rates and any(flow.total for flow in lines):
            return sum(rates), unit
    return None
