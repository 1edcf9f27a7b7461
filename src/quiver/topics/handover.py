"""
Handing topics over when a store closes, within a time limit: upload what is left, then release ownership.

Everything is on the local disk when this begins, so reaching the limit loses nothing: this directory keeps the topic
and can open it again immediately, and no other process can open it before its lease has expired.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["UnfinishedHandOver", "do_within"]


@dataclass(frozen=True, slots=True)
class UnfinishedHandOver:
    """
    A topic that was closed without being handed over.

    Attributes:
        topic: ``namespace/topic``.
        first_offset: of the first message that is on this disk only; `next_offset` when there is none.
        next_offset: the offset after the last message.
        directory: where the messages are.
        reason: why it was not handed over.
        is_owner: whether this directory still owns the topic; False if another process has taken it over.
    """

    topic: str
    first_offset: int
    next_offset: int
    directory: str
    reason: str
    is_owner: bool

    def __str__(self) -> str:
        here = f"messages {self.first_offset} to {self.next_offset - 1} are only in {self.directory}"
        state = here if self.first_offset < self.next_offset else "all its messages are in the object store"
        remedy = (
            "this directory still owns the topic: open it again, or run quiver topic unload, before another machine "
            "takes the topic over"
            if self.is_owner
            else "open the directory again to keep them in its quarantine, then append them with quiver topic reappend"
        )
        return f"{self.topic} was not handed over: {self.reason}; {state}; {remedy}"


def do_within(timeout: float, topics: Sequence[str], do: Callable[[str], None]) -> dict[str, Exception]:
    """
    Call *do* for each of *topics* in turn, for at most *timeout* seconds; return the errors by topic.

    A call that takes longer continues in a daemon thread, which the caller has to stop in another way.
    """
    failed: dict[str, Exception] = {topic: TimeoutError(f"it took more than {timeout:g} s") for topic in topics}

    def work() -> None:
        for topic in topics:
            try:
                do(topic)
            except Exception as error:  # noqa: BLE001 - reported to the caller
                failed[topic] = error
            else:
                del failed[topic]

    if not topics:
        return {}
    thread = threading.Thread(target=work, name="quiver-topics-hand-over", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter is shutting down and starts no threads: run without a limit
        work()
    else:
        thread.join(min(timeout, threading.TIMEOUT_MAX))
    return dict(failed)
