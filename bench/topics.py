"""
Topics beside a bare framed log, NATS JetStream and Redis streams, all in the same run.

Appends of 128 B, 1 KiB and 64 KiB, one by one and in batches of 100, synced by interval (Redis: each second) and behind
each call; reading back, following the tail; 200 topics at once beside one; and the document's other figures, each once
(`figures/topics.py`). Rivals that are not on this machine are left out and said to be.

    .venv/bin/python bench/topics.py [--rounds N] [--quick] [--only append] [--write docs/benchmarks.md]
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter

from figures.goal import Figure, Goal, Run, percentile
from figures.topics import figure_goals
from goals import measure
from quiver.topics import TopicStore
from report import BenchParser, Report, machine
from rivals.brokers import BareTopic, NatsStream, RedisStream

OURS, BARE, NATS, REDIS = "Quiver topic", "bare framed log", "NATS JetStream", "Redis stream"
SIZES = {"128 B": 128, "1 KiB": 1024, "64 KiB": 65536}
BATCH = 100
TOPICS = 200


class OurTopic:
    """A topic with the document's settings, synced by interval or behind each call."""

    def __init__(self, directory: Path, *, sync_each: bool) -> None:
        self.store = TopicStore.open(directory / "topics")
        self.log = self.store.topic("default/orders")
        # What a program calls, without a call of ours around it: the bare log has none either.
        self.append = partial(self.log.append, durable=True) if sync_each else self.log.append
        self.append_batch = partial(self.log.append_batch, durable=True) if sync_each else self.log.append_batch

    def close(self) -> None:
        self.store.close()


def rivals() -> dict[str, Callable[..., object]]:
    servers = {NATS: NatsStream, REDIS: RedisStream}
    return {OURS: OurTopic, BARE: BareTopic} | {name: kind for name, kind in servers.items() if kind.available()}


