"""
The processes of the soak: one that holds the store and takes bundles over a socket, producers, and subscribers.

None of them cleans up after itself: each may be killed between any two instructions. Each records the responses that
it got in its own files, with one write per line, which a kill does not undo.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import os
import random
import select
import signal
import socket
import struct
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from quiver import Bundle, BundleUnavailableError, CapacityError, DirectoryInUseError, QuiverError, Settings
from quiver import open as open_store
from quiver.observe import InMemoryObserver, Observer, Value
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.store.read_partition import open_checked
from quiver.store.format.cores import core_directory
from quiver.store.reading.segments import SegmentList
from quiver.store.reading.stream_options import parse_options
from quiver.store.reading.stream_subscriber import StreamSubscriber

PRODUCERS = 2
SUBSCRIBERS = {"fast": 0.0, "steady": 0.002, "slow": 0.01}
"""Processes of their own: name → seconds that each takes over a bundle."""
INSIDE = {"inside": 0.001}
"""Threads in the process that holds the store."""
TURN = 300
"""With several cores, a producer continues with the next one after this number of bundles."""

SAID: list[str] = []
"""The file for a process's last words."""

_ID = struct.Struct("<II")
_ACCEPTED, _FULL = b"a", b"f"
_PR_SET_PDEATHSIG = 1


class Board:
    """The state that all processes share: whether to stop, and which numbers each producer has used."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 4096)

    def _get(self, index: int) -> int:
        return int.from_bytes(self._memory[8 * index : 8 * index + 8], "little")

    def _set(self, index: int, value: int) -> None:
        self._memory[8 * index : 8 * index + 8] = value.to_bytes(8, "little")

    @property
    def producers_stop(self) -> bool:
        return bool(self._get(0))

    def stop_producers(self) -> None:
        self._set(0, 1)

    @property
    def server_stops(self) -> bool:
        return bool(self._get(1))

    def stop_server(self) -> None:
        self._set(1, 1)

    @property
    def subscribers_stop(self) -> bool:
        return bool(self._get(2))

    def stop_subscribers(self) -> None:
        self._set(2, 1)

    def used(self, producer: int) -> int:
        return self._get(8 + producer)

    def use_next(self, producer: int) -> int:
        number = self.used(producer)
        self._set(8 + producer, number + 1)
        return number


@dataclass(frozen=True)
class Place:
    """Where one soak runs."""

    base: Path
    settings: Settings
    board: Board
    pace: float = 1.0
    """How slow the subscribers are: below 1, faster than the table has it."""
    cores: int | None = None
    """Cores that share the directory, each in a process of its own; None is a single store."""

    @property
    def store(self) -> Path:
        return self.base / "store"

    @property
    def directories(self) -> list[Path]:
        """Where the stores are, by core."""
        if self.cores is None:
            return [self.store]
        return [self.store / core_directory(core) for core in range(self.cores)]

    def open(self, core: int | None = None, *, observer: Observer | None = None, background: bool = True) -> Any:
        """The store, or with several cores one of them, or all."""
        if self.cores is None:
            return open_store(self.store, self.settings, observer=observer, background=background)
        return open_store(
            self.store, self.settings, cores=self.cores, core=core, observer=observer, background=background
        )

    def socket(self, core: int) -> str:
        return str(self.base / f"socket-{core}")

    def journal(self, who: str) -> Path:
        return self.base / f"{who}.journal"

    def journals(self, who: str) -> list[Path]:
        """One for each core."""
        return [self.journal(f"{who}-{core}") for core in range(len(self.directories))]


def made(producer: int, number: int) -> Bundle:
    columns = {
        "producer": pa.array([producer], pa.int32()),
        "number": pa.array([number]),
        "pad": ["x" * (200 + number * 37 % 700)],
    }
    return Bundle({30: pa.record_batch(columns)})


def name_of(batch: pa.RecordBatch) -> tuple[int, int]:
    producer, number = batch["producer"][0].as_py(), batch["number"][0].as_py()
    assert batch == made(producer, number)[30], f"bundle {producer}:{number} came back changed"
    return producer, number


def pause(seconds: float) -> None:
    if seconds:
        select.select([], [], [], seconds)


def write_line(descriptor: int, name: tuple[int, int]) -> None:
    os.write(descriptor, b"%d %d\n" % name)


def read_lines(path: Path) -> list[tuple[int, int]]:
    if not path.exists():
        return []
    pairs = (line.split() for line in path.read_text().splitlines())
    return [(int(producer), int(number)) for producer, number in pairs]


def open_journal(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


# ── the store ───────────────────────────────────────────────────────────────────────────────────────────


class DropsWritten(InMemoryObserver):
    """Records which segments the store or another core dropped."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._journal = open_journal(path)

    def event(self, name: str, *, level: int = logging.INFO, **attributes: Value) -> None:
        if name == "quiver.segment.drop":
            write_line(self._journal, (attributes["segment"], attributes["bundles"]))


def serve(place: Place, core: int) -> None:
    """Keep a store open until it is stopped; then seal the open segment, let subscribers read to the end, and close."""
    with place.open(core, observer=DropsWritten(place.journal(f"dropped-{core}"))) as store:
        ending = threading.Event()
        inside = [
            threading.Thread(target=deliver, args=(place, store.register(name, start="earliest"), ending, core))
            for name in INSIDE
        ]
        for name in SUBSCRIBERS:
            register(store, name)
        store.activate()
        for thread in inside:
            thread.daemon = True
            thread.start()
        takers = listen(place, store, core)
        for thread in takers:
            thread.join()
        seal(store)
        ending.set()
        for thread in inside:
            thread.join()


