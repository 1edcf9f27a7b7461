"""Lines of log files are passed on once, complete, and as JSON if asked."""

import json
import logging
import sys

import pytest

from quiver.pipeline.processes.log_relay import JsonFormatter, LogRelay, parse_line

INFO = "2026-01-31 12:00:00,123 INFO    quiver.pipeline listening on 127.0.0.1:4317"
ERROR = "2026-01-31 12:00:01,456 ERROR   quiver.pipeline remote fails: refused"
SPARK = "26/01/31 12:00:00 WARN NativeCodeLoader: Unable to load native-hadoop library"


@pytest.fixture
def relay(tmp_path):
    """Return a function that makes a relay of one log, with its file and the lines that it passed on."""

    def make(**options):
        log, passed = tmp_path / "ingest.log", []
        made = LogRelay(passed.append, **{"everything": False, "log_format": "text"} | options)
        return made, log, passed, {"ingest": log}

    return make


def test_warnings_and_errors_are_important(relay):
    """With the lines that continue them. Other lines, and those of Spark, stay in the file."""
    made, log, passed, files = relay()
    log.write_text("")
    made.start(files)
    log.write_text(f"{INFO}\n{SPARK}\n{ERROR}\nTraceback:\n  line\n\n{INFO}\n{SPARK}\n")
    made.look(files)
    assert passed == [f"ingest: {ERROR}", "ingest: Traceback:", "ingest:   line"]


def test_all_lines_can_be_passed_on(relay):
    made, log, passed, files = relay(everything=True)
    made.start(files)
    log.write_text(f"{INFO}\n{SPARK}\n")
    made.look(files)
    assert passed == [f"ingest   {INFO}", f"ingest   {SPARK}"]


def test_lines_of_an_earlier_run_are_not_repeated(relay):
    """The relay begins at the end of the file."""
    made, log, passed, files = relay(everything=True)
    log.write_text("old\n")
    made.start(files)
    with log.open("a") as file:
        file.write("new\n")
    made.look(files)
    made.look(files)
    assert passed == ["ingest   new"]


def test_an_incomplete_line_waits_for_its_end(relay):
    """Also in the middle of a character."""
    made, log, passed, files = relay(everything=True)
    made.start(files)
    data = "käse\n".encode()
    for end in range(len(data) + 1):
        log.write_bytes(data[:end])
        made.look(files)
        assert passed == ([] if end < len(data) else ["ingest   käse"])


def test_a_rotated_file_is_read_from_its_start(relay):
    """A rotation truncates the file; the child continues at its start."""
    made, log, passed, files = relay(everything=True)
    made.start(files)
    log.write_text("one\ntwo\nincomp")
    made.look(files)
    log.write_text("three\n")
    made.look(files)
    assert passed == ["ingest   one", "ingest   two", "ingest   three"]


def test_a_missing_or_unreadable_file_is_skipped(relay, tmp_path):
    made, _, passed, files = relay(everything=True)
    made.start(files)
    made.look(files | {"spark": tmp_path})
    assert passed == []


def test_json_has_the_parts_of_a_line(relay):
    """Time with its zone, level, process, logger and message; other lines have the level of the line before."""
    made, log, passed, files = relay(everything=True, log_format="json")
    made.start(files)
    log.write_bytes(f"{ERROR}\nTraceback: \xff\n".encode("latin-1"))
    made.look(files)
    first, second = map(json.loads, passed)
    assert {key: first[key] for key in ("level", "process", "logger", "message")} == {
        "level": "error", "process": "ingest", "logger": "quiver.pipeline", "message": "remote fails: refused",
    }  # fmt: skip
    assert first["time"].startswith("2026-01-31T12:00:01.456")
    assert first["time"][-6] in "+-"
    assert (second["level"], second["message"]) == ("error", "Traceback: \ufffd")


def test_records_of_this_process_have_the_same_form():
    """With the traceback in the message."""
    try:
        raise ValueError("reason")
    except ValueError:
        record = logging.LogRecord("quiver.x", logging.ERROR, "", 1, "failed: %s", ("a",), sys.exc_info())
    found = json.loads(JsonFormatter("ingest").format(record))
    assert found["message"].splitlines()[0] == "failed: a"
    assert found["message"].endswith("ValueError: reason")
    assert (found["level"], found["process"], found["logger"]) == ("error", "ingest", "quiver.x")


def test_lines_of_other_programs_are_messages():
    assert parse_line(SPARK) == (None, "", "", SPARK)
    assert parse_line(INFO).message == "listening on 127.0.0.1:4317"
