"""
The Python process of a Spark task.

PySpark collects garbage after every task, and each collection visits the objects of all imported modules: 25 to 50 ms
of processor time. On two cores, a batch needs four tasks of Python.
"""

from __future__ import annotations

import gc

from pyspark import TaskContext

__all__ = ["skip_modules_in_collections"]

_done = False


def skip_modules_in_collections() -> None:
    """
    Exclude the objects that exist now from garbage collection, if this process runs tasks. Later calls do nothing.

    Call it in a task after its imports. Reference counts still free these objects; only cycles among them would stay.
    """
    global _done  # noqa: PLW0603 - once per process
    if not _done and TaskContext.get() is not None:
        _done = True
        gc.freeze()
