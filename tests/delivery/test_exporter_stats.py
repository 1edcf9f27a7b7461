"""Counts of deliveries and failures, and the report, which survives a restart and replaces any invalid file."""

import errno
import json
import os
import re
from pathlib import Path

import pytest

from quiver.delivery.exporter_stats import SAVE_EVERY_S, ExporterStats, load_report
from quiver.errors import CorruptionError
from quiver.observe import InMemoryObserver
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.scan import Damage, Frame
from quiver.store.format import exporter_report
from quiver.store.format.describe.files import STORE_FILES
from quiver.store.format.exporter_report import (
    FAILURE_TYPES,
    MESSAGE_CHARS_MAX,
    REPORT_BYTES_MAX,
    ExporterReport,
    Failure,
    decode_report,
    encode_report,
)
from quiver.store.format.names import parse_report_name, report_name
from quiver.testing.clock import ManualClock

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "exporter-report.md"
FAILURE = Failure("storage", "OSError: [Errno 28] No space left on device", 1_700_000_004_000_000_000)
REPORT = ExporterReport(1_700_000_000_000_000_000, FAILURE)


@pytest.fixture
def root(tmp_path):
    return str(tmp_path)


def stats_at(root, clock, observer=None):
    return ExporterStats("out", observer, roots=[root], clock=clock)


# ── the bytes ────────────────────────────────────────────────────────────────────────────────────────


def test_the_page_matches_the_code():
    """Its example is the bytes that are written; its limits and types are those of the code."""
    page = PAGE.read_text(encoding="utf-8")
    text = re.findall(r"^```text\n(.*?)\n```", page, re.MULTILINE)[0].encode()
    assert encode_report(REPORT) == text
    assert decode_report(memoryview(text)) == Frame(REPORT, len(text))
    rows = re.findall(r"^\| [\w ]+ \| (\d+) \| `quiver\.store\.format\.exporter_report\.(\w+)` \|", page, re.MULTILINE)
    assert {name: int(value) for value, name in rows} == {
        name: getattr(exporter_report, name) for name in ("REPORT_BYTES_MAX", "MESSAGE_CHARS_MAX")
    }
    assert tuple(
        re.findall(r"^\| `(\w+)` \| (?:the destination|the stored|a processor|a disk|anything)", page, re.MULTILINE)
    ) == (FAILURE_TYPES)


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": "aof status"},
        {"version": 2},
        {"last_success_at_ns": -1},
        {"last_success_at_ns": 1.5},
        {"last_success_at_ns": 1 << 63},
        {"last_success_at_ns": True},
        {"last_failure": 7},
        {"last_failure": {}},
        {"last_failure": {"type": "gremlins", "message": "", "at_ns": 1}},
        {"last_failure": {"type": ["data"], "message": "", "at_ns": 1}},
        {"last_failure": {"type": "data", "message": "\x1b[2J", "at_ns": 1}},
        {"last_failure": {"type": "data", "message": "x" * (MESSAGE_CHARS_MAX + 1), "at_ns": 1}},
        {"last_failure": {"type": "data", "message": None, "at_ns": 1}},
        {"last_failure": {"type": "data", "message": "", "at_ns": None}},
    ],
)
def test_anything_but_a_report_is_damage(changed):
    """Even if it is valid JSON."""
    text = json.dumps(json.loads(encode_report(REPORT)) | changed).encode()
    assert isinstance(decode_report(memoryview(text)), Damage)


def test_decoding_any_bytes_does_not_raise():
    """Truncated reports, and JSON that nests deeper than a parser allows."""
    text = encode_report(REPORT)
    for end in range(len(text)):
        assert isinstance(decode_report(memoryview(text[:end])), Damage)
    for bad in (b"[" * REPORT_BYTES_MAX, b"\xff", b"null", b" " * (REPORT_BYTES_MAX + 1), b"1e999"):
        assert isinstance(decode_report(memoryview(bad)), Damage)


def test_unknown_members_are_ignored():
    """A later version may add members."""
    text = json.dumps(json.loads(encode_report(REPORT)) | {"more": [1]}).encode()
    assert decode_report(memoryview(text)) == Frame(REPORT, len(text))


def test_any_message_makes_a_readable_report():
    """Long, with several lines, with control characters, with multi-byte characters."""
    for message in ("a\nb\tc", "\x1b[31m" * 500, "\U0001f40d" * 5000, "", "\ud800", '"' * 400):
        failure = Failure("other", exporter_report.cut_message(message), 1)
        text = encode_report(ExporterReport(None, failure))
        assert len(text) <= REPORT_BYTES_MAX
        assert decode_report(memoryview(text)) == Frame(ExporterReport(None, failure), len(text))


def test_inspect_describes_the_report():
    """Invalid content under that name is damage."""
    description = STORE_FILES.describe(report_name("out"), memoryview(encode_report(REPORT))).as_dict()
    assert (description["kind"], description["intact"], description["fields"]["is_failing"]) == (
        "exporter report",
        True,
        True,
    )
    assert description["fields"]["failure_message"] == FAILURE.message
    assert STORE_FILES.describe(report_name("out"), memoryview(b"junk")).as_dict()["problems"]
    assert parse_report_name(f"{report_name('out')}.tmp") is None


# ── the writer ───────────────────────────────────────────────────────────────────────────────────────


