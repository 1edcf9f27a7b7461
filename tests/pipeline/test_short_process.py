"""A function in a process of its own: its result comes back, and its failure is an error of the caller."""

import os
import sys
from pathlib import Path

import pytest

from quiver import short_process
from quiver.errors import QuiverError
from quiver.short_process import call_in_short_process, call_without_loading


def where(*arguments):
    """Return the process, the directory and *arguments*."""
    return [os.getpid(), str(Path.cwd()), *arguments]


def failing():
    """Fail."""
    raise QuiverError("no such thing")


@pytest.fixture(autouse=True)
def _own_module(monkeypatch):
    """The process imports this module."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))


def test_the_result_comes_back_from_another_process(tmp_path, monkeypatch):
    """It has the same directory. A name of a file that is not UTF-8 survives the way."""
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"\xff")
    pid, directory, *arguments = call_in_short_process(f"{__name__}:where", 1, name, {"a": [None]})
    assert pid != os.getpid()
    assert (directory, arguments) == (str(tmp_path), [1, name, {"a": [None]}])


def test_a_failure_is_an_error_of_the_caller(capfd):
    """Its reason is on standard error, where the process shows it."""
    with pytest.raises(QuiverError, match=r"failing in a process of its own: .*exit status 1"):
        call_in_short_process(f"{__name__}:failing")
    assert "QuiverError: no such thing" in capfd.readouterr().err


def test_a_process_that_cannot_start_is_an_error_of_the_caller(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(QuiverError, match="No such file"):
        call_in_short_process(f"{__name__}:where")


def test_a_loaded_package_needs_no_process(monkeypatch):
    """One whose import was prevented is not loaded."""
    assert call_without_loading("pytest", f"{__name__}:where", 1)[0] == os.getpid()
    called = []
    monkeypatch.setattr(short_process, "call_in_short_process", lambda *arguments: called.append(arguments))
    monkeypatch.setitem(sys.modules, "prevented", None)
    for package in ("prevented", "not_loaded"):
        call_without_loading(package, "m:f", 1)
    assert called == [("m:f", 1)] * 2
