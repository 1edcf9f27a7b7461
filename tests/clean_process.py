"""
Tests that fork run in a separate process, which has only the threads that they start.

A process that has run Spark or gRPC has threads that may hold locks of C libraries at any moment. A child that is
forked at such a moment waits for them indefinitely, which shows nothing about the tested code.
"""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

import pytest

PROCESSES = multiprocessing.get_context("forkserver") if hasattr(os, "fork") else multiprocessing.get_context("spawn")
"""Forked from a server that never started a thread."""

PATIENCE_S = 150
"""Below the time limit of a test, so that a process that hangs is killed by the one that started it."""


def in_a_clean_process(test: Callable[..., None]) -> Callable[..., None]:
    """Run *test* in another process, with fixtures that can be pickled, and leave none of its children running."""

    @functools.wraps(test)
    def run(**fixtures: object) -> None:
        ours, theirs = PROCESSES.Pipe(duplex=False)
        process = PROCESSES.Process(target=_call, args=(test.__module__, test.__name__, fixtures, theirs))
        process.start()
        theirs.close()
        text = "it did not end in time, or left a child that has not"
        try:
            if ours.poll(PATIENCE_S):
                text = ours.recv()
        except EOFError:
            text = "it ended without a result"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                process.kill()
            process.join()
        if text:
            pytest.fail(text, pytrace=False)

    return run


def _call(module: str, name: str, fixtures: dict[str, object], tell: Connection) -> None:
    os.setpgid(0, 0)
    test = getattr(importlib.import_module(module), name)
    try:
        test.__wrapped__(**fixtures)
    except BaseException:
        tell.send(traceback.format_exc())
    else:
        tell.send("")
