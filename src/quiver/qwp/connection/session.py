"""
The protocol state of a sender: messages and times in, decisions out. No sockets, no clock, no threads.

::

    handshake headers → judge the answer → connected → sent, sent, sent …
                                                     ← OK: confirmed up to here
                                                     ← durable: these tables' transactions cannot be lost
                                                     ← refused: drop, retry or halt, and always reconnect
                                                     ← closed: reconnect, or halt

Frames are numbered in the slot (fsn). A connection numbers messages from 0 in the order they are sent. Usually a frame
is one message; a frame that is larger than the server accepts is sent as several. A frame that was dropped while
earlier frames were unconfirmed is skipped when those are sent again, and counts as confirmed once they all are.
"""

from __future__ import annotations

import base64
import bisect
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from quiver.primitives.scan import Frame, as_damage
from quiver.qwp.wire.responses import DurableAck, Ok, Refusal, Status, decode_response

__all__ = [
    "TERMINAL_CLOSES",
    "Accepted",
    "Action",
    "Category",
    "Confirm",
    "Drop",
    "Halt",
    "Policy",
    "Reconnect",
    "Refused",
    "SenderError",
    "Session",
    "SessionSettings",
    "category_of",
    "judge_answer",
    "request_headers",
]

WRITE_PATH = "/write/v4"
VERSION_MAX = 1
_DIGITS_MAX = 18


class Category(Enum):
    """
    Why a frame was refused, or a connection ended.

    ``TOO_LARGE`` is not an answer from a server: a row exceeds the limit that the server announced, and was not sent.
    """

    SCHEMA_MISMATCH = "SCHEMA_MISMATCH"
    PARSE_ERROR = "PARSE_ERROR"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    SECURITY_ERROR = "SECURITY_ERROR"
    WRITE_ERROR = "WRITE_ERROR"
    NOT_WRITABLE = "NOT_WRITABLE"
    DICTIONARY_GAP = "DICTIONARY_GAP"
    TOO_LARGE = "TOO_LARGE"
    PROTOCOL_VIOLATION = "PROTOCOL_VIOLATION"
    UNKNOWN = "UNKNOWN"


class Policy(Enum):
    """
    The treatment of a refused frame. The sender always reconnects: a server does not answer anything after a refusal.

    ``DROP`` drops it, into the dead letters unless these are off, and continues with the next frame. ``RETRY`` sends
    it again: without limit if configured explicitly; as a default, until the frame counts as poison. ``HALT`` stops
    the sender; the frame stays.
    """

    DROP = "DROP_AND_CONTINUE"
    RETRY = "RETRY"
    HALT = "HALT"


_CATEGORIES: dict[int, Category] = {
    Status.SCHEMA_MISMATCH: Category.SCHEMA_MISMATCH,
    Status.PARSE_ERROR: Category.PARSE_ERROR,
    Status.INTERNAL_ERROR: Category.INTERNAL_ERROR,
    Status.SECURITY_ERROR: Category.SECURITY_ERROR,
    Status.WRITE_ERROR: Category.WRITE_ERROR,
    Status.NOT_WRITABLE: Category.NOT_WRITABLE,
    Status.DICTIONARY_GAP: Category.DICTIONARY_GAP,
}
DEFAULT_POLICIES: Mapping[Category, Policy] = {
    Category.SCHEMA_MISMATCH: Policy.DROP,
    Category.PARSE_ERROR: Policy.HALT,
    Category.INTERNAL_ERROR: Policy.HALT,
    Category.SECURITY_ERROR: Policy.HALT,
    Category.WRITE_ERROR: Policy.DROP,
    # Newer servers: this node does not accept writes now, and a dictionary that a new connection resets.
    Category.NOT_WRITABLE: Policy.RETRY,
    Category.DICTIONARY_GAP: Policy.RETRY,
    Category.TOO_LARGE: Policy.DROP,
}
FORCED = frozenset({Category.PROTOCOL_VIOLATION, Category.UNKNOWN})
"""Always halt. `Category.TOO_LARGE` always drops."""

