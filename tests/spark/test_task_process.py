"""Garbage collection in a Python process of Spark."""

import gc

import pytest
from pyspark import TaskContext

from quiver.spark import task_process


@pytest.fixture
def freezes(monkeypatch):
    found = []
    monkeypatch.setattr(gc, "freeze", lambda: found.append(1))
    monkeypatch.setattr(task_process, "_done", False)
    return found


def test_modules_are_excluded_once_in_a_task(freezes, monkeypatch):
    """Each call would exclude the garbage of all tasks until then."""
    monkeypatch.setattr(TaskContext, "get", object)
    task_process.skip_modules_in_collections()
    task_process.skip_modules_in_collections()
    assert freezes == [1]


def test_other_processes_collect_everything(freezes):
    """Such as the process of the query, and a program that reads a partition itself."""
    task_process.skip_modules_in_collections()
    assert freezes == []
