"""
The report of an exporter in `quiver subscribers` and `quiver top`: its last success, and its last error until the next
success.
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
    """Let the exporter `slow` of a store deliver, fail with *error*, and optionally deliver once more."""
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


def test_the_last_error_is_shown_until_the_next_delivery(store_dir, call):
    """With its type, age and message; JSON includes it afterwards, too, and marks it as over."""
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


def test_a_subscriber_without_an_exporter_has_no_report(store_dir, call):
    """It is listed without one."""
    found = of_slow(call("subscribers", store_dir, "--json"))
    assert (found["last_success_at_ns"], found["last_error"], found["report_problem"]) == (None, None, None)


@pytest.mark.parametrize("shape", ["garbage", "huge", "fifo", "directory"])
def test_an_invalid_report_is_reported_by_path(store_dir, call, shape):
    """The list is complete, a pipe does not block the command, and the exit code indicates damage."""
    path = store_dir / report_name("slow")
    if shape == "fifo":
        os.mkfifo(path)
    elif shape == "directory":
        path.mkdir()
    else:
        path.write_bytes(b"{" if shape == "garbage" else b" " * 10_000_000)
    for command in ("subscribers", "top"):
        result = call(command, store_dir)
        output = result.output + (result.stderr if command == "top" else "")
        assert str(path) in output
        assert "its exporter replaces it" in output
        assert "fast" in result.output
        assert result.exit_code == (1 if command == "subscribers" else 0)
    assert "too large" in of_slow(call("subscribers", store_dir, "--json"))["report_problem"] or shape != "huge"


def test_top_shows_reports_and_dead_letters(store_dir, call):
    """As a line and in JSON; a retry is shown only once."""
    report(store_dir, error="HTTP 503")
    shown = call("top", store_dir).output
    assert "! slow fails: storage, " in shown
    assert "dead letters" in shown
    assert "last success" in shown
    found = json.loads(call("top", store_dir, "--json", "--count", "1").output)
    assert found["reports"]["slow"]["last_error"]["message"] == "HTTP 503"
    assert found["dead_letters"] == {}

    report(store_dir, error="x", then_delivered=True)
    assert "fails" not in call("top", store_dir).output


def test_dropping_an_exporter_removes_its_report(store_dir, call):
    """A later exporter of the same name starts without failures."""
    report(store_dir, error="x")
    assert call("subscribers", store_dir, "drop", "slow").exit_code == 0
    assert not (store_dir / report_name("slow")).exists()


def test_inspect_shows_the_message_of_the_report(store_dir, call):
    report(store_dir, error="no room")
    assert "no room" in call("inspect", store_dir / report_name("slow")).output


def test_reports_of_several_cores_are_combined(tmp_path):
    """Each core may have its own instance: a later success of another instance does not hide an error."""
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