TERMINAL_CLOSES = frozenset({1002, 1003, 1007, 1008, 1009, 1010})
_ORDERLY_CLOSES = frozenset({1000, 1001, 1006})


def category_of(status: int) -> Category:
    """Return the category of an error status; UNKNOWN for an unknown status."""
    return _CATEGORIES.get(status, Category.UNKNOWN)


@dataclass(frozen=True, slots=True)
class SenderError:
    """
    One refusal, or the end of all connections.

    Attributes:
        category: the kind of error.
        applied_policy: the action taken.
        status: the server's status byte; -1 if the server did not answer.
        message: a description.
        message_sequence: the message of the connection; -1 if there is none.
        from_fsn, to_fsn: the affected frames, both included.
    """

    category: Category
    applied_policy: Policy
    status: int
    message: str
    message_sequence: int
    from_fsn: int
    to_fsn: int

    def __str__(self) -> str:
        frames = f", frames {self.from_fsn} to {self.to_fsn}" if self.from_fsn <= self.to_fsn else ""
        return f"{self.message} ({self.category.value}, {self.applied_policy.value}{frames})"


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The settings of the decisions. `policies` are those that differ from the defaults."""

    durable_ack: bool = False
    keepalive_s: float = 0.2
    policies: Mapping[Category, Policy] = field(default_factory=dict)
    rejections_max: int = 4
    poison_window_s: float = 5.0

    def policy_of(self, category: Category) -> Policy:
        """Return what happens to a frame refused as *category*."""
        if category in FORCED:
            return Policy.HALT
        return self.policies.get(category) or DEFAULT_POLICIES[category]

    def retries_without_end(self, category: Category) -> bool:
        """Return whether a frame refused as *category* is retried without limit, as the user configured."""
        return category not in FORCED and self.policies.get(category) is Policy.RETRY


# ---- the handshake


@dataclass(frozen=True, slots=True)
class Accepted:
    """The server speaks the protocol. `batch_bytes_max` is the maximum size of a message; 0 if it announced none."""

    durable_ack: bool
    batch_bytes_max: int
    version: int


@dataclass(frozen=True, slots=True)
class Refused:
    """
    The server does not accept this connection. `kind` determines the reaction:

    ``auth``: halt. ``role`` and ``topology``: try another host; this one will soon accept writes, or never will.
    ``durable``: halt, because the server lacks a feature that was requested. ``transient``: try another host, or later.
    """

    kind: Literal["auth", "role", "topology", "durable", "transient"]
    reason: str


def request_headers(
    *, durable_ack: bool, client_id: str | None, username: str | None, password: str | None, token: str | None
) -> list[tuple[str, str]]:
    """Return the headers of the upgrade request other than those of WebSocket."""
    headers = [("X-QWP-Max-Version", str(VERSION_MAX))]
    if client_id is not None:
        headers.append(("X-QWP-Client-Id", client_id))
    if durable_ack:
        headers.append(("X-QWP-Request-Durable-Ack", "true"))
    if token is not None:
        headers.append(("Authorization", f"Bearer {token}"))
    elif username is not None:
        pair = base64.b64encode(f"{username}:{password}".encode()).decode()
        headers.append(("Authorization", f"Basic {pair}"))
    return headers


def judge_answer(status: int, headers: Mapping[str, str], *, durable_ack: bool) -> Accepted | Refused:
    """Classify the server's answer to the upgrade request. *headers* are looked up by the names below."""
    if status in {401, 403}:
        return Refused("auth", f"the server rejected the credentials (HTTP {status})")
    role = headers.get("X-QuestDB-Role", "").strip()
    if status == 421 and role:
        kind: Literal["role", "topology"] = "role" if role.upper() == "PRIMARY_CATCHUP" else "topology"
        return Refused(kind, f"the server does not accept writes; its role is {role}")
    if status != 101:
        return Refused("transient", f"the server refused the upgrade (HTTP {status})")
    version = _number(headers.get("X-QWP-Version", "1"))
    if not 1 <= version <= VERSION_MAX:
        return Refused("transient", f"the server speaks version {headers.get('X-QWP-Version', '1')[:20]!r}, not 1")
    enabled = headers.get("X-QWP-Durable-Ack", "").strip().lower() == "enabled"
    if durable_ack and not enabled:
        return Refused("durable", "the server did not confirm X-QWP-Durable-Ack, so it cannot report durability")
    return Accepted(durable_ack and enabled, _number(headers.get("X-QWP-Max-Batch-Size", "")), version)


