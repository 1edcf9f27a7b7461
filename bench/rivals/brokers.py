"""
What topics are measured against: a bare framed log, NATS JetStream, Redis streams.

The servers are started for one run each, on free ports, and stopped behind it. Clients are what a Python program has:
for NATS its own, for Redis the protocol itself, pipelined, which is less work than any client does.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from isal.isal_zlib import crc32

_HEADER = struct.Struct("<QII")
_U64 = struct.Struct("<Q")
_TWO = struct.Struct("<QQ")
_HEAD = bytes(16) + _U64.pack(15) + b"/default/orders" + _U64.pack(0)
_TAIL = _U64.pack(0) + b"\0" + _U64.pack(0)

INTERVAL_S = 5.0
BATCH_BYTES = 10 << 20
"""The document's two thresholds, for the bare log too."""

START_S = 20.0


class BareTopic:
    """
    The least a topic can do: the very bytes of its frames, one write, a sync by interval and size or behind each
    write.
    """

    def __init__(self, directory: Path, *, sync_each: bool) -> None:
        self.path = directory / "log"
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT)
        self.at = self.offset = 0
        self.sync_each = sync_each
        self._synced = 0
        self._due = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._sync_often, daemon=True)
        self._thread.start()

    def _sync_often(self) -> None:
        while not self._stopping:
            self._due.wait(INTERVAL_S)
            self._due.clear()
            os.fdatasync(self.fd)

    def _wrote(self) -> None:
        if self.sync_each:
            os.fdatasync(self.fd)
        elif self.at - self._synced >= BATCH_BYTES:
            self._synced = self.at
            self._due.set()

    def _frame(self, payload: bytes) -> tuple[bytes, bytes]:
        offset = self.offset
        time_ms = time.time_ns() // 1_000_000
        body = b"".join((_HEAD, _TWO.pack(offset, len(payload)), payload, _U64.pack(time_ms), _TAIL))
        self.offset = offset + 1
        return _HEADER.pack(offset, len(body), crc32(body)), body

    def append(self, payload: bytes) -> None:
        self.at += os.pwritev(self.fd, self._frame(payload), self.at)
        self._wrote()

    def append_batch(self, payloads: list[bytes]) -> None:
        frames = b"".join(part for payload in payloads for part in self._frame(payload))
        self.at += os.pwrite(self.fd, frames, self.at)
        self._wrote()

    def read(self) -> int:
        whole = memoryview(self.path.read_bytes())
        at = count = 0
        while at < len(whole):
            _, length, checksum = _HEADER.unpack_from(whole, at)
            body = bytes(whole[at + 16 : at + 16 + length])
            if crc32(body) != checksum:
                raise ValueError(f"{self.path}: damaged at {at}")
            at += 16 + length
            count += 1
        return count

    def close(self) -> None:
        self._stopping = True
        self._due.set()
        self._thread.join()
        os.fdatasync(self.fd)
        os.close(self.fd)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server process that is ready when its port answers."""

    def __init__(self, command: list[str], port: int) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    self.stop()
                    raise
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class RedisStream:
    """`XADD` to one stream of a Redis server with an append-only file."""

    def __init__(self, directory: Path, *, sync_each: bool) -> None:
        port = free_port()
        self.server = Server(
            [
                "redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes",
                "--appendfsync", "always" if sync_each else "everysec", "--dir", str(directory),
            ],
            port,
        )  # fmt: skip
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.answers = self.socket.makefile("rb")

    @staticmethod
    def available() -> bool:
        return shutil.which("redis-server") is not None

    @staticmethod
    def _command(payload: bytes) -> bytes:
        return b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\np\r\n$%d\r\n%s\r\n" % (len(payload), payload)

    def append(self, payload: bytes) -> None:
        self.append_batch([payload])

    def append_batch(self, payloads: list[bytes]) -> None:
        self.socket.sendall(b"".join(map(self._command, payloads)))
        for _ in payloads:
            size = self.answers.readline()
            if not size.startswith(b"$"):
                raise RuntimeError(f"redis answered {size!r}")
            self.answers.readline()

    def close(self) -> None:
        self.answers.close()
        self.socket.close()
        self.server.stop()


class NatsStream:
    """A JetStream stream on files; a batch is published without waiting in between, and then waited for."""

    def __init__(self, directory: Path, *, sync_each: bool) -> None:
        port = free_port()
        config = directory / "nats.conf"
        interval = "always" if sync_each else f"{INTERVAL_S:.0f}s"
        config.write_text(
            f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{directory}/js", sync_interval: "{interval}" }}\n'
        )
        self.server = Server([self._program() or "nats-server", "-c", str(config)], port)
        self.loop = asyncio.new_event_loop()
        self.client: Any = None
        self.stream: Any = None
        self.loop.run_until_complete(self._connect(port))

    @staticmethod
    def _program() -> str | None:
        beside = Path(sys.executable).parent / "nats-server"
        return str(beside) if beside.exists() else shutil.which("nats-server")

    @classmethod
    def available(cls) -> bool:
        try:
            import nats  # noqa: F401
        except ImportError:
            return False
        return cls._program() is not None

    async def _connect(self, port: int) -> None:
        import nats

        self.client = await nats.connect(f"nats://127.0.0.1:{port}")
        self.stream = self.client.jetstream()
        await self.stream.add_stream(name="orders", subjects=["orders"])

    def append(self, payload: bytes) -> None:
        self.loop.run_until_complete(self.stream.publish("orders", payload))

    def append_batch(self, payloads: list[bytes]) -> None:
        self.loop.run_until_complete(self._publish(payloads))

    async def _publish(self, payloads: list[bytes]) -> None:
        await asyncio.gather(*(self.stream.publish("orders", payload, timeout=60) for payload in payloads))

    def close(self) -> None:
        self.loop.run_until_complete(self.client.close())
        self.loop.close()
        self.server.stop()
