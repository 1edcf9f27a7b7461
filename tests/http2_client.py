"""A gRPC client of plain sockets: it sends whatever a test wants, and decodes the answer."""

import contextlib
import socket
import struct
from typing import Self
from urllib.parse import unquote

from quiver.http2 import frames as h2
from quiver.http2.hpack import HeaderDecoder, encode_headers

REQUEST = {
    ":method": "POST",
    ":scheme": "http",
    ":authority": "x",
    "te": "trailers",
    "content-type": "application/grpc",
}


def message(data: bytes, *, compressed: bool = False) -> bytes:
    return struct.pack(">BI", compressed, len(data)) + data


def request_block(path: str, **headers: str) -> bytes:
    fields = REQUEST | {":path": path} | {name.replace("_", "-"): value for name, value in headers.items()}
    return encode_headers(
        (name.encode(), value.encode()) for name, value in sorted(fields.items(), key=lambda pair: pair[0][0] != ":")
    )


def data_frames(stream: int, data: bytes, *, size: int = h2.FRAME_BYTES_MAX, last: bool = True) -> bytes:
    parts = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
    return b"".join(h2.data_frame(stream, part, is_last=last and at == len(parts) - 1) for at, part in enumerate(parts))


class Http2Client:
    """A connection. `received` has the frames: type, flags, stream, payload; `headers` those of each stream."""

    def __init__(self, port: int, *, settings: tuple[tuple[int, int], ...] = (), start: bool = True) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.received: list[tuple[int, int, int, bytes]] = []
        self.headers: dict[int, dict[str, str]] = {}
        self.data: dict[int, bytes] = {}
        self.done: set[int] = set()
        self._decoder = HeaderDecoder(list_bytes_max=1 << 20)
        self._rest = b""
        if start:
            self.socket.sendall(h2.PREFACE + h2.settings_frame(settings))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.socket.close()

    def send(self, *frames: bytes) -> None:
        with contextlib.suppress(ConnectionError):  # the server has closed it: `read` returns what it sent before
            self.socket.sendall(b"".join(frames))

    def call(self, path: str, data: bytes, *, stream: int = 1, **headers: str) -> None:
        """Send a call with the message *data*, which has its prefix."""
        self.send(h2.header_frames(stream, request_block(path, **headers), is_last=False), data_frames(stream, data))

    def read(self) -> bool:
        """Read some frames. Return whether the connection is still open."""
        try:
            part = self.socket.recv(65_536)
        except ConnectionError:
            part = b""
        self._rest += part
        while len(self._rest) >= 9:
            high, low, kind, flags, stream = h2.HEAD.unpack_from(self._rest)
            end = 9 + (high << 8 | low)
            if len(self._rest) < end:
                break
            self._note(kind, flags, stream, self._rest[9:end])
            self._rest = self._rest[end:]
        return bool(part)

    def _note(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self.received.append((kind, flags, stream, payload))
        if kind == h2.HEADERS:
            found = self._decoder.try_decode(payload)
            assert isinstance(found, list), found
            self.headers.setdefault(stream, {}).update((name.decode(), value.decode()) for name, value in found)
        elif kind == h2.DATA:
            self.data[stream] = self.data.get(stream, b"") + payload
        if kind in {h2.HEADERS, h2.DATA} and flags & h2.END_STREAM:
            self.done.add(stream)

    def status(self, stream: int = 1) -> tuple[int, str]:
        """Wait for the end of a call. Return its status and message."""
        while stream not in self.done:
            assert self.read(), self.received
        found = self.headers[stream]
        return int(found["grpc-status"]), unquote(found.get("grpc-message", ""))

    def messages(self, stream: int = 1) -> list[bytes]:
        """Return the messages of an answer, without their prefixes."""
        data, found = self.data.get(stream, b""), []
        while data:
            end = 5 + int.from_bytes(data[1:5], "big")
            found.append(data[5:end])
            data = data[end:]
        return found

    def goaway(self) -> tuple[int, bytes] | None:
        """Wait for the end of the connection. Return the code and reason, if the server gave one."""
        while self.read():
            pass
        found = [payload for kind, _, _, payload in self.received if kind == h2.GOAWAY]
        return (int.from_bytes(found[-1][4:8], "big"), found[-1][8:]) if found else None
