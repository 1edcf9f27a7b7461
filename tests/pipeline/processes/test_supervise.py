"""Children are started, restarted and stopped; none survives the supervisor."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from quiver.clock import SYSTEM_CLOCK
from quiver.pipeline.processes.parent_watchdog import ParentWatchdog
from quiver.pipeline.processes.supervise import ChildSpec, Supervisor
from quiver.primitives.backoff import Backoff
from waiting import wait_until

BARE = [sys.executable, "-I", "-S", "-c"]
FULL = [sys.executable, "-c"]

PATIENT = "import sys; print('up', flush=True); sys.stdin.read()"
STUBBORN = "import signal, sys; signal.signal(15, signal.SIG_IGN); print('up', flush=True); sys.stdin.read()"
ON_LIFELINE = (
    "from quiver.pipeline.processes.parent_watchdog import ParentWatchdog\n"
    "line = ParentWatchdog(deadline_s=5)\n"
    "print('up', flush=True)\n"
    "while not line.wait(60): pass\n"
    "print('down', flush=True)\n"
)


class Running:
    """A supervisor in a thread, and its messages."""

    def __init__(self, tmp_path, scripts, *, stop_timeout_s=5.0, backoff=None, stages=(), on_reload=None):
        self.said = []
        self.changed = threading.Condition()
        self.tmp_path = tmp_path
        self.stages = dict(stages)
        specs = [self.spec(name, script, stop_timeout_s) for name, script in scripts.items()]
        self.supervisor = Supervisor(
            specs,
            on_change=self.on_change,
            backoff=backoff or Backoff(first_s=0.01, cap_s=0.02),
            random=Random(1),
            on_reload=on_reload,
        )
        self.code = None
        self.thread = threading.Thread(target=self.run)

    def spec(self, name, script, stop_timeout_s=5.0):
        argv = [*(FULL if "quiver" in script else BARE), script]
        return ChildSpec(name, argv, self.tmp_path / f"{name}.log", stop_timeout_s, self.stages.get(name, ord(name[0])))

    def run(self):
        self.code = self.supervisor.run()

    def on_change(self, supervisor, what):
        with self.changed:
            self.said.append((supervisor.state, what))
            self.changed.notify_all()

    def __enter__(self):
        self.thread.start()
        self.until(lambda: any(state == "running" for state, _ in self.said))
        return self

    def __exit__(self, *_exception):
        self.supervisor.request_stop()
        self.supervisor.request_stop()
        self.thread.join()

    def until(self, true):
        deadline = SYSTEM_CLOCK.monotonic() + 20
        with self.changed:
            while not true():
                assert SYSTEM_CLOCK.monotonic() < deadline, self.said
                self.changed.wait(0.02)

    def child(self, name):
        return next(child for child in self.supervisor.children if child.spec.name == name)


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A zombie of this process has ended, too.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_child_that_dies_is_restarted_alone(tmp_path):
    """After SIGKILL it has another pid; the pid of the other child is unchanged."""
    with Running(tmp_path, {"a": PATIENT, "b": PATIENT}) as running:
        first, other = running.child("a").pid, running.child("b").pid
        os.kill(first, signal.SIGKILL)
        running.until(lambda: running.child("a").starts == 2 and running.child("a").pid is not None)

        assert running.child("a").pid != first
        assert running.child("a").last_exit == "signal 9"
        assert (running.child("b").pid, running.child("b").starts) == (other, 1)
        assert any("a died (signal 9)" in what for _, what in running.said)


def test_a_crash_loop_is_delayed_and_its_last_line_reported(tmp_path):
    """Each death is reported with the last line of the log; restarts continue."""
    script = "import sys; print('cannot listen: address in use', flush=True); sys.exit(1)"
    with Running(tmp_path, {"a": script}) as running:
        running.until(lambda: running.child("a").starts >= 3)

    assert any(what.endswith("s: cannot listen: address in use") for _, what in running.said)


def test_a_child_that_a_restart_cannot_help_ends_the_run(tmp_path):
    """
    Exit code 2 means that a restart is useless: the others are stopped, and the run fails.

    The reason is reported without the prefix of a log line.
    """
    line = "2026-11-21 22:09:24,362 ERROR   quiver.pipeline no such setting"
    script = f"import sys; print({line!r}, flush=True); sys.exit(2)"
    running = Running(tmp_path, {"a": PATIENT, "b": script})
    running.thread.start()
    running.thread.join(20)

    assert running.code == 1
    assert ("running", "b cannot run: no such setting") in running.said
    assert running.said[-1][0] == "failed"
    assert [child.state for child in running.supervisor.children] == ["stopped", "failed"]


def test_children_are_stopped_in_order(tmp_path):
    """The first has stopped before the second receives its signal."""
    with Running(tmp_path, {"a": ON_LIFELINE, "b": ON_LIFELINE}) as running:
        wait_until(lambda: all("up" in (tmp_path / f"{name}.log").read_text() for name in "ab"))
        pids = [child.pid for child in running.supervisor.children]
        running.supervisor.request_stop()
        running.thread.join(20)

        assert running.code == 0
        assert [what for _, what in running.said if what.endswith("stopped")] == ["a stopped", "b stopped"]
        assert [(tmp_path / f"{name}.log").read_text() for name in "ab"] == ["up\ndown\n"] * 2
        assert all(gone(pid) for pid in pids)


def test_no_child_is_stopped_before_all_have_closed(tmp_path):
    """All are notified of the stop, and the first stage ends when the other one accepts no more data."""
    script = (
        "from quiver.pipeline.processes.parent_watchdog import ParentWatchdog\n"
        "line = ParentWatchdog(deadline_s=5)\n"
        "print('up', flush=True)\n"
        "while not line.is_closing: line.wait(60)\n"
        "print('closed', flush=True)\n"
        "while not line.wait(60): pass\n"
        "print('down', flush=True)\n"
    )
    running = Running(tmp_path, {"a": script, "b": script})
    log = tmp_path / "b.log"
    asked = []

    def has_closed(pid):
        asked.append(pid)
        assert "down" not in (tmp_path / "a.log").read_text()
        return len(asked) > 3 and "closed" in log.read_text()

    specs = [replace(child.spec, has_closed=has_closed) for child in running.supervisor.children]
    for child, spec in zip(running.supervisor.children, specs, strict=True):
        child.spec = spec
    with running:
        wait_until(lambda: all("up" in (tmp_path / f"{name}.log").read_text() for name in "ab"))
        running.supervisor.request_stop()
        running.thread.join(20)

    assert running.code == 0
    assert asked
    assert [(tmp_path / f"{name}.log").read_text() for name in "ab"] == ["up\nclosed\ndown\n"] * 2


def test_a_child_that_does_not_stop_is_killed(tmp_path):
    """After its deadline, by SIGKILL; the run still ends successfully."""
    with Running(tmp_path, {"a": STUBBORN}, stop_timeout_s=0.1) as running:
        wait_until(lambda: "up" in (tmp_path / "a.log").read_text())
        pid = running.child("a").pid
        running.supervisor.request_stop()
        running.thread.join(20)

        assert gone(pid)
        assert running.child("a").last_exit == "signal 9"
        assert any("did not stop in 0.1 s: killed" in what for _, what in running.said)


def test_a_second_stop_request_kills_immediately(tmp_path):
    """Without waiting for any child."""
    with Running(tmp_path, {"a": STUBBORN, "b": STUBBORN}, stop_timeout_s=60) as running:
        wait_until(lambda: all("up" in (tmp_path / f"{name}.log").read_text() for name in "ab"))
        pids = [child.pid for child in running.supervisor.children]
        running.supervisor.request_stop()
        running.supervisor.request_stop()
        running.thread.join(20)

        assert not running.thread.is_alive()
        assert all(gone(pid) for pid in pids)


def test_descendants_of_a_dead_child_are_killed_before_a_restart(tmp_path):
    """The grandchild (Spark's JVM in practice) is killed with its parent, for any cause of death."""
    note = tmp_path / "grandchild"
    script = (
        "import subprocess, sys\n"
        f"p = subprocess.Popen([{sys.executable!r}, '-I', '-S', '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(note)!r}, 'a').write(f'{{p.pid}}\\n')\n"
        "sys.stdin.read()\n"
    )
    with Running(tmp_path, {"a": script}) as running:
        wait_until(lambda: note.exists() and note.read_text().endswith("\n"))
        grandchild = int(note.read_text())
        os.kill(running.child("a").pid, signal.SIGKILL)
        running.until(lambda: running.child("a").starts == 2)

        wait_until(lambda: gone(grandchild))


def test_children_end_with_a_killed_supervisor(tmp_path):
    """After SIGKILL to the supervisor, the kernel closes the pipe, and the child stops by itself."""
    script = (
        "import sys\nfrom pathlib import Path\nfrom random import Random\n"
        "from quiver.pipeline.processes.supervise import ChildSpec, Supervisor\n"
        "from quiver.primitives.backoff import Backoff\n"
        f"spec = ChildSpec('a', [sys.executable, '-c', {ON_LIFELINE!r}], Path({str(tmp_path / 'a.log')!r}))\n"
        "s = Supervisor([spec], on_change=lambda s, w: print(s.children[0].pid, flush=True), backoff=Backoff(), "
        "random=Random(1))\n"
        "s.run()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as supervisor:
        pid = int(supervisor.stdout.readline())
        wait_until(lambda: (tmp_path / "a.log").exists() and "up" in (tmp_path / "a.log").read_text())
        assert not gone(pid)
        supervisor.kill()

    wait_until(lambda: gone(pid))
    assert (tmp_path / "a.log").read_text() == "up\ndown\n"


def test_children_of_one_stage_are_stopped_together(tmp_path):
    """They do not wait for each other; the next stage waits for all of them."""
    note = tmp_path / "order"
    script = (
        "from quiver.pipeline.processes.parent_watchdog import ParentWatchdog\n"
        "line = ParentWatchdog(deadline_s=5)\n"
        "print('up', flush=True)\n"
        "while not line.wait(60): pass\n"
        f"note = open({str(note)!r}, 'a'); note.write('NAME\\n'); note.flush()\n"
        "BEHIND\n"
    )
    # The first of the stage ends only when the second has received the signal.
    wait = f"import time\nwhile 'b' not in open({str(note)!r}).read(): time.sleep(0.01)"
    scripts = {
        "a": script.replace("NAME", "a").replace("BEHIND", wait),
        "b": script.replace("NAME", "b").replace("BEHIND", ""),
        "c": script.replace("NAME", "c").replace("BEHIND", ""),
    }
    with Running(tmp_path, scripts, stages={"a": 0, "b": 0, "c": 1}) as running:
        wait_until(lambda: all("up" in (tmp_path / f"{name}.log").read_text() for name in "abc"))
        running.supervisor.request_stop()
        running.thread.join(20)

        assert running.code == 0
        assert sorted(note.read_text().split()[:2]) == ["a", "b"]
        assert note.read_text().split()[2] == "c"


def test_a_child_is_restarted_on_request_alone(tmp_path):
    """It stops in order, and has another pid afterwards, without the delay after a crash."""
    renew = lambda supervisor: supervisor.renew("a")
    with Running(tmp_path, {"a": ON_LIFELINE, "b": PATIENT}, on_reload=renew) as running:
        wait_until(lambda: "up" in (tmp_path / "a.log").read_text())
        first, other = running.child("a").pid, running.child("b").pid
        running.supervisor.request_reload()
        running.until(lambda: running.child("a").starts == 2 and running.child("a").pid is not None)

        assert running.child("a").pid != first
        assert (tmp_path / "a.log").read_text().startswith("up\ndown\n")
        assert (running.child("b").pid, running.child("b").starts) == (other, 1)
        assert not any("died" in what for _, what in running.said)


def test_a_child_that_does_not_stop_for_a_restart_is_killed(tmp_path):
    """After its deadline; then it is started again."""
    renew = lambda supervisor: supervisor.renew("a")
    with Running(tmp_path, {"a": STUBBORN}, stop_timeout_s=0.1, on_reload=renew) as running:
        wait_until(lambda: "up" in (tmp_path / "a.log").read_text())
        running.supervisor.request_reload()
        running.until(lambda: running.child("a").starts == 2)

        assert any("did not stop in 0.1 s: killed" in what for _, what in running.said)


def test_children_are_added_and_removed(tmp_path):
    """A removed child is stopped and forgotten; an added one is started."""
    running = Running(tmp_path, {"a": PATIENT, "b": ON_LIFELINE})
    running.supervisor = Supervisor(
        [running.spec("a", PATIENT), running.spec("b", ON_LIFELINE)],
        on_change=running.on_change,
        on_reload=lambda supervisor: supervisor.change([running.spec("a", PATIENT), running.spec("c", PATIENT)]),
        backoff=Backoff(first_s=0.01, cap_s=0.02),
        random=Random(1),
    )
    with running:
        wait_until(lambda: "up" in (tmp_path / "b.log").read_text())
        first = running.child("a").pid
        running.supervisor.request_reload()
        running.until(lambda: [child.spec.name for child in running.supervisor.children] == ["a", "c"])

        assert running.child("a").pid == first
        assert any(what == "b is not needed any more" for _, what in running.said)
        wait_until(lambda: "up" in (tmp_path / "c.log").read_text())


def test_a_child_added_while_it_stops_runs_once(tmp_path):
    """It is started when it has stopped, as after a requested restart."""
    wanted = [["a"], ["a", "b"]]
    reload = lambda supervisor: supervisor.change([running.spec(name, ON_LIFELINE) for name in wanted.pop(0)])
    with Running(tmp_path, {"a": ON_LIFELINE, "b": ON_LIFELINE}, on_reload=reload) as running:
        wait_until(lambda: "up" in (tmp_path / "b.log").read_text())
        first = running.child("b").pid
        running.supervisor.request_reload()
        running.supervisor.request_reload()
        running.until(lambda: not wanted)
        assert [child.spec.name for child in running.supervisor.children] == ["a", "b"]
        running.until(lambda: running.child("b").pid not in {None, first})
        assert gone(first)
        wait_until(lambda: (tmp_path / "b.log").read_text() == "up\ndown\nup\n")


def test_a_child_removed_and_added_before_its_restart_runs_once(tmp_path):
    """It has nothing to stop: a reload that adds it again starts one process."""
    steps = [
        lambda supervisor: supervisor.change([]),
        lambda supervisor: supervisor.change([running.spec("a", PATIENT)]),
        lambda supervisor: supervisor.renew("a"),
    ]

    def reload(supervisor):
        steps.pop(0)(supervisor)

    hour = Backoff(first_s=3600.0, cap_s=3600.0)
    with Running(tmp_path, {"a": "raise SystemExit(1)"}, backoff=hour, on_reload=reload) as running:
        running.until(lambda: running.child("a").state == "waiting")
        running.supervisor.request_reload()
        running.until(lambda: running.supervisor.children == [])
        running.supervisor.request_reload()
        running.until(lambda: [child.state for child in running.supervisor.children] == ["running"])
        first = running.child("a").pid
        running.supervisor.request_reload()
        running.until(lambda: running.child("a").pid not in {None, first})
        assert len(running.supervisor.children) == 1


def test_a_signal_is_forwarded(tmp_path):
    """To the named child."""
    script = (
        "from quiver.pipeline.processes.parent_watchdog import ParentWatchdog\n"
        "line = ParentWatchdog(deadline_s=5)\n"
        "print('up', flush=True)\n"
        "while not line.wait(60):\n"
        "    if line.reload_requested(): print('again', flush=True)\n"
    )
    tell = lambda supervisor: supervisor.send_signal("a", signal.SIGHUP)
    with Running(tmp_path, {"a": script, "b": PATIENT}, on_reload=tell) as running:
        wait_until(lambda: "up" in (tmp_path / "a.log").read_text())
        running.supervisor.request_reload()
        wait_until(lambda: "again" in (tmp_path / "a.log").read_text())

        assert running.child("b").pid is not None


def test_a_reload_waits_for_a_child_that_starts(tmp_path):
    """A child that is still importing is not killed by the signal, and receives it when it is ready."""
    script = (
        "import pathlib, threading\n"
        "print('born', flush=True)\n"
        f"while not pathlib.Path({str(tmp_path / 'go')!r}).exists(): threading.Event().wait(0.02)\n"
        "from quiver.pipeline.processes.parent_watchdog import ParentWatchdog\n"
        "line = ParentWatchdog(deadline_s=5)\n"
        "while not line.wait(60):\n"
        "    if line.reload_requested(): print('again', flush=True)\n"
    )

    def tell(supervisor):
        supervisor.send_signal("a", signal.SIGHUP)
        (tmp_path / "go").touch()

    with Running(tmp_path, {"a": script}, on_reload=tell) as running:
        wait_until(lambda: "born" in (tmp_path / "a.log").read_text())
        running.supervisor.request_reload()
        wait_until(lambda: "again" in (tmp_path / "a.log").read_text() or running.child("a").starts > 1)

        assert running.child("a").starts == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_watchdog_receives_signals(number):
    """A request to stop is permanent."""
    reading, writing = os.pipe()
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        line = ParentWatchdog(deadline_s=3600, stdin_fd=reading)
        assert not line.wait(0)
        os.kill(os.getpid(), number)
        assert line.wait(20)
        assert line.wait(0)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        # The thread keeps both ends of the pipe: the end of the file would start its countdown.
        _KEPT.append((reading, writing))


_KEPT = []
