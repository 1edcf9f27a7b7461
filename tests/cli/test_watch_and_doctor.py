"""Repeated `stats`, progress of long commands, `doctor` and `bench`."""

import io
import json
import re
import shutil

import pytest

from quiver.cli.console.progress import QUIET_S, ProgressDisplay
from quiver.cli.measure import MODES, measure
from quiver.cli.stats.commands import watch
from quiver.errors import UsageError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.settings import Settings
from quiver.store.reading.doctor import diagnose
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Ticking(ManualClock):
    """A clock that advances with every call."""

    def __init__(self, step_s):
        super().__init__()
        self._step_s = step_s

    def monotonic(self):
        self.advance(self._step_s)
        return super().monotonic()


def test_stats_repeats_after_each_interval(made_store, capsys):
    """As often as requested; each time prints a line of JSON."""
    clock = ManualClock()
    assert watch(made_store, clock, every_s=5, count=3, as_json=True)
    lines = capsys.readouterr().out.splitlines()

    assert [json.loads(line)["bundles"] for line in lines] == [12, 12, 12]
    assert clock.monotonic() == 10


def test_stats_watch_prints_tables_one_after_another(made_store, call):
    """Without a terminal, the tables follow each other; wrong arguments are refused."""
    result = call("stats", made_store, "--watch", "--count", 2, "--every", "1ms")
    assert result.exit_code == 0
    assert result.output.count("segment bytes") == 2
    assert "\x1b[2J" not in result.output
    for wrong in (["--count", 2], ["--watch", "--every", "0s"], ["--watch", "--every", "soon"]):
        assert call("stats", made_store, *wrong).exit_code != 0


def test_an_interrupt_ends_the_watch(made_store, monkeypatch, call):
    """Without a traceback, with exit code 0."""

    def interrupted(*_arguments, **_named):
        raise KeyboardInterrupt

    monkeypatch.setattr("quiver.cli.stats.commands.watch", interrupted)
    assert call("stats", made_store, "--watch").exit_code == 0


def test_progress_is_shown_after_two_seconds():
    """On one line that is overwritten, a few times per second at most, and cleared at the end."""
    clock, to = ManualClock(), Terminal()
    with ProgressDisplay("reading", clock=clock, stream=to) as progress:
        clock.advance(QUIET_S - 0.1)
        progress("a")
        assert to.getvalue() == ""
        clock.advance(0.2)
        progress("b")
        progress("c")
        output = to.getvalue()
        assert output.startswith("\rreading: 2, 2 s, b")
        clock.advance(1)
        progress("d")
        assert "reading: 4, 3 s, d" in to.getvalue()
    assert re.search(r"\r +\r$", to.getvalue())


