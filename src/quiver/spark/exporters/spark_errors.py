"""Errors of Spark jobs: the sentence in them that explains the failure, and whether a bundle can be its cause. Pure."""

from __future__ import annotations

import re

__all__ = ["describe_error", "is_environment_error"]

REASON_CHARS_MAX = 400

_BRIDGE_ERRORS = ("Py4JNetworkError", "Py4JError")
_WRAPPERS = ("Exception thrown in awaitResult", "Job aborted", "Writing job failed")
_PACKAGE = re.compile(r"^(?:[\w$]+\.)+(?=[A-Z]\w*: )")

_ENVIRONMENT = (
    "SPARK_JOB_CANCELLED", "SparkContext was shut down", "SparkContext has been shutdown", "stopped SparkContext",
    "No space left on device", "port number from pyspark.daemon",
)  # fmt: skip
"""Phrases in errors of jobs that Spark itself or the machine ended."""


def is_environment_error(error: Exception) -> bool:
    """
    Return whether *error* comes from Spark or the machine, and would have hit any bundle.

    Examples: the query was stopped, the disk is full, the connection to Java is closed.
    """
    if type(error).__name__ in _BRIDGE_ERRORS or isinstance(error, OSError):
        return True
    text = str(error)
    return any(phrase in text for phrase in _ENVIRONMENT)


def describe_error(error: Exception) -> str:
    """
    Return *error* as one human-readable line.

    Spark and its bridge to Java wrap an error in errors of their own; this returns the innermost one.
    """
    raw = [line for line in str(error).splitlines() if line.strip() and not line.strip().startswith("at ")]
    lines = [line.strip() for line in raw]
    # Python sends its traceback, which ends with the error itself: from a worker, or from a callback of a batch.
    begins = next((at for at, line in enumerate(lines) if "Traceback (most recent call last)" in line), None)
    if begins is not None:
        frames = [at for at, line in enumerate(lines) if at > begins and line.startswith('File "')]
        after = (frames[-1] if frames else begins) + 1
        # The line of code follows the location, if it is known, and below it there may be markers. Both are indented
        # further than the error.
        outer = [line.strip() for line in raw[after:] if not line[0].isspace()]
        lines = outer or [line for line in lines[after + 1 :] if set(line) - set("^~ ")] or lines[after:]
    is_named = begins is not None
    at = next((at for at, line in enumerate(lines[:-1]) if "An error occurred while calling" in line), None)
    if at is not None:
        lines = _causes(lines[at + 1 :])  # this line is the bridge's; the error follows it
        is_named = True
    text = lines[0] if lines else ""
    return text[:REASON_CHARS_MAX] if is_named else f"{type(error).__name__}: {text}"[:REASON_CHARS_MAX]


def _causes(lines: list[str]) -> list[str]:
    """Return the messages of the Java error in *lines*, starting with the first that is not just a wrapper."""
    messages = [lines[0].removeprefix(": ")]
    messages += [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    # The error of a job names the task that was lost, and then the cause.
    messages = [re.sub(r"^.*: Lost task \S+ .*?\): (?=\S)", "", line) for line in messages]
    inner = next((at for at, line in enumerate(messages) if not any(words in line for words in _WRAPPERS)), 0)
    return [_PACKAGE.sub("", line) for line in messages[inner:]]