def timed(call: Callable[[], object], count: int, messages: int) -> dict[str, float]:
    """Time *count* calls of *messages* each, one by one."""
    took = []
    for _ in range(count // 10 + 1):  # a running topic, not one in its first moment
        call()
    started = perf_counter()
    for _ in range(count):
        before = perf_counter()
        call()
        took.append(perf_counter() - before)
    seconds = perf_counter() - started
    return {
        "rate": count * messages / seconds,
        "p50": percentile(took, 0.5) * 1e6,
        "p99": percentile(took, 0.99) * 1e6,
    }


def appending(make: Callable[..., object], payload: bytes, batch: int, count: int, *, sync_each: bool) -> Run:
    def run(directory: Path) -> dict[str, float]:
        topic = make(directory, sync_each=sync_each)
        payloads = [payload] * batch
        try:
            if batch == 1:
                return timed(lambda: topic.append(payload), count, 1)
            return timed(lambda: topic.append_batch(payloads), count, batch)
        finally:
            topic.close()

    return run


def append_goals(scale: int) -> Iterator[Goal]:
    for words, size in SIZES.items():
        payload = os.urandom(size)
        for batch in (1, BATCH):
            for sync_each in (False, True):
                slow = sync_each or size > 1024
                count = max(20, (2_000 if slow else 100_000) // batch // scale)
                contenders = {
                    name: appending(make, payload, batch, servers_count(name, count), sync_each=sync_each)
                    for name, make in rivals().items()
                }
                aims = aims_of(size, batch, sync_each=sync_each)
                figures = (
                    Figure("rate", "messages/s", aims[0]),
                    Figure("p50", "p50 of a call, µs", lower_is_better=True, style=",.1f"),
                    Figure("p99", "p99 of a call, µs", aims[1], lower_is_better=True, style=",.1f"),
                )
                how = "synced each call" if sync_each else "synced by interval"
                what = f"{words}, {'one by one' if batch == 1 else f'batches of {batch}'}, {how}"
                yield Goal("append", what, contenders, figures, BARE, OURS)


def servers_count(name: str, count: int) -> int:
    """A call to a server takes a hundred times as long: fewer of them tell as much."""
    return count if name in {OURS, BARE} else max(20, count // 20)


def aims_of(size: int, batch: int, *, sync_each: bool) -> tuple[str, str]:
    if batch == 1 and not sync_each and size <= 1024:
        return "≥ 100,000, ≥ 0.7 of the bare log", "< 200"
    if batch == BATCH and sync_each:
        return "≥ 0.7 of the bare log, 10 × NATS, 4 × Redis", ""
    return "≥ 0.7 of the bare log", ""


def read_goal(scale: int) -> Goal:
    count = 100_000 // scale
    payload = os.urandom(1024)

    def ours(directory: Path) -> dict[str, float]:
        topic = OurTopic(directory, sync_each=False)
        try:
            fill(topic, payload, count)
            started = perf_counter()
            found = sum(1 for _ in topic.log.reader(0, follow=False))
            return {"read": found / (perf_counter() - started)}
        finally:
            topic.close()

    def bare(directory: Path) -> dict[str, float]:
        topic = BareTopic(directory, sync_each=False)
        try:
            fill(topic, payload, count)
            started = perf_counter()
            found = topic.read()
            return {"read": found / (perf_counter() - started)}
        finally:
            topic.close()

    return Goal("read", "1 KiB, from the files", {OURS: ours, BARE: bare}, (Figure("read", "messages/s"),), BARE, OURS)


def fill(topic: OurTopic | BareTopic, payload: bytes, count: int) -> None:
    for _ in range(count // BATCH):
        topic.append_batch([payload] * BATCH)


def tail_goal(scale: int) -> Goal:
    count = 50_000 // scale
    payload = os.urandom(128)

    def run(readers: int) -> Run:
        def follow(directory: Path) -> dict[str, float]:
            topic = OurTopic(directory, sync_each=False)

            def read() -> None:
                with topic.log.reader(0, stop=count) as reader:
                    for _ in reader:
                        pass

            threads = [threading.Thread(target=read) for _ in range(readers)]
            try:
                for thread in threads:
                    thread.start()
                started = perf_counter()
                for _ in range(count):
                    topic.append(payload)
                for thread in threads:
                    thread.join()
                return {"tail": count / (perf_counter() - started)}
            finally:
                topic.close()

        return follow

    contenders = {"no follower": run(0), "one follower": run(1), "four followers": run(4)}
    figure = Figure("tail", "messages/s through all of them")
    return Goal("tail", "128 B, one by one", contenders, (figure,), "no follower", "one follower")


def topics_goal(scale: int) -> Goal:
    count = 100_000 // scale
    payload = os.urandom(128)

    def run(topics: int) -> Run:
        def spread(directory: Path) -> dict[str, float]:
            with TopicStore.open(directory / "topics") as store:
                appends = [store.topic(f"default/t{number}").append for number in range(topics)]
                started = perf_counter()
                for turn in range(count):
                    appends[turn % topics](payload)
                return {"total": count / (perf_counter() - started)}

        return spread

    contenders = {f"{TOPICS} topics": run(TOPICS), "one topic": run(1)}
    figure = Figure("total", "messages/s of all topics", "≥ 0.5 of one topic")
    return Goal("topics", "128 B, one by one", contenders, (figure,), "one topic", f"{TOPICS} topics")


def main() -> None:
    parser = BenchParser(__doc__)
    keys = ["append", "read", "tail", "topics", "cold", "cache", "recovery", "creation"]
    parser.add_argument("--only", nargs="*", choices=keys, help="only these")
    options = parser.options()
    share = options.share
    missing = [name for name in (NATS, REDIS) if name not in rivals()]
    report = Report(
        "topics",
        f"Measured by `bench/topics.py` ({machine()}; {options.rounds} rounds). The ratio is to the row with 1.00 in "
        "the same round, and more is better also where the figure is a time. Servers pay a loopback connection and a "
        "Python client, as their users do." + (f" Not on this machine: {', '.join(missing)}." if missing else ""),
        "what", "setting", "contender", "median", "ratio", "lowest to highest", "own swing", "aim",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="bench-topics-", dir=Path.cwd()) as scratch:
        every = (*append_goals(share), read_goal(share), tail_goal(share), topics_goal(share), *figure_goals(share))
        for goal in every:
            if options.only and goal.key not in options.only:
                continue
            measure(goal, report, options.rounds, Path(scratch))
    report.finish(options.write)


if __name__ == "__main__":
    main()