def test_every_counter_starts_at_zero():
    """So that a rate includes the first event."""
    observer = InMemoryObserver()
    ExporterStats("out", observer)
    counted = {(name, dict(attributes).get("type")): value for (name, attributes), value in observer.counts.items()}
    assert counted == {
        **{(f"quiver.exporter.{name}_total", None): 0 for name in ("batches", "rows", "bytes")},
        **{("quiver.exporter.failures_total", kind): 0 for kind in FAILURE_TYPES},
    }


def test_deliveries_and_failures_are_counted(root, clock):
    """Batches, rows and bytes; failures by type."""
    observer = InMemoryObserver()
    stats = stats_at(root, clock, observer)
    stats.delivered(7, 100)
    stats.delivered(3, 11)
    stats.failed("denied", "HTTP 401")
    totals = [observer.total(f"quiver.exporter.{name}_total") for name in ("batches", "rows", "bytes", "failures")]
    assert totals == [2, 10, 111, 1]
    assert observer.counts["quiver.exporter.failures_total", (("exporter", "out"), ("type", "denied"))] == 1


def test_a_failure_and_the_recovery_are_written_immediately(root, clock):
    """Repeated successes are written every few seconds."""
    stats = stats_at(root, clock)
    assert load_report(REAL_FILES, root, "out") is None
    stats.delivered(1, 1)
    stats.save()
    first_ns = clock.now_ns()
    assert load_report(REAL_FILES, root, "out") == ExporterReport(first_ns, None)
    clock.advance(1.0)
    stats.delivered(1, 1)
    stats.save()
    assert load_report(REAL_FILES, root, "out").last_success_at_ns == first_ns
    stats.failed("unavailable", "nobody\nthere")
    stats.save()
    report = load_report(REAL_FILES, root, "out")
    assert (report.is_failing, report.last_failure.message) == (True, "nobody there")
    clock.advance(1.0)
    stats.delivered(1, 1)
    stats.save()
    report = load_report(REAL_FILES, root, "out")
    assert (report.is_failing, report.last_failure.type) == (False, "unavailable")
    stats.delivered(1, 1)
    clock.advance(SAVE_EVERY_S)
    stats.delivered(1, 1)
    stats.save()
    assert load_report(REAL_FILES, root, "out").last_success_at_ns == clock.now_ns()


def test_the_last_report_is_always_written(root, clock):
    """Even directly after the previous one."""
    stats = stats_at(root, clock)
    stats.delivered(1, 1)
    stats.save()
    clock.advance(0.5)
    stats.delivered(1, 1)
    stats.save(is_last=True)
    assert load_report(REAL_FILES, root, "out").last_success_at_ns == clock.now_ns()


def test_a_restart_continues_the_report(root, clock):
    """A failure is not over because its process ended; the last success is known."""
    stats = stats_at(root, clock)
    stats.delivered(1, 1)
    stats.failed("processor", "boom")
    stats.save()
    again = stats_at(root, clock)
    assert again.report == stats.report
    assert again.report.is_failing
    before = os.stat(f"{root}/{report_name('out')}").st_mtime_ns
    again.save(is_last=True)
    assert os.stat(f"{root}/{report_name('out')}").st_mtime_ns == before, "nothing changed"


def test_a_clock_set_back_does_not_change_the_order(root):
    """A later event has a later time."""
    clock = ManualClock(now_ns=2_000_000_000)
    stats = stats_at(root, clock)
    stats.failed("other", "x")
    stats.save()
    stats = stats_at(root, ManualClock(now_ns=1_000_000_000))
    stats.delivered(1, 1)
    assert not stats.report.is_failing
    stats.failed("other", "y")
    assert stats.report.is_failing


def test_every_core_has_the_report(tmp_path, clock):
    """One report is enough to continue; a removed core does not matter."""
    roots = [str(tmp_path / name) for name in ("core_0", "core_1", "gone")]
    for one in roots[:2]:
        Path(one).mkdir()
    stats = ExporterStats("out", roots=roots, clock=clock)
    stats.delivered(1, 1)
    stats.save()
    (tmp_path / "core_0" / report_name("out")).unlink()
    assert ExporterStats("out", roots=roots, clock=clock).report == stats.report


def test_a_full_disk_only_delays_the_report(root, clock, monkeypatch):
    """The next save writes it."""
    stats = stats_at(root, clock)
    stats.failed("storage", "full")

    def full(*_arguments, **_named):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr("quiver.delivery.exporter_stats.replace_advisory_file", full)
        with pytest.raises(OSError, match="full"):
            stats.save()
    stats.save()
    assert load_report(REAL_FILES, root, "out").is_failing


@pytest.mark.parametrize("shape", ["garbage", "empty", "torn", "huge", "fifo", "directory"])
def test_an_invalid_file_in_place_of_the_report_is_replaced(root, clock, shape):
    """It is an error with the path; reading it is bounded and does not block; only a directory is left in place."""
    path = Path(root) / report_name("out")
    if shape == "fifo":
        os.mkfifo(path)
    elif shape == "directory":
        path.mkdir()
    else:
        text = encode_report(REPORT)
        path.write_bytes({"garbage": b"\x00\xff", "empty": b"", "torn": text[:-9], "huge": b"x" * 2_000_000}[shape])
    with pytest.raises(CorruptionError) as damaged:
        load_report(REAL_FILES, root, "out")
    assert str(path) in str(damaged.value)

    stats = stats_at(root, clock)
    assert stats.report == ExporterReport()
    stats.delivered(1, 1)
    if shape == "directory":
        with pytest.raises(OSError, match="directory"):
            stats.save()
    else:
        stats.save()
        assert load_report(REAL_FILES, root, "out") == stats.report