def _number(text: str) -> int:
    text = text.strip()
    return int(text) if text.isdecimal() and len(text) <= _DIGITS_MAX else 0


# ---- actions


@dataclass(frozen=True, slots=True)
class Confirm:
    """Everything up to `fsn` is confirmed."""

    fsn: int


@dataclass(frozen=True, slots=True)
class Drop:
    """
    Drop the frame `error.from_fsn`: store it as a dead letter and notify the handler. A `Confirm` follows when due.

    If the frame was sent as several messages, drop only the message with this index.
    """

    error: SenderError
    piece: int | None = None


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Close this connection. `paced` requests a pause first; `error` is for the handler, if there is one."""

    reason: str
    paced: bool = False
    error: SenderError | None = None


@dataclass(frozen=True, slots=True)
class Halt:
    """Stop. The next call of the producer raises `error`."""

    error: SenderError


Action = Confirm | Drop | Reconnect | Halt


class Session:
    """The state of one sender across all of its connections."""

    def __init__(self, settings: SessionSettings, *, acked_fsn: int = -1) -> None:
        self._settings = settings
        self._durable = False
        self._runs: list[tuple[int, int, int]] = []  # (message, its frame, messages of that frame), see `_place_of`
        self._next_fsn = acked_fsn + 1
        self._sent = 0
        self._confirmed = acked_fsn
        self._pending: deque[tuple[int, Mapping[str, int]]] = deque()  # (fsn, table → transaction), in order
        self._applied_sequence = -1  # of the newest entry in `_pending`
        self._watermarks: dict[str, int] = {}
        self._dropped: list[int] = []  # dropped, while an earlier frame is not durable yet; in order
        self._last_sent_at = 0.0
        self._has_progress = True
        self._fruitless = 0
        self._strikes = 0
        self._struck_fsn = -1
        self._first_strike_at = 0.0

    def connected(self, *, acked_fsn: int, durable_ack: bool, now: float) -> None:
        """Start a connection: the next frame to send follows *acked_fsn*, and its message number is 0."""
        self._fruitless = 0 if self._has_progress else self._fruitless + 1
        self._has_progress = False
        self._durable = durable_ack
        self._confirmed = acked_fsn
        self._next_fsn = acked_fsn + 1
        self._runs.clear()
        self._sent = 0
        self._pending.clear()
        self._applied_sequence = -1
        self._watermarks.clear()
        self._dropped = [fsn for fsn in self._dropped if fsn > acked_fsn]
        self._last_sent_at = now

    @property
    def next_fsn(self) -> int:
        """The frame to send next."""
        fsn = self._next_fsn
        for dropped in self._dropped:
            if dropped > fsn:
                break
            fsn += dropped == fsn
        return fsn

    @property
    def fruitless(self) -> int:
        """How many consecutive connections before this one ended without a confirmation."""
        return self._fruitless

    @property
    def awaits_durability(self) -> bool:
        """Return whether frames are applied but not yet durable."""
        return bool(self._pending)

    def resumed(self) -> None:
        """Reset the failure counters: a caller that resumes after a halt has fixed the cause."""
        self._strikes = 0

    def sent(self, now: float, messages: int = 1) -> None:
        """Record that the frame `next_fsn` was sent, as *messages* messages."""
        fsn = self.next_fsn
        if messages > 1 or not self._runs or self._place_of(self._sent) != (fsn, 0, 1):
            self._runs.append((self._sent, fsn, messages))
        self._next_fsn = fsn + 1
        self._sent += messages
        self._last_sent_at = now

    def skipped(self) -> list[Action]:
        """Record that nothing of the frame `next_fsn` is sent. Return the actions to take, in order."""
        fsn = self.next_fsn
        self._next_fsn = fsn + 1
        return self._leave_out(fsn, follows_confirmed=self._confirmed >= fsn - 1)

    def pinged(self, now: float) -> None:
        """Record that a ping was sent."""
        self._last_sent_at = now

    def ping_in_s(self, now: float) -> float | None:
        """Return the time until a ping is due, 0 for now, or None if none is needed."""
        if not self._durable or not self._pending or self._settings.keepalive_s <= 0:
            return None
        return max(0.0, self._last_sent_at + self._settings.keepalive_s - now)

    def receive(self, message: bytes | str, now: float, *, published_fsn: int) -> list[Action]:
        """Process one message from the server. Return the actions to take, in order."""
        if isinstance(message, str):
            return [Halt(self._violation("the server sent text", published_fsn))]
        answer = decode_response(memoryview(message))
        if not isinstance(answer, Frame):
            reason = as_damage(answer, len(message)).reason
            return [self._struck(f"unreadable answer: {reason}", now, published_fsn)]
        if isinstance(answer.value, Ok):
            return self._applied(answer.value)
        if isinstance(answer.value, DurableAck):
            return [] if answer.value.is_local else self._made_durable(answer.value)
        return self._refused(answer.value, now, published_fsn)

    def _place_of(self, sequence: int) -> tuple[int, int, int]:
        """
        Return the frame of a message, its index among the messages of that frame, and their number.

        A run is one frame of several messages, or consecutive frames of one message each.
        """
        first, fsn, messages = self._runs[bisect.bisect_right(self._runs, sequence, key=lambda run: run[0]) - 1]
        if messages == 1 or sequence >= first + messages:
            return fsn + sequence - first - (messages - 1), 0, 1
        return fsn, sequence - first, messages

    def _complete_fsn(self, sequence: int) -> int:
        """Return the newest frame of which all messages have numbers up to *sequence*."""
        fsn, number, messages = self._place_of(sequence)
        return fsn if number == messages - 1 else fsn - 1

    def _confirm(self, fsn: int) -> list[Action]:
        while self._dropped and self._dropped[0] <= fsn + 1:
            fsn = max(fsn, self._dropped.pop(0))
        if fsn <= self._confirmed:
            return []
        self._confirmed = fsn
        self._has_progress = True
        self._strikes = 0
        return [Confirm(fsn)]

    def _applied(self, ok: Ok) -> list[Action]:
        sequence = min(ok.sequence, self._sent - 1)  # a server cannot have applied unsent messages
        if sequence < 0:
            return []
        fsn = self._complete_fsn(sequence)
        if not self._durable:
            return self._confirm(fsn)
        if sequence > self._applied_sequence:
            # Includes the transactions of parts: the frame is durable once all of them are.
            self._applied_sequence = sequence
            self._pending.append((fsn, ok.tables))
        return self._drain()

    def _made_durable(self, ack: DurableAck) -> list[Action]:
        for table, transaction in ack.tables.items():
            self._watermarks[table] = max(transaction, self._watermarks.get(table, transaction))
        return self._drain() if self._durable else []

    def _drain(self) -> list[Action]:
        covered = -1
        while self._pending and self._is_durable(self._pending[0][1].items()):
            covered = self._pending.popleft()[0]
        return self._confirm(covered) if covered >= 0 else []

    def _is_durable(self, transactions: Iterable[tuple[str, int]]) -> bool:
        return all(self._watermarks.get(table, -1) >= transaction for table, transaction in transactions)

    def _refused(self, refusal: Refusal, now: float, published_fsn: int) -> list[Action]:
        category = category_of(refusal.status)
        policy = self._settings.policy_of(category)
        if self._sent == 0:
            return [Halt(self._violation("the server refused a message that was not sent", published_fsn))]
        fsn, number, messages = self._place_of(max(0, min(refusal.sequence, self._sent - 1)))
        text = refusal.text or "no reason given"
        error = SenderError(category, policy, refusal.status, text, refusal.sequence, fsn, fsn)
        if policy is Policy.HALT:
            return [Halt(error)]
        if policy is Policy.RETRY:
            if self._settings.retries_without_end(category):
                return [Reconnect(f"the server refused frame {fsn}: {text}", paced=True, error=error)]
            struck = self._struck(f"the server refused frame {fsn}: {text}", now, published_fsn)
            return [struck if isinstance(struck, Halt) else Reconnect(struck.reason, paced=True, error=error)]
        if not 0 <= refusal.sequence < self._sent or fsn <= self._confirmed:
            return [
                Halt(
                    self._violation(
                        f"the server refused message {refusal.sequence}, which does not wait for it: {text}",
                        published_fsn,
                    )
                )
            ]
        again = Reconnect(f"frame {fsn} was refused and dropped")
        if messages > 1:
            # The other messages are sent again without it: the server may have rolled back the earlier ones.
            return [Drop(error, number), *([] if self._durable else self._confirm(fsn - 1)), again]
        # A refusal comes after everything that was applied.
        follows_confirmed = not self._durable or self._confirmed >= fsn - 1
        return [Drop(error), *self._leave_out(fsn, follows_confirmed=follows_confirmed), again]

    def _leave_out(self, fsn: int, *, follows_confirmed: bool) -> list[Action]:
        if follows_confirmed:
            return self._confirm(fsn)
        if fsn not in self._dropped:
            bisect.insort(self._dropped, fsn)
        return []

    def closed(self, code: int, reason: str, now: float, *, published_fsn: int) -> Action:
        """Decide how to react to the end of the connection; *code* is 1006 if there was no close frame."""
        if code in TERMINAL_CLOSES:
            return Halt(self._violation(f"ws-close[{code}]: {reason}", published_fsn))
        if code in _ORDERLY_CLOSES:
            # Immediately, unless the previous connection was also closed without a confirmation.
            paced = not self._has_progress and self._fruitless > 0
            return Reconnect(f"the connection was closed ({code}) {reason}".rstrip(), paced=paced)
        text = f"the server closed the connection: ws-close[{code}]: {reason}"
        if self._settings.retries_without_end(Category.INTERNAL_ERROR):  # the close code has no more specific category
            return Reconnect(text, paced=True)
        return self._struck(text, now, published_fsn)

    def timed_out(self, reason: str, *, published_fsn: int) -> Halt:
        """Return the end of all connections: no server could be reached in time."""
        return Halt(self._violation(reason, published_fsn))

    def credentials_rejected(self, reason: str, *, published_fsn: int) -> Halt:
        """Return the end for rejected credentials."""
        span = (self._confirmed + 1, published_fsn)
        return Halt(SenderError(Category.SECURITY_ERROR, Policy.HALT, -1, reason, -1, *span))

    def _violation(self, message: str, published_fsn: int) -> SenderError:
        span = (self._confirmed + 1, published_fsn)
        return SenderError(Category.PROTOCOL_VIOLATION, Policy.HALT, -1, message, -1, *span)

    def _struck(self, reason: str, now: float, published_fsn: int) -> Halt | Reconnect:
        """Count a failure that one of our messages may have caused. Too many without progress are final."""
        suspect = self._confirmed + 1
        if self._strikes == 0 or suspect != self._struck_fsn:
            self._strikes, self._struck_fsn, self._first_strike_at = 0, suspect, now
        self._strikes += 1
        lasted = now - self._first_strike_at
        if self._strikes >= self._settings.rejections_max and lasted >= self._settings.poison_window_s:
            text = f"{reason}; {self._strikes} times within {lasted:.1f} s at frame {suspect}, so it counts as poison"
            return Halt(self._violation(text, published_fsn))
        return Reconnect(reason, paced=True)
