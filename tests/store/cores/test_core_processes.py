"""
A process for each core, on real files: the five goals of sharing one cap, while the others run, stop, or are
killed.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from core_processes import CAP_BYTES, SEGMENT_BYTES, core_processes, disk_bytes, put, segments, take_all

import quiver
from quiver.store.cores.store import MultiCoreStore

OVERSHOOT_BYTES = SEGMENT_BYTES + SEGMENT_BYTES // 2
"""What one core may have above the cap for a moment: a segment, with what its format adds."""


def core_figures(store: MultiCoreStore) -> dict[str, int]:
    return next(iter(store.stats()["cores"].values()))


@pytest.mark.parametrize("how", ["runs", "is stopped", "is killed"])
def test_the_others_free_what_a_core_has_finished(tmp_path: Path, how: str) -> None:
    """
    Evicting depends on no core: one that is stopped or killed hinders nobody, and finds all in order afterwards. The
    hot one gets far more than its even part, and more than the cap would leave beside what the other had.
    """
    with core_processes(tmp_path, 2) as (idle, hot):
        assert idle.ask(put, 0, 80) == 80
        assert idle.ask(take_all) == 80
        before = segments(tmp_path, 0)
        assert len(before) > 7
        if how == "is stopped":
            idle.signal(signal.SIGSTOP)
        elif how == "is killed":
            idle.kill()
        count = 0
        left = before
        # Until it has them, however long the machine takes: its owner may be at work in its directory just now.
        while len(left) >= 4 or hot.ask(core_figures)["cap_fraction"] <= 0.75:
            count += hot.ask(put, 1_000 + count, 10_000, 0.5)
            left = segments(tmp_path, 0)
            if how == "is stopped" and left == before:
                # It was stopped in the middle of deleting, with the lock in its hands: let it stop elsewhere.
                idle.signal(signal.SIGCONT)
                idle.ask(core_figures)
                idle.signal(signal.SIGSTOP)
        assert left == before[-len(left) :]
        figures = hot.ask(core_figures)
        assert figures["evicted_elsewhere"] == len(before) - len(left)
        assert figures["dropped_elsewhere"] == 0
        assert disk_bytes(tmp_path) <= CAP_BYTES + 2 * OVERSHOOT_BYTES
        assert hot.ask(take_all) == count
        if how == "is killed":
            with quiver.open(tmp_path, cores=2, core=0, background=False) as again:
                assert len(segments(tmp_path, 0)) == again.stats()["segments"]
                assert put(again, 500, 1) == take_all(again) == 1
            return
        idle.signal(signal.SIGCONT)
        assert idle.ask(put, 500, 5) == idle.ask(take_all) == 5
        assert idle.ask(core_figures)["segments"] == len(segments(tmp_path, 0))


def write_and_take(store: MultiCoreStore, first: int, count: int) -> int:
    """Ingest and acknowledge by turns; how many came out."""
    taken = 0
    subscriber = store.register("one", start="earliest")
    for number in range(first, first + count, 20):
        done = 0
        while done < 20:
            done += put(store, number + done, 20 - done, timeout=5)
            while (handle := subscriber.next_bundle(timeout=0)) is not None:
                handle.ack()
                taken += 1
    return taken + take_all(store)


def test_all_cores_at_work_stay_below_the_cap(tmp_path: Path) -> None:
    """Each writes several caps of data: disk use is never above the cap by more than a segment for each core."""
    with core_processes(tmp_path, 3) as processes:
        for number, process in enumerate(processes):
            process.start(write_and_take, number * 10_000, 240)
        most = 0
        for process in processes:
            while process.is_busy():
                most = max(most, disk_bytes(tmp_path))
        assert [process.answer() for process in processes] == [240] * 3
        # 240 bundles are more than a cap, so the cap was felt.
        assert CAP_BYTES // 2 < most <= CAP_BYTES + 3 * OVERSHOOT_BYTES
        for process in processes:
            process.close()


def test_a_core_that_comes_late_gets_its_part_with_drop_oldest(tmp_path: Path) -> None:
    """Nobody acknowledges anything. Who has all gives up its oldest for the other, though it is stopped; it is told."""
    with core_processes(tmp_path, 2, size_cap_policy="drop_oldest") as (first, second):
        assert first.ask(put, 0, 150) == 150
        first.signal(signal.SIGSTOP)
        before = segments(tmp_path, 0)
        assert second.ask(put, 1_000, 50) == 50
        assert second.ask(core_figures)["dropped_elsewhere"] > 5
        assert disk_bytes(tmp_path) <= CAP_BYTES + 2 * OVERSHOOT_BYTES
        left = segments(tmp_path, 0)
        assert left == before[-len(left) :]
        first.signal(signal.SIGCONT)
        assert 0 < first.ask(take_all) < 150
        assert first.ask(core_figures)["subscribers"]["one"]["pending_bundles"] == 0
        assert second.ask(take_all) == 50
