"""The Spark session that the tests of one process share, and its replacement after a test was interrupted."""

import contextlib
from collections.abc import Callable
from typing import Any

from pytest_timeout import PYTEST_FAILURE_MESSAGE

_TIME_LIMIT = PYTEST_FAILURE_MESSAGE.rpartition("%s")[2]


class SharedSession:
    """
    Starts a session for the first test that needs one.

    Args:
        start: starts a session.
        end_jvm: ends the JVM of this process without a call into it.
    """

    def __init__(self, start: Callable[[], Any], end_jvm: Callable[[], object]) -> None:
        self._start = start
        self._end_jvm = end_jvm
        self._session: Any = None

    def get(self) -> Any:
        """Return the running session."""
        if self._session is None:
            self._session = self._start()
        return self._session

    def stop(self) -> None:
        """Stop the session, if there is one."""
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(Exception):
                session.stop()

    def replace_after(self, error: BaseException) -> None:
        """
        End the JVM if *error* is that of a time limit: the next `get` starts another one.

        The limit interrupts a test while it waits for an answer of the JVM. The connection still gets this answer, so
        each later call would return the answer to the call before it, in all later tests.
        """
        if is_time_limit(error):
            self._session = None
            self._end_jvm()


def is_time_limit(error: BaseException | None) -> bool:
    """Return whether *error* is that of a time limit, or was raised while that one was handled."""
    while error is not None:
        if str(error).endswith(_TIME_LIMIT):
            return True
        error = error.__context__
    return False


def start_session() -> Any:
    """Return a session in a new JVM of this process."""
    import quiver.spark

    return quiver.spark.session("tests", config={"spark.sql.shuffle.partitions": "1"})


def end_jvm() -> None:
    """Kill the JVM of this process, if there is one, and let PySpark forget it. Queries and jobs in it end."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.context import SQLContext

    gateway, context = SparkContext._gateway, SparkContext._active_spark_context
    if gateway is None:
        return
    gateway.proc.kill()
    gateway.proc.wait()
    gateway.proc.stdin.close()
    gateway.shutdown()  # only the sockets and the callback server of this process
    if context is not None:
        context._jsc = None
        context.stop()  # only the server of accumulators
    SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = SQLContext._instantiatedContext = None
