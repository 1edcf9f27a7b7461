"""A client for the driver of the Rust OTAP crates: messages in, messages out, and streams over gRPC."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Self

DRIVER = Path(__file__).resolve().parents[2] / "bench" / "rivals" / "otap_driver" / "target" / "release" / "otap-driver"

_SIZE = struct.Struct("<I")


class Refused(Exception):
    """The driver's error; `messages` are those before it."""

    def __init__(self, said: str, messages: list[bytes]) -> None:
        super().__init__(said)
        self.messages = messages


def framed(messages: Iterable[bytes]) -> bytes:
    return b"".join(_SIZE.pack(len(message)) + message for message in messages)


def unframed(data: bytes) -> list[bytes]:
    found = []
    at = 0
    while at < len(data):
        (size,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size
        found.append(data[at : at + size])
        at += size
    return found


def run(*words: str, messages: Iterable[bytes]) -> list[bytes]:
    """Send *messages* to the driver and return its output."""
    done = subprocess.run([str(DRIVER), *words], input=framed(messages), capture_output=True, timeout=120, check=False)
    if done.returncode:
        raise Refused(done.stderr.decode(errors="replace").strip(), unframed(done.stdout))
    return unframed(done.stdout)


class Serving:
    """The driver as a receiver; after leaving the block, `requests` are the received data as OTLP."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen([str(DRIVER), "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        out = self._out
        self.port = int(out.readline())
        self.requests: list[bytes] = []
        return self

    @property
    def _out(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def __exit__(self, *_exception: object) -> None:
        out, _ = self._process.communicate(timeout=60)
        self.requests = unframed(out)
