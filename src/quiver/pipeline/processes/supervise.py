"""
Supervise child processes: start them, restart them with backoff, stop them in order, never orphan them.

Each child runs in its own process group and holds one end of a pipe as standard input (see `parent_watchdog`). When a
child dies, the rest of its group is killed before it is restarted. This prevents two Spark drivers on one checkpoint
while the JVM of the old one is still exiting. Their logs are rotated (`log_files`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.pipeline.processes.log_files import LOG_BYTES_MAX, keep_short
from quiver.pipeline.processes.parent_watchdog import EXIT_WRONG_USE
from quiver.primitives.backoff import Backoff
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.freed_memory import keeping_freed_memory

__all__ = ["Child", "ChildSpec", "Supervisor"]


LAST_LINE_BYTES_MAX = 4096
LOOK_AT_LOGS_S = 10.0

CLOSE_S = 20.0
"""The time limit for children to close their ports and seal; after it the first stage is stopped anyway."""

LOOK_S = 0.05

TICK_S = 0.5

_LOG_PREFIX = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ [A-Z]+ +[\w.]+ ")
"""The prefix of our log lines: time, level, logger."""

_log = logging.getLogger("quiver.pipeline")


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """
    The specification of a child process.

    Attributes:
        name: the name in messages and in the state file.
        argv: the command.
        log_path: the file to which standard output and error are appended.
        stop_timeout_s: the time limit to stop before the child is killed.
        stage: children of one stage are stopped together, after all earlier stages.
        has_closed: returns for its pid, after SIGUSR1 has announced the stop, whether the child accepts no more data;
        no
            stage is stopped until all children have closed. None: the child gets no SIGUSR1.
    """

    name: str
    argv: Sequence[str]
    log_path: Path
    stop_timeout_s: float = 15.0
    stage: int = 0
    has_closed: Callable[[int], bool] | None = None


@dataclass(slots=True)
class Child:
    """The current state of a child. `state` is starting, running, waiting (for a restart), failed or stopped."""

    spec: ChildSpec
    delays: Iterator[float]
    state: str = "starting"
    starts: int = 0
    last_exit: str = ""
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    restart_at: float | None = field(default=None)
    kill_at: float | None = field(default=None)
    """The deadline for its stop, after it was asked to stop for a restart or because it was removed."""
    is_wanted: bool = True

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self.process.pid if self.process is not None and self.state == "running" else None


@dataclass(frozen=True, slots=True)
class _Exited:
    child: Child
    process: subprocess.Popen[bytes]
    code: int


class Supervisor:
    """
    Runs the children until it is asked to stop, or until a child reports that a restart cannot help.

    Args:
        specs: the children, started in this order and stopped in the order of their stages.
        on_change: called from `run` whenever the state of a child changed.
        backoff: the restart delays of each child.
        random: the source of their jitter.
        healthy_s: a child that ran this long restarts with the initial delay.
        on_reload: called from `run` after `request_reload`; may call `send_signal`, `renew` and `change`.
        on_tick: called from `run` every *tick_s* seconds, also while it waits for children to stop.
        log_bytes_max: a longer log is rotated.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        on_change: Callable[[Supervisor, str], None],
        backoff: Backoff,
        random: Random,
        healthy_s: float = 5.0,
        clock: Clock = SYSTEM_CLOCK,
        on_reload: Callable[[Supervisor], None] | None = None,
        log_bytes_max: int = LOG_BYTES_MAX,
        on_tick: Callable[[Supervisor], None] | None = None,
        tick_s: float = TICK_S,
    ) -> None:
        self.children = [Child(spec, backoff.delays(random)) for spec in specs]
        self.state = "starting"
        self._on_change = on_change
        self._on_reload = on_reload
        self._backoff = backoff
        self._random = random
        self._healthy_s = healthy_s
        self._clock = clock
        self._log_bytes_max = log_bytes_max
        self._on_tick = on_tick
        self._tick_s = tick_s
        self._tick_at = clock.monotonic()
        self._look_at_logs_at = clock.monotonic() + LOOK_AT_LOGS_S
        # Filled from threads and from signal handlers; a SimpleQueue allows both.
        self._events: queue.SimpleQueue[_Exited | str] = queue.SimpleQueue()

    def request_stop(self) -> None:
        """Ask `run` to stop all children and return; a second call kills them. Safe in a signal handler."""
        self._events.put("stop")

    def request_reload(self) -> None:
        """Ask `run` to call `on_reload`. Safe in a signal handler."""
        self._events.put("reload")

    # ── for on_reload ────────────────────────────────────────────────────────────────────────────────

    def send_signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a child if it is running."""
        for child in self.children:
            if child.spec.name == name and child.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    child.process.send_signal(number)

    def renew(self, name: str) -> None:
        """Let a child stop gracefully and restart it. A child that waits for its restart is started now."""
        for child in self.children:
            if child.spec.name == name:
                self._ask_to_stop(child)
                if child.process is None:
                    child.restart_at = self._clock.monotonic()

    def change(self, specs: Sequence[ChildSpec]) -> None:
        """
        Start new children of *specs*, and stop the children that are not in *specs*. A child that is added again before
        it has stopped is restarted afterwards.
        """
        names = {spec.name for spec in specs}
        for child in list(self.children):
            if child.spec.name not in names and child.is_wanted:
                child.is_wanted = False
                child.restart_at = None
                self._ask_to_stop(child)
                if child.process is None:
                    self._stop_was_requested(child)
        known = {child.spec.name: child for child in self.children}
        for spec in specs:
            found = known.get(spec.name)
            if found is None:
                found = Child(spec, self._backoff.delays(self._random))
                self.children.append(found)
                self._start_again(found)
            elif not found.is_wanted:
                found.spec, found.is_wanted = spec, True

    def _ask_to_stop(self, child: Child) -> None:
        if child.process is not None:
            child.kill_at = self._clock.monotonic() + child.spec.stop_timeout_s
            with contextlib.suppress(ProcessLookupError):
                child.process.send_signal(signal.SIGTERM)

    # ── the loop ─────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> int:
        """
        Start all children and keep them running. Return 0 after `request_stop`, 1 if a child could not be kept running.

        On return, no child and no process of its group is left.
        """
        try:
            for child in self.children:
                self._start(child)
            self._set_state("running", "")
            failed = self._keep()
            self._set_state("stopping", "")
            self._stop_in_order()
        finally:
            for child in self.children:
                self._kill(child)
        self._set_state("failed" if failed else "stopped", "")
        return 1 if failed else 0

    def _keep(self) -> bool:
        """Restart children that die; return False when asked to stop, True when a restart cannot help a child."""
        while True:
            times = [time for child in self.children for time in (child.restart_at, child.kill_at)]
            due = [time for time in times if time is not None]
            event = self._next(min([*due, self._look_at_logs_at]) - self._clock.monotonic())
            if isinstance(event, _Exited):
                if event.child.process is not event.process:
                    continue
                if event.code == EXIT_WRONG_USE:
                    self._note_stopped(event)
                    event.child.state = "failed"
                    last = _last_line(event.child.spec.log_path)
                    self._set_state(self.state, f"{event.child.spec.name} cannot run: {last}")
                    return True
                self._bury(event)
            elif event == "stop":
                return False
            elif event == "reload" and self._on_reload is not None:
                self._on_reload(self)
            now = self._clock.monotonic()
            for child in self.children:
                if child.kill_at is not None and child.kill_at <= now and child.process is not None:
                    child.kill_at = None
                    self._set_state(
                        self.state, f"{child.spec.name} did not stop in {child.spec.stop_timeout_s:g} s: killed"
                    )
                    _kill_group(child.process.pid)
                if child.restart_at is not None and child.restart_at <= self._clock.monotonic():
                    self._start_again(child)

    def _look_at_logs(self) -> None:
        now = self._clock.monotonic()
        if now < self._look_at_logs_at:
            return
        self._look_at_logs_at = now + LOOK_AT_LOGS_S
        self._tick(is_due=True)  # a rotation moves lines away
        for child in self.children:
            try:
                keep_short(REAL_FILES, str(child.spec.log_path), bytes_max=self._log_bytes_max)
            except OSError as error:
                # The disk is full: rotation is retried later, and the child is not affected.
                _log.warning("%s grows: %s", child.spec.log_path, error)

    def _next(self, timeout: float) -> _Exited | str:
        if self._on_tick is not None:
            timeout = min(timeout, self._tick_at - self._clock.monotonic())
        try:
            event: _Exited | str = self._events.get(timeout=max(timeout, 0.0))
        except queue.Empty:
            event = "due"
        self._look_at_logs()
        self._tick(is_due=self._tick_at <= self._clock.monotonic())
        return event

    def _tick(self, *, is_due: bool) -> None:
        if self._on_tick is not None and is_due:
            self._tick_at = self._clock.monotonic() + self._tick_s
            self._on_tick(self)

    def _start(self, child: Child) -> None:
        child.spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        with child.spec.log_path.open("ab") as log, _reload_waits():
            process = subprocess.Popen(  # noqa: S603 - our own modules, no shell
                list(child.spec.argv),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=keeping_freed_memory(os.environ),
            )
        child.process = process
        child.state = "running"
        child.starts += 1
        child.restart_at = None
        child.started_at = self._clock.monotonic()
        name = f"quiver-wait-{child.spec.name}"
        threading.Thread(target=self._await_exit, args=(child, process), name=name, daemon=True).start()

    def _start_again(self, child: Child) -> None:
        try:
            self._start(child)
        except OSError as error:
            # A lack of memory, descriptors or disk space is temporary, and must not stop the other children.
            delay_s = next(child.delays)
            child.restart_at = self._clock.monotonic() + delay_s
            self._set_state(self.state, f"{child.spec.name} cannot be started, retry in {delay_s:.1f} s: {error}")
        else:
            again = " again" if child.starts > 1 else ""
            self._set_state(self.state, f"{child.spec.name} started{again}, process {child.pid}")

    def _await_exit(self, child: Child, process: subprocess.Popen[bytes]) -> None:
        if hasattr(os, "waitid"):
            # The dead child is not reaped yet, so its id still names its group and no other.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            _kill_group(process.pid)
        code = process.wait()
        self._events.put(_Exited(child, process, code))

    def _bury(self, event: _Exited) -> None:
        """Record that a child has exited, and schedule its restart."""
        child = event.child
        self._close(child)
        child.state = "waiting"
        child.last_exit = _exit_words(event.code)
        lived_s = self._clock.monotonic() - child.started_at
        if child.kill_at is not None or not child.is_wanted:
            self._stop_was_requested(child)
            return
        if lived_s >= self._healthy_s:
            child.delays = self._backoff.delays(self._random)
        delay_s = next(child.delays)
        child.restart_at = self._clock.monotonic() + delay_s
        name, last = child.spec.name, _last_line(child.spec.log_path)
        message = f"{name} died ({child.last_exit}) after {lived_s:.1f} s; starts again in {delay_s:.1f} s"
        # A killed child logged no reason: the last line of its log is about something else.
        self._set_state(self.state, f"{message}: {last}" if last and event.code > 0 else message)

    def _stop_was_requested(self, child: Child) -> None:
        child.kill_at = None
        if child.is_wanted:
            child.restart_at = self._clock.monotonic()
            return
        child.state = "stopped"
        self.children.remove(child)
        self._set_state(self.state, f"{child.spec.name} is not needed any more")

    def _stop_in_order(self) -> None:
        if not self._close_all():
            return  # asked twice: `run` kills the remaining children
        for stage in sorted({child.spec.stage for child in self.children}):
            together = [child for child in self.children if child.spec.stage == stage]
            for child in together:
                child.restart_at = None
                if child.process is not None:
                    with contextlib.suppress(ProcessLookupError):
                        child.process.send_signal(signal.SIGTERM)
            begun = self._clock.monotonic()
            for child in together:
                if not self._await_stopped(child, begun + child.spec.stop_timeout_s):
                    return
                child.state = "failed" if child.state == "failed" else "stopped"
                self._set_state(self.state, f"{child.spec.name} stopped")

    def _close_all(self) -> bool:
        """Announce the stop to the children, and wait until none accepts data; return False if asked to stop again."""
        deadline = self._clock.monotonic() + CLOSE_S
        for child in self.children:
            child.restart_at = None
            if child.spec.has_closed is not None and child.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    child.process.send_signal(signal.SIGUSR1)
        return all(self._await(partial(_is_closed, child), deadline) for child in self.children)

    def _await_stopped(self, child: Child, deadline: float) -> bool:
        """Wait until *child* has stopped, and kill it at *deadline*; return False if asked to stop again."""
        if not self._await(lambda: child.process is None, deadline):
            return False
        if child.process is not None:
            self._set_state(self.state, f"{child.spec.name} did not stop in {child.spec.stop_timeout_s:g} s: killed")
            self._kill(child)
        return True

    def _await(self, is_done: Callable[[], bool], deadline: float) -> bool:
        """Wait until *is_done*, or until *deadline*; return False if asked to stop again."""
        while not is_done() and (left := deadline - self._clock.monotonic()) > 0:
            event = self._next(min(left, LOOK_S))
            if event == "stop":
                return False
            if isinstance(event, _Exited):
                self._note_stopped(event)
        return True

    def _note_stopped(self, event: _Exited) -> None:
        child = event.child
        if child.process is event.process:
            self._close(child)
            child.state = "stopped"
            child.last_exit = _exit_words(event.code)

    def _kill(self, child: Child) -> None:
        if child.process is None:
            return
        _kill_group(child.process.pid)
        child.process.wait()
        child.last_exit = _exit_words(child.process.returncode)
        child.state = "stopped"
        self._close(child)

    @staticmethod
    def _close(child: Child) -> None:
        if child.process is not None and child.process.stdin is not None:
            child.process.stdin.close()
        child.process = None

    def _set_state(self, state: str, what: str) -> None:
        self.state = state
        self._on_change(self, what)


def _is_closed(child: Child) -> bool:
    has_closed = child.spec.has_closed
    return child.process is None or has_closed is None or has_closed(child.process.pid)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _exit_words(code: int) -> str:
    if code < 0:
        return f"signal {-code}"
    return f"exit code {code}"


@contextlib.contextmanager
def _reload_waits() -> Iterator[None]:
    """Block SIGHUP while a child starts: it receives the signal once it has a handler, and would die of it before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _last_line(log_path: Path) -> str:
    """Return the last line of a child's log, which usually has the reason of its exit."""
    with contextlib.suppress(OSError), log_path.open("rb") as log:
        log.seek(max(log.seek(0, os.SEEK_END) - LAST_LINE_BYTES_MAX, 0))
        lines = log.read().decode(errors="replace").strip().splitlines()
        return _LOG_PREFIX.sub("", lines[-1].strip()) if lines else ""
    return ""