def listen(place: Place, store: Any, core: int) -> list[threading.Thread]:
    """Take connections until the server is to stop; return the threads that take bundles."""
    with contextlib.suppress(FileNotFoundError):
        Path(place.socket(core)).unlink()
    takers = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(place.socket(core))
        listener.listen(16)
        listener.settimeout(0.05)
        while not place.board.server_stops:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            takers.append(threading.Thread(target=take, args=(store, connection), daemon=True))
            takers[-1].start()
    return takers


def take(store: Any, connection: socket.socket) -> None:
    with contextlib.suppress(ConnectionError), connection:
        while data := connection.recv(_ID.size, socket.MSG_WAITALL):
            if len(data) < _ID.size:
                return
            producer, number = _ID.unpack(data)
            try:
                store.ingest(made(producer, number), durable=number % 50 == 0, timeout=0.2)
            except CapacityError:
                connection.sendall(_FULL)
            except QuiverError:
                die()
            else:
                connection.sendall(_ACCEPTED)


def deliver(place: Place, subscriber: Any, ending: threading.Event, core: int) -> None:
    """Record each bundle and acknowledge or sometimes defer it, until none is left after the end."""
    try:
        journal = open_journal(place.journal(f"{subscriber.id}-{core}"))
        chance = random.Random()
        while True:
            is_last_look = ending.is_set()
            handle = subscriber.next_bundle(timeout=0.1)
            if handle is None:
                if is_last_look:
                    return
                continue
            if chance.random() < 0.01:
                handle.nack(0.01)
                continue
            with contextlib.suppress(BundleUnavailableError):  # dropped while it was claimed
                write_line(journal, name_of(handle.bundle[30]))
                pause(INSIDE[subscriber.id] * place.pace)
                handle.ack()
    except BaseException:
        die()


def seal(store: Any) -> None:
    while True:
        try:
            store.seal()
        except CapacityError:
            pause(0.02)
        else:
            return


def register(store: Any, name: str) -> None:
    while True:
        try:
            store.register(name, start="earliest")
        except DirectoryInUseError:
            pause(0.01)  # its own process is creating the file
        else:
            return


def die() -> None:
    with Path(SAID[0]).open("a") as file:
        file.write(traceback.format_exc())
    os._exit(1)


# ── producers ───────────────────────────────────────────────────────────────────────────────────────────


def produce(place: Place, producer: int) -> None:
    """Send bundles in order and record which were accepted. A number that was sent is never reused."""
    journal = open_journal(place.journal(f"producer-{producer}"))
    core = producer
    while not place.board.producers_stop:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(30)
            connection.connect(place.socket(core % len(place.directories)))
            _send_some(place, producer, connection, journal)
        core += 1
        pause(0.02)


def _send_some(place: Place, producer: int, connection: socket.socket, journal: int) -> None:
    for _ in range(TURN):
        if place.board.producers_stop:
            return
        number = place.board.use_next(producer)
        answer = _FULL
        while answer == _FULL and not place.board.producers_stop:
            connection.sendall(_ID.pack(producer, number))
            answer = connection.recv(1)
            if answer == _FULL:
                pause(0.02)
        if answer == b"":
            return  # unknown whether it was accepted: neither is assumed
        if answer == _ACCEPTED:
            write_line(journal, (producer, number))
        pause(0.001)


# ── subscribers ─────────────────────────────────────────────────────────────────────────────────────────


def subscribe(place: Place, name: str, core: int, *, may_lose: bool) -> None:
    """
    Read the segments next to the store as a streaming query does, record each bundle, acknowledge, continue.

    A line is written before the acknowledgement: after a kill a bundle may be in the journal twice, but not missing.
    """
    journal = open_journal(place.journal(f"{name}-{core}"))
    subscriber = _subscriber(place.directories[core], name, may_lose=may_lose)
    start = subscriber.initial()
    while True:
        # Acknowledges what was read before, and returns what is available.
        end = subscriber.latest(start, unlimited=False)
        if end == start:
            if place.board.subscribers_stop:
                subscriber.release()
                return
            pause(0.02)
            continue
        for spans in subscriber.plan(start, end):
            for span in spans:
                reader = open_checked(span.path, fail_on_data_loss=not may_lose)
                for index in range(span.start, span.stop) if reader is not None else ():
                    write_line(journal, name_of(reader.bundle(index)[30]))
                    pause(SUBSCRIBERS[name] * place.pace)
        start = end


def _subscriber(directory: Path, name: str, *, may_lose: bool) -> StreamSubscriber:
    options = parse_options(
        {
            "path": str(directory),
            "mode": "bundles",
            "subscriber": name,
            "maxBundlesPerTrigger": "40",
            "failOnDataLoss": "false" if may_lose else "true",
        }
    )
    segments = SegmentList(REAL_FILES, options.path, slots=None, fail_on_data_loss=not may_lose)
    return StreamSubscriber(REAL_FILES, options, segments, parallelism=1)


# ── forking ─────────────────────────────────────────────────────────────────────────────────────────────


def until_there(directory: Path, work: Callable[[], None]) -> None:
    """Wait for the store's directory, and for a process that is exiting with its lock."""
    while True:
        if (directory / "segments").is_dir() and (directory / "quiver.id").is_file():
            try:
                work()
            except DirectoryInUseError:
                pass
            else:
                return
        pause(0.02)


def forked(work: Callable[[], None], log: Path) -> int:
    """Run *work* in a process that dies with this one, and return its id; its output is written to *log*."""
    child = os.fork()
    if child:
        return child
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    SAID[:] = [str(log)]
    status = 1
    try:
        logging.disable(logging.CRITICAL)
        work()
        status = 0
    except BaseException:
        with log.open("a") as file:
            file.write(traceback.format_exc())
    finally:
        os._exit(status)
