"""
What an exporter reported, in `quiver subscribers` and `quiver top`: its last success, its last error while it
lasts.
"""

import json
import os

import pytest

from quiver.cli.reports import LastError, Reported, reported
from quiver.delivery.exporter_stats import ExporterStats
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.format.names import report_name
from quiver.testing.clock import ManualClock


def report(root, *, error=None, then_delivered=False):
    """Let the exporter `slow` of a store deliver, fail with *error*, and perhaps deliver once more."""
    stats = ExporterStats("slow", roots=[str(root)])
    stats.delivered(1, 1)
    if error is not None:
        stats.failed("storage", error)
    if then_delivered:
        stats.delivered(1, 1)
    stats.save()
    return stats.report


def of_slow(result):
    (found,) = [one for one in json.loads(result.output) if one["subscriber"] == "slow"]
    return found


def test_the_last_error_is_shown_until_something_is_delivered(store_dir, call):
    """With its type, its age and its words; programs get it afterwards, too, and are told that it is over."""
    written = report(store_dir, error="OSError: [Errno 28] no room in [lake]")
    result = call("subscribers", store_dir)
    assert result.exit_code == 0
    assert "last success" in result.output
    (line,) = [line for line in result.output.splitlines() if line.startswith("!")]
    assert line.startswith("! slow fails: storage, ")
    assert line.endswith(" s ago: OSError: [Errno 28] no room in [lake]")
    found = of_slow(call("subscribers", store_dir, "--json"))
    assert found["last_success_at_ns"] == written.last_success_at_ns
    assert found["last_error"] == {
        "type": "storage",
        "message": "OSError: [Errno 28] no room in [lake]",
        "at_ns": written.last_failure.at_ns,
        "is_over": False,
    }

    report(store_dir, error="again", then_delivered=True)
    assert "!" not in call("subscribers", store_dir).output
    found = of_slow(call("subscribers", store_dir, "--json"))
    assert (found["last_error"]["message"], found["last_error"]["is_over"]) == ("again", True)


def test_a_subscriber_that_is_no_exporter_reports_nothing(store_dir, call):
    """And is listed as before."""
    found = of_slow(call("subscribers", store_dir, "--json"))
    assert (found["last_success_at_ns"], found["last_error"], found["report_problem"]) == (None, None, None)


@pytest.mark.parametrize("shape", ["garbage", "huge", "fifo", "directory"])
def test_a_report_that_is_none_is_said_to_be_one(store_dir, call, shape):
    """By path; the list is whole, nothing waits for a pipe, and the exit code says that something is damaged."""
    path = store_dir / report_name("slow")
    if shape == "fifo":
        os.mkfifo(path)
    elif shape == "directory":
        path.mkdir()
    else:
        path.write_bytes(b"{" if shape == "garbage" else b" " * 10_000_000)
    for command in ("subscribers", "top"):
        result = call(command, store_dir)
        said = result.output + (result.stderr if command == "top" else "")
        assert str(path) in said
        assert "its exporter replaces it" in said
        assert "fast" in result.output
        assert result.exit_code == (1 if command == "subscribers" else 0)
    assert "too large" in of_slow(call("subscribers", store_dir, "--json"))["report_problem"] or shape != "huge"


def test_top_shows_it_with_the_dead_letters(store_dir, call):
    """As a line and for programs; what waits is said once, not twice."""
    report(store_dir, error="HTTP 503")
    shown = call("top", store_dir).output
    assert "! slow fails: storage, " in shown
    assert "dead letters" in shown
    assert "last success" in shown
    found = json.loads(call("top", store_dir, "--json", "--looks", "1").output)
    assert found["reports"]["slow"]["last_error"]["message"] == "HTTP 503"
    assert found["dead_letters"] == {}

    report(store_dir, error="x", then_delivered=True)
    assert "fails" not in call("top", store_dir).output


def test_dropping_an_exporter_removes_its_report(store_dir, call):
    """One of the same name that comes later did not fail."""
    report(store_dir, error="x")
    assert call("subscribers", store_dir, "drop", "slow").exit_code == 0
    assert not (store_dir / report_name("slow")).exists()


def test_inspect_shows_the_file(store_dir, call):
    """In words."""
    report(store_dir, error="no room")
    assert "no room" in call("inspect", store_dir / report_name("slow")).output


def test_of_several_stores_the_last_success_and_what_still_fails(tmp_path):
    """Each core may have an instance of its own: one that fails is not hidden by another one's later failure."""
    clock = ManualClock()
    roots = [str(tmp_path / name) for name in ("core_0", "core_1")]
    for root in roots:
        os.mkdir(root)
        stats = ExporterStats("out", roots=[root], clock=clock)
        stats.failed("storage", root)
        if root == roots[1]:
            stats.delivered(1, 1)
        stats.save()
        clock.advance(1.0)
    found = reported(REAL_FILES, roots, "out")
    assert found.error is not None
    assert found.error.message == roots[0]
    assert found.last_success_at_ns is not None
    assert reported(REAL_FILES, [str(tmp_path)], "out") == Reported()
    assert LastError("other", "m", 0, is_over=False).in_words(2_000_000_000) == "other, 2.0 s ago: m"
