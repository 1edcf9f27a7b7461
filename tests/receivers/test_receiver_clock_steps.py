"""A wall clock that is set back or forward: repeated requests are recognized for the configured time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_store import log_request
from qwp_clients import HERE, message, values_of

import quiver
from quiver.observe import InMemoryObserver
from quiver.receivers import request_window
from quiver.receivers.intake import OtlpIntake
from quiver.receivers.qwp.intake import QwpIntake
from quiver.receivers.request_window import RequestWindow
from quiver.receivers.settings import OtlpSettings
from quiver.testing.clock import ManualClock

DAYS_S = 2 * 86_400
STEPS_S = pytest.mark.parametrize("step_s", [-DAYS_S, DAYS_S])
SETTINGS = OtlpSettings(dedupe_window_s=600)
DIGEST = b"a" * 16


@contextlib.contextmanager
def window(store: Any, directory: Path, clock: ManualClock, **how: Any) -> Iterator[RequestWindow]:
    given = {"needs_durable": True, "entries_max": 1000, "observer": InMemoryObserver(), "clock": clock, **how}
    opened = RequestWindow(store, str(directory), 600.0, **given)
    try:
        yield opened
    finally:
        opened.close()


@STEPS_S
def test_an_open_window_ends_in_time_despite_clock_steps(tmp_path: Path, step_s: int) -> None:
    """A request is known for exactly the window."""
    clock = ManualClock()
    with quiver.open(tmp_path, background=False) as store, window(store, tmp_path, clock) as known:
        known.remember(DIGEST, durable=True)
        clock.step_wall(step_s)
        clock.advance(599)
        assert known.knows(DIGEST)
        clock.advance(2)
        assert not known.knows(DIGEST)


@STEPS_S
def test_the_window_survives_a_restart_despite_clock_steps(tmp_path: Path, step_s: int) -> None:
    """Processes of one boot agree on the time, regardless of the wall clock."""
    clock = ManualClock()
    with quiver.open(tmp_path, background=False) as store:
        with window(store, tmp_path, clock) as known:
            known.remember(DIGEST, durable=True)
        clock.step_wall(step_s)
        clock.advance(599)
        with window(store, tmp_path, clock) as known:
            assert known.knows(DIGEST)
            clock.advance(2)
            assert not known.knows(DIGEST)


@STEPS_S
def test_cores_share_the_window_despite_clock_steps(tmp_path: Path, step_s: int) -> None:
    """A core that starts after the step shares its window with the others."""
    clock = ManualClock()
    with quiver.open(tmp_path, cores=2) as store, window(store.core(0), tmp_path, clock) as first:
        first.remember(DIGEST, durable=True)
        clock.step_wall(step_s)
        with window(store.core(1), tmp_path, clock) as second:
            assert not second.begin(DIGEST)
            second.remember(b"b" * 16, durable=True)
            assert not first.begin(b"b" * 16)


def test_after_a_boot_with_a_step_back_requests_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests from the future are known for one more window, and do not fill the file for days."""
    clock = ManualClock()
    with quiver.open(tmp_path, background=False) as store:
        monkeypatch.setattr(request_window, "boot_name", lambda _: "one")
        with window(store, tmp_path, clock) as known:
            known.remember(DIGEST, durable=True)
        clock.step_wall(-DAYS_S)
        monkeypatch.setattr(request_window, "boot_name", lambda _: "two")
        with window(store, tmp_path, clock) as known:
            assert known.knows(DIGEST)
            clock.advance(601)
            assert not known.knows(DIGEST)
            assert known.begin(DIGEST)
            known.finish(DIGEST, stored=False)
            assert len(known) == 0


@pytest.mark.parametrize(("step_s", "boot"), [(-DAYS_S, "one"), (DAYS_S, "one"), (-DAYS_S, "two"), (-DAYS_S, None)])
def test_unsettled_claims_of_a_crashed_process_are_found_despite_clock_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: int, boot: str | None
) -> None:
    """Its data are found with times from before the step and from after it."""
    clock = ManualClock()
    stored = [log_request("before"), log_request("after")]
    monkeypatch.setattr(request_window, "boot_name", lambda _: boot and "one")
    with quiver.open(tmp_path, clock=clock, background=False) as store:
        intake = OtlpIntake(store, SETTINGS, clock=clock)
        intake.window.finish = lambda *_, **__: None  # type: ignore[method-assign, union-attr]  # it dies before
        assert intake.accept("logs", stored[0]).outcome == "stored"
        clock.step_wall(step_s)
        clock.advance(1)
        assert intake.accept("logs", stored[1]).outcome == "stored"
        intake.window.close()  # type: ignore[union-attr]
        monkeypatch.setattr(request_window, "boot_name", lambda _: boot)
        again = OtlpIntake(store, SETTINGS, clock=clock)
        assert [again.accept("logs", data).outcome for data in stored] == ["duplicate"] * 2
        again.window.close()  # type: ignore[union-attr]


@STEPS_S
def test_rows_resent_by_a_qwp_client_are_recognized_despite_clock_steps(tmp_path: Path, step_s: int) -> None:
    """Tables of a closed connection are known for exactly the window."""
    clock = ManualClock()
    settings = replace(HERE, dedupe_window_s=600)
    with quiver.open(tmp_path, background=False) as store:
        for within, expected in ((True, 1), (False, 3)):
            with contextlib.closing(QwpIntake(store, settings, clock=clock)) as intake:
                one = intake.open()
                one.take([message(int(within))])
                one.silence()
                one.close()
                clock.step_wall(step_s)
                clock.advance(599 if within else 601)
                intake.open().take([message(int(within))])
            assert len(values_of(store)) == expected
