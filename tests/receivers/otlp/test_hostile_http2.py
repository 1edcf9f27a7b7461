"""Hostile HTTP/2 at the gRPC port: header blocks that are malformed, endless, or a decompression bomb.

Each affects at most its own connection or stream, and the receiver serves the next client. Memory is bounded, except
that gRPC's core keeps the parsed part of a header block that it refuses: most attacks therefore have few and small
headers.
"""

import contextlib
import resource
import socket
import struct
from dataclasses import replace

import grpc
import pytest
from fake_store import FakeStore, log_request

from quiver.receivers.otlp.grpc_receiver import SERVICES, OtlpGrpcReceiver
from quiver.receivers.settings import OtlpSettings

SETTINGS = OtlpSettings(listening_addr="127.0.0.1:0", workers=1, head_timeout_s=5.0)
EXPORT = f"/{SERVICES['logs']}/Export"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS_FRAME, PING, GOAWAY, CONTINUATION = 0, 1, 3, 4, 6, 7, 9
END_STREAM, END_HEADERS = 1, 4
MEMORY_BYTES_MAX = 192 * 1024 * 1024


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def integer(value, prefix_bits, first=0):
    """An HPACK integer (RFC 7541, section 5.1)."""
    most = (1 << prefix_bits) - 1
    if value < most:
        return bytes([first | value])
    out = [first | most]
    value -= most
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes([*out, value])


def text(value):
    return integer(len(value), 7) + value


def literal(name, value):
    """A header that is not added to the table."""
    return b"\x00" + text(name) + text(value)


def indexed(name, value):
    """A header that is added to the dynamic table."""
    return b"\x40" + text(name) + text(value)


REQUEST = (
    literal(b":method", b"POST")
    + literal(b":scheme", b"http")
    + literal(b":path", EXPORT.encode())
    + literal(b":authority", b"x")
    + literal(b"content-type", b"application/grpc")
    + literal(b"te", b"trailers")
)


def split(block, stream=1, size=16_384):
    """A header block as HEADERS and CONTINUATION frames."""
    parts = [block[at : at + size] for at in range(0, len(block), size)]
    last = len(parts) - 1
    return b"".join(
        frame(CONTINUATION if at else HEADERS, END_HEADERS if at == last else 0, stream, part)
        for at, part in enumerate(parts)
    )


def table_bomb():
    """One entry of 4,000 bytes in the table, then referred to 200,000 times: 800 MB of headers from 200 KB."""
    return split(REQUEST + indexed(b"a", b"x" * 3_900) + b"\xbe" * 200_000)


def endless_continuation():
    """50 MB of header block that never ends."""
    return frame(HEADERS, 0, 1, REQUEST) + frame(CONTINUATION, 0, 1, literal(b"a", b"x" * 16_000)) * 3_000


ATTACKS = {
    "an index outside of the tables": lambda: split(REQUEST + integer(4_000, 7, 0x80)),
    "index zero": lambda: split(REQUEST + b"\x80"),
    "an integer without end": lambda: split(REQUEST + b"\xff" + b"\x80" * 5_000 + b"\x01"),
    "a string longer than its block": lambda: split(REQUEST + b"\x00" + text(b"a") + integer(2**31, 7)),
    "bad Huffman code": lambda: split(REQUEST + b"\x00\x01a" + integer(8, 7, 0x80) + b"\xff" * 8),
    "a table larger than allowed": lambda: split(integer(2**30, 5, 0x20) + REQUEST),
    "many table sizes": lambda: split(b"\x20\x3f\xe1\x1f" * 20_000 + REQUEST),
    "one header of 10 MB": lambda: split(REQUEST + literal(b"a", b"x" * 10_000_000)),
    "50,000 headers": lambda: split(REQUEST + literal(b"a", b"") * 50_000),
    "a table bomb": table_bomb,
    "an endless continuation": endless_continuation,
    "a header block cut off by another frame": lambda: frame(HEADERS, 0, 1, REQUEST) + frame(DATA, 0, 1, b"x"),
    "a continuation without headers": lambda: frame(CONTINUATION, END_HEADERS, 1, REQUEST),
    "padding longer than the frame": lambda: frame(HEADERS, END_HEADERS | 8, 1, b"\xff" + REQUEST[:20]),
    "streams opened and reset": lambda: b"".join(
        frame(HEADERS, END_HEADERS, 2 * at + 1, REQUEST) + frame(RST_STREAM, 0, 2 * at + 1, struct.pack(">I", 8))
        for at in range(5_000)
    ),
    "a flood of settings": lambda: frame(SETTINGS_FRAME, 0, 0, struct.pack(">HI", 1, 4_096)) * 20_000,
    "a flood of pings": lambda: frame(PING, 0, 0, bytes(8)) * 20_000,
}


def attack(port, payload):
    """Send all that the receiver accepts, and wait until it has answered or closed the connection."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(PREFACE + frame(SETTINGS_FRAME, 0, 0))
        client.settimeout(2)
        client.sendall(payload)
        client.shutdown(socket.SHUT_WR)
        while client.recv(65_536):
            pass


@pytest.fixture(scope="module")
def receiver():
    with OtlpGrpcReceiver(FakeStore(), replace(SETTINGS)) as made:
        yield made


@pytest.mark.parametrize("name", ATTACKS)
def test_hostile_headers_only_affect_their_own_connection(receiver, name):
    payload = ATTACKS[name]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for _ in range(3):
        attack(receiver.port, payload)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    assert grown < MEMORY_BYTES_MAX
    with grpc.insecure_channel(f"127.0.0.1:{receiver.port}") as channel:
        assert channel.unary_unary(EXPORT)(log_request(), timeout=20) == b""