def test_a_known_whole_has_percent_and_the_time_left(tmp_path):
    """By bytes: a small file and a large one are not each a half. The bar is removed at the end."""
    for name, size in (("a", 100), ("b", 300), ("c", 600)):
        (tmp_path / name).write_bytes(bytes(size))
    clock, to = ManualClock(), Terminal()
    with ProgressDisplay("reading", of=[tmp_path], clock=clock, stream=to) as progress:
        progress(str(tmp_path / "a"))
        progress(str(tmp_path / "b"))
        clock.advance(QUIET_S + 2)
        progress(str(tmp_path / "c"))
        assert re.search(r"reading .* 40% 6\.0 s left .*/c", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", to.getvalue()))
    assert "\x1b[2K" in to.getvalue()


def test_a_bar_of_nothing_is_a_line(tmp_path):
    """An empty directory, or one that disappears, has no part that could be done."""
    clock, to = ManualClock(), Terminal()
    with ProgressDisplay("reading", of=[tmp_path / "gone"], clock=clock, stream=to) as progress:
        clock.advance(QUIET_S + 1)
        progress("x")
    assert "reading: 1, 3 s, x" in to.getvalue()


def test_progress_is_not_written_to_a_pipe():
    clock, to = ManualClock(), io.StringIO()
    with ProgressDisplay("reading", clock=clock, stream=to) as progress:
        clock.advance(60)
        progress("a")
    assert to.getvalue() == ""


@pytest.mark.parametrize(
    "command",
    [
        ("verify",),
        ("inspect",),
        ("repair", "--dry-run"),
        ("snapshot", "{}/copy", "--check"),
        ("migrate", "--profile", "otap"),
    ],
    ids=lambda command: command[0],
)
def test_commands_that_read_a_complete_store_report_each_segment(made_store, tmp_path, call, monkeypatch, command):
    """So long commands show their progress."""
    reports = []
    monkeypatch.setattr(ProgressDisplay, "__call__", lambda _, where: reports.append(where))
    name, *options = command
    store = shutil.copytree(made_store, tmp_path / "store")
    assert call(name, store, *(str(option).format(tmp_path) for option in options)).exit_code == 0

    assert any(".qseg" in where for where in reports)


def test_a_restore_reports_its_progress(made_store, tmp_path, call, monkeypatch):
    """It reads all of a snapshot, and writes it again."""
    call("snapshot", made_store, tmp_path / "copy")
    reports = []
    monkeypatch.setattr(ProgressDisplay, "__call__", lambda _, where: reports.append(where))
    assert call("restore", tmp_path / "copy", tmp_path / "again").exit_code == 0

    assert any(".qseg" in where for where in reports)


def test_doctor_prints_its_verdict_and_leaves_nothing(tmp_path, call):
    """The guarantees, a verdict, and a matching exit code."""
    result = call("doctor", tmp_path, "--samples", 3)
    assert "at most the last 25.0 ms" in result.output or "everything is lost" in result.output
    assert ("This disk is suitable for a store." in result.output) == (result.exit_code == 0)
    found = json.loads(call("doctor", tmp_path, "--samples", 3, "--json").output)

    assert [one["samples"] for one in found["latencies"]] == [3, 3, 1]
    assert all(one["worst_s"] >= one["median_s"] >= 0 for one in found["latencies"])
    assert found["free_bytes"] > 0
    assert {one["subject"] for one in found["remarks"]} >= {
        "file system",
        "sync",
        "free space",
        "locks",
        "mapping",
        "links",
    }
    assert found["survives"][0] == {
        "call": "ingest(durable=True)",
        "process_dies": "nothing is lost",
        "power_is_lost": "nothing is lost" if found["file_system"] != "tmpfs" else "everything is lost",
    }
    assert list(tmp_path.iterdir()) == []


def test_doctor_does_not_change_a_store(made_store, store_dir, call):
    """Every file stays the same."""
    before = {path.relative_to(store_dir): path.stat().st_size for path in store_dir.rglob("*") if path.is_file()}
    call("doctor", store_dir, "--samples", 1)
    after = {path.relative_to(store_dir): path.stat().st_size for path in store_dir.rglob("*") if path.is_file()}
    assert before == after
    assert made_store != store_dir


def disk():
    fs = CrashFileSystem()
    fs.make_dirs("/d")
    return fs


def remarks(found):
    return {remark.subject: remark for remark in found.remarks}


@pytest.mark.parametrize(
    ("step_s", "verdict", "word"),
    [(0.001, "good", "durable ingests"), (0.1, "watch", "concurrent"), (0, "watch", "faster")],
)
def test_doctor_judges_the_sync(step_s, verdict, word):
    """Fast, slow, and faster than any disk."""
    found = diagnose(disk(), "/d", clock=Ticking(step_s), samples=4)

    assert remarks(found)["sync"].verdict == verdict
    assert word in remarks(found)["sync"].finding
    assert [round(one.median_s, 6) for one in found.latencies] == [step_s] * 3


def test_doctor_reports_missing_abilities():
    """Links and reserved blocks are optional; locks are not."""
    for operation, subject, verdict in (
        ("link", "links", "watch"),
        ("reserve", "reserved blocks", "watch"),
        ("lock", "locks", "bad"),
    ):
        fs = FaultFileSystem(disk())
        fs.fail_on(operation)
        found = diagnose(fs, "/d", clock=ManualClock(), samples=2)
        assert remarks(found)[subject].verdict == verdict
        assert "do not work here" in remarks(found)[subject].finding
        assert found.is_fit == (verdict != "bad")
        assert [name for name in fs.list_dir("/d") if name.startswith("quiver.doctor")] == []


@pytest.mark.parametrize(
    ("mounts", "kind", "fit"),
    [
        ("a / ext4 rw 0 0\nb /d tmpfs rw 0 0\n", "tmpfs", False),
        ("a / ext4 rw 0 0\nb /d nfs4 rw 0 0\n", "nfs4", False),
        ("a / ext4 rw 0 0\nb /dd tmpfs rw 0 0\n", "ext4", True),
        ("b /d tmpfs rw 0 0\nb /d xfs rw 0 0\njunk\n", "xfs", True),
    ],
)
def test_doctor_knows_the_file_system_by_its_mount(mounts, kind, fit):
    """The longest path that matches, and among equal ones the last."""
    fs = disk()
    fs.make_dirs("/proc/self")
    fs.create("/proc/self/mounts").pwrite(mounts.encode(), 0)
    found = diagnose(fs, "/d", clock=Ticking(0.001), samples=2)

    assert (found.file_system, found.is_fit) == (kind, fit)
    assert (found.survives[0][2] == "everything is lost") == (kind == "tmpfs")


def test_doctor_prints_the_possible_loss_of_the_settings():
    """The loss depends on the sync interval; without one, nothing is lost."""
    for interval, lost in ((0.5, "at most the last 500.0 ms"), (0, "nothing is lost")):
        settings = Settings(wal_flush_interval_s=interval)
        found = diagnose(disk(), "/d", clock=Ticking(0.001), samples=2, settings=settings)
        assert found.survives[1] == ("ingest()", "nothing is lost", lost)
    with pytest.raises(UsageError, match="no such directory"):
        diagnose(disk(), "/nothing", clock=ManualClock())


@pytest.mark.parametrize("mode", MODES)
def test_bench_measures_the_store_and_a_bare_log(tmp_path, mode):
    """A ratio of two rates, and syncs per confirmed bundle: one if each is waited for, fewer if they are shared."""
    from quiver.clock import SYSTEM_CLOCK

    heard = []
    found = measure(
        REAL_FILES,
        str(tmp_path),
        mode,
        rows=2,
        seconds=0.05,
        rounds=1,
        clock=SYSTEM_CLOCK,
        on_progress=heard.append,
    )
    assert heard == [f"{mode}, bare log", f"{mode}, store"]
    assert found.ratio == pytest.approx(found.bundles_s / found.log_s)
    if mode == "synced":
        assert found.fsyncs_per_ack == pytest.approx(1, abs=0.2)
        assert found.log_fsyncs_per_ack == 1
    else:
        assert 0 <= found.fsyncs_per_ack <= 1


def test_the_bench_command_prints_a_table_or_json(tmp_path, call):
    """No file is left on the disk."""
    quick = ["--seconds", "0.02", "--rounds", 1, "--rows", 1, "--mode", "synced"]
    result = call("bench", tmp_path, *quick)
    assert result.exit_code == 0
    assert "fsyncs per ack" in result.output
    (found,) = json.loads(call("bench", tmp_path, *quick, "--json").output)
    assert {"mode", "ratio", "fsyncs_per_ack", "bundles_s", "log_s"} <= set(found)
    assert list(tmp_path.iterdir()) == []
