"""Helpers for tests of the QWP receiver: messages, plain clients, stored rows, and a proxy that loses answers."""

import socket
import threading
from contextlib import contextmanager, suppress

from websockets.sync.client import connect

import quiver
from quiver.bundle import QWP_SLOT
from quiver.observe import InMemoryObserver
from quiver.primitives.scan import Frame
from quiver.qwp.rows import RowTable
from quiver.qwp.wire.decoded import TABLE_KEY
from quiver.qwp.wire.message import encode_message
from quiver.qwp.wire.responses import decode_response
from quiver.receivers.qwp.receiver import QwpReceiver
from quiver.receivers.qwp.settings import QwpSettings

HERE = QwpSettings(listening_addr="127.0.0.1:0")


@contextmanager
def receiving(store, settings=HERE):
    with QwpReceiver(store, settings, observer=InMemoryObserver()) as receiver:
        yield receiver


def rows_of(store):
    """Return (table, row) of all stored rows, in order."""
    return [
        (bundle[QWP_SLOT].schema.metadata[TABLE_KEY].decode(), row)
        for _, bundle in quiver.read(store.path).bundles()
        if QWP_SLOT in bundle.slots
        for row in bundle[QWP_SLOT].to_pylist()
    ]


def values_of(store, table="t"):
    return [row["v"] for name, row in rows_of(store) if name == table]


def message(*values, table="t", at=1000, flags=0):
    """A message of one table; *at* None means the server's time."""
    made = RowTable(table)
    for number, value in enumerate(values):
        made.append({"s": f"S{value}"}, {"v": value}, None if at is None else at + number, bytes_max=10_000)
    data = bytearray(encode_message([made.pack()]))
    data[5] |= flags
    return bytes(data)


@contextmanager
def client(receiver, path="/write/v4", **options):
    with connect(
        f"ws://127.0.0.1:{receiver.port}{path}", compression=None, max_size=None, close_timeout=2, **options
    ) as connection:
        yield connection


def answer(connection):
    found = decode_response(memoryview(connection.recv(10)))
    assert isinstance(found, Frame)
    return found.value


def send(connection, data):
    connection.send(data)
    return answer(connection)


def drop(connection):
    connection.socket.shutdown(socket.SHUT_RDWR)


class LossyProxy:
    """
    A proxy between a client and *port* that can lose what the server answers.

    On a connection that lost an answer all later ones are lost, too; a new connection starts without loss.
    """

    def __init__(self, port):
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.loses_answers_from = None
        """On every connection, the first answer that begins with these bytes is lost."""
        self.accepted = 0
        self._lossy = set()
        self._pairs = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self):
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self.accepted += 1
                self._pairs.append((near, far))
                for source, target, is_answer in ((near, far, False), (far, near, True)):
                    thread = threading.Thread(target=self._pump, args=(source, target, is_answer), daemon=True)
                    thread.start()
                    self._threads.append(thread)

    def _pump(self, source, target, is_answer):
        with suppress(OSError):
            while data := source.recv(65536):
                if is_answer and self.loses_answers_from is not None and data.startswith(self.loses_answers_from):
                    self._lossy.add(source)
                if source not in self._lossy:
                    target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    @property
    def lossy_connections(self):
        """The number of connections, open or closed, that lose answers."""
        return len(self._lossy)

    def lose_answers(self):
        """Lose all further answers on the connections that were accepted until now."""
        self._lossy.update(far for _, far in self._pairs)

    def cut(self):
        """Close all connections in order, from the view of both sides."""
        for pair in self._pairs:
            for one in pair:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(5)
        for pair in self._pairs:
            for one in pair:
                one.close()
