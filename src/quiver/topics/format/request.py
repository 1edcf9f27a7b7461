r"""
Requests to the process that has a directory of topics open, and its answers: notes of two lines
(`primitives/batch_notes.py`).

::

    .requests/<id>.request   {"quiver_topic_request": 1, "command": "seek", "arguments": {"topic": "default/orders", …}}
    .requests/<id>.taken     the same file: the process that has the topics open is executing it
    .requests/<id>.answer    {"quiver_topic_answer": 1, "result": {"offset": 1200}}
                             {"quiver_topic_answer": 1, "error": ["UsageError", "there is no topic default/orders"]}

A namespace cannot begin with a dot, so no topic has the name of this directory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from quiver.primitives.batch_notes import decode_note, encode_note
from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.scan import Answer, Damage, Frame

__all__ = [
    "REQUESTS_DIR",
    "REQUEST_BYTES_MAX",
    "CommandFailure",
    "TopicRequest",
    "decode_answer",
    "decode_request",
    "encode_answer",
    "encode_refusal",
    "encode_request",
    "parse_request_name",
    "request_name",
]

REQUESTS_DIR = ".requests"

REQUEST_BYTES_MAX = 1024 * 1024
"""Longer requests and answers are not read."""

Stage = Literal["request", "taken", "answer"]

_REQUEST_KEY = "quiver_topic_request"
_ANSWER_KEY = "quiver_topic_answer"
_VERSION = 1
_NAME = re.compile(r"([0-9a-f]{16})\.(request|taken|answer)")
_ERROR_PARTS = 2


class TopicRequest(NamedTuple):
    """A command and its arguments."""

    command: str
    arguments: Mapping[str, Any]


class CommandFailure(NamedTuple):
    """The error with which a command ended: its class and its message."""

    kind: str
    message: str


def request_name(identity: str, stage: Stage) -> str:
    """Return the name of the file of the request *identity*, sixteen hexadecimal digits."""
    return f"{identity}.{stage}"


def parse_request_name(name: str) -> tuple[str, str] | None:
    """Return the identity and the stage of the request file *name*; None if it is not one."""
    match = _NAME.fullmatch(name)
    return None if match is None else (match[1], match[2])


def encode_request(request: TopicRequest) -> bytes:
    """Encode a request."""
    return encode_note({_REQUEST_KEY: _VERSION, "command": request.command, "arguments": dict(request.arguments)})


def decode_request(data: Buffer) -> Answer[TopicRequest]:
    """Decode a request."""
    answer = _note(data, _REQUEST_KEY)
    if not isinstance(answer, Frame):
        return answer
    command, arguments = answer.value.get("command"), answer.value.get("arguments")
    if not isinstance(command, str) or not isinstance(arguments, dict):
        return Damage(0, "not a request: it has no command, or no arguments")
    return Frame(TopicRequest(command, arguments), answer.end)


def encode_answer(result: Mapping[str, Any]) -> bytes:
    """Encode the result of a command."""
    return encode_note({_ANSWER_KEY: _VERSION, "result": dict(result)})


def encode_refusal(refusal: CommandFailure) -> bytes:
    """Encode the error of a command."""
    return encode_note({_ANSWER_KEY: _VERSION, "error": list(refusal)})


def decode_answer(data: Buffer) -> Answer[Mapping[str, Any] | CommandFailure]:
    """Decode an answer: a result, or an error."""
    answer = _note(data, _ANSWER_KEY)
    if not isinstance(answer, Frame):
        return answer
    result, error = answer.value.get("result"), answer.value.get("error")
    if isinstance(result, dict):
        return Frame(result, answer.end)
    if isinstance(error, list) and len(error) == _ERROR_PARTS and all(isinstance(one, str) for one in error):
        return Frame(CommandFailure(*error), answer.end)
    return Damage(0, "not an answer: it has neither a result nor an error")


def _note(data: Buffer, key: str) -> Answer[dict[str, Any]]:
    if len(data) > REQUEST_BYTES_MAX:
        return Damage(0, f"a request or answer of {len(data)} bytes")
    answer = decode_note(data)
    if isinstance(answer, Frame) and answer.value.get(key) != _VERSION:
        return Damage(0, "another kind of note, or one of a newer version")
    return answer
