"""
The figures that the document of topics claims and nobody had measured: cold reads, what memory serves to those who
follow, recovery, and how long making a topic or a reader takes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from figures.goal import Figure, Goal
from quiver.topics import TopicLog, TopicStore

KIB = 1024
BATCH = 100
FILE_BYTES = 16 * KIB * KIB
MADE = 50

_COLD = {
    "wal": {"rotate_max_bytes": FILE_BYTES},
    "deleter": {"retention_time_minutes": 0},
}


def fill(log: TopicLog, count: int, size: int = KIB) -> None:
    payload = os.urandom(size)
    for _ in range(count // BATCH):
        log.append_batch([payload] * BATCH)


def read_all(log: TopicLog) -> int:
    with log.reader(0, follow=False) as reader:
        return sum(1 for _ in reader)


def kept_warm(directory: Path) -> TopicStore:
    return TopicStore.open(directory / "topics", settings={"wal": _COLD["wal"]})


def kept_cold(directory: Path, compression: str) -> TopicStore:
    settings = {**_COLD, "uploader": {"compression": compression}}
    return TopicStore.open(directory / "topics", settings=settings, objects=str(directory / "cold"), background=False)


def go_cold(store: TopicStore, log: TopicLog) -> None:
    """Everything is in objects, and no file has it any more."""
    log._engine.wal.rotate()  # noqa: SLF001
    store.maintain()
    store.maintain()
    if log.stats()["start_offset"] != log.current_offset():
        raise RuntimeError("there is something left in files")


def cold_goal(scale: int) -> Goal:
    count = max(BATCH, 100_000 // scale)

    def warm(directory: Path) -> dict[str, float]:
        with kept_warm(directory) as store:
            log = store.topic("default/orders")
            fill(log, count)
            started = perf_counter()
            found = read_all(log)
            return {"read": found / (perf_counter() - started)}

    def cold(compression: str) -> Any:
        def run(directory: Path) -> dict[str, float]:
            with kept_cold(directory, compression) as store:
                log = store.topic("default/orders")
                fill(log, count)
                go_cold(store, log)
                started = perf_counter()
                found = read_all(log)
                return {"read": found / (perf_counter() - started)}

        return run

    contenders = {"from files": warm, "from objects": cold("none"), "from zstd objects": cold("zstd")}
    figure = Figure("read", "messages/s")
    return Goal("cold", "1 KiB, all of it, objects in a directory", contenders, (figure,), "from files", "from objects")


class CountingCache:
    """What a reader asks of the cache, and how many messages that served."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self.served = 0

    def take(self, offset: int, *, count_max: int) -> list[bytes]:
        found = self._cache.take(offset, count_max=count_max)
        self.served += len(found)
        return found


def cache_goal(scale: int) -> Goal:
    count = 60_000 // scale
    payload = os.urandom(128)

    def follow(pause_s: float) -> Any:
        def run(directory: Path) -> dict[str, float]:
            with TopicStore.open(directory / "topics") as store:
                log = store.topic("default/orders")
                reader = log.reader(0, stop=count)
                counting = reader._cache = CountingCache(reader._cache)  # noqa: SLF001 - nobody else has to know
                thread = threading.Thread(target=lambda: sum(1 for _ in reader))
                thread.start()
                for number in range(count):
                    log.append(payload)
                    if pause_s and not number % BATCH:
                        sleep(pause_s)
                thread.join()
                return {"hits": counting.served / count}

        return run

    contenders = {"bursts of 100 each 5 ms": follow(0.005), "appended without a pause": follow(0.0)}
    figure = Figure("hits", "share of the messages that came from memory", "> 0.95", style=".3f")
    return Goal("cache", "128 B, one by one, one follows", contenders, (figure,), *list(contenders)[::-1])


def recovery_goal(scale: int) -> Goal:
    def after(size_mib: int) -> Any:
        count = max(BATCH, size_mib * KIB // scale)

        def run(directory: Path) -> dict[str, float]:
            with TopicStore.open(directory / "topics") as store:
                fill(store.topic("default/orders"), count)
            started = perf_counter()
            with TopicStore.open(directory / "topics") as store:
                log = store.topic("default/orders")
                took = perf_counter() - started
                if log.current_offset() != count // BATCH * BATCH:
                    raise RuntimeError("messages are missing")
            return {"open": took}

        return run

    sizes = {"16 MiB in the last file": 16, "256 MiB in the last file": 256}
    contenders = {name: after(size) for name, size in sizes.items()}
    figure = Figure("open", "seconds until the topic is open", "seconds", lower_is_better=True, style=".3f")
    return Goal("recovery", "1 KiB messages", contenders, (figure,), *contenders)


def creation_goal(scale: int) -> Goal:
    count = max(10 * BATCH, 20_000 // scale)

    def first_message(log: TopicLog) -> float:
        took = []
        for at in range(0, count, max(1, count // MADE)):
            started = perf_counter()
            with log.reader(at, follow=False) as reader:
                next(iter(reader))
            took.append(perf_counter() - started)
        return sorted(took)[len(took) // 2] * 1e3

    def topic(directory: Path) -> dict[str, float]:
        with TopicStore.open(directory / "topics") as store:
            started = perf_counter()
            for number in range(MADE):
                store.topic(f"default/t{number}").append(b"x")
            return {"made": (perf_counter() - started) / MADE * 1e3}

    def warm(directory: Path) -> dict[str, float]:
        with kept_warm(directory) as store:
            log = store.topic("default/orders")
            fill(log, count)
            return {"made": first_message(log)}

    def cold(directory: Path) -> dict[str, float]:
        with kept_cold(directory, "none") as store:
            log = store.topic("default/orders")
            fill(log, count)
            go_cold(store, log)
            return {"made": first_message(log)}

    contenders = {
        "a topic, and its first append": topic,
        "a reader, and its first message, from files": warm,
        "a reader, and its first message, from objects": cold,
    }
    figure = Figure("made", "milliseconds for one", "1 to 2", lower_is_better=True, style=".3f")
    return Goal("creation", "1 KiB messages", contenders, (figure,), next(iter(contenders)), list(contenders)[1])


def figure_goals(scale: int) -> Iterator[Goal]:
    """Each of the document's figures, once."""
    yield cold_goal(scale)
    yield cache_goal(scale)
    yield recovery_goal(scale)
    yield creation_goal(scale)
