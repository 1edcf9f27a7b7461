"""
A QWP server that takes messages and confirms them, and does nothing else: the far side of `bench/qwp.py`.

It runs in a process of its own, prints its port, and ends when its input does. Payloads are passed over unread, so
that the figures are those of the senders.
"""

from __future__ import annotations

import base64
import hashlib
import socket
import struct
import sys
import threading

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
RECEIVE_BYTES = 1 << 20


def shake_hands(connection: socket.socket) -> None:
    request = b""
    while b"\r\n\r\n" not in request:
        request += connection.recv(4096)
    lines = request.split(b"\r\n")
    key = next(line.split(b":", 1)[1].strip() for line in lines if line.lower().startswith(b"sec-websocket-key"))
    accept = base64.b64encode(hashlib.sha1(key + GUID).digest())
    connection.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX-QWP-Version: 1\r\n"
        b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
    )


def serve(connection: socket.socket) -> None:
    shake_hands(connection)
    buffer = bytearray(RECEIVE_BYTES)
    head = bytearray()
    left = 0  # bytes of a message that are still to come
    messages = confirmed = 0
    while size := connection.recv_into(buffer):
        view = memoryview(buffer)[:size]
        while view:
            if left:
                step = min(left, len(view))
                left -= step
                view = view[step:]
                messages += left == 0
                continue
            need = 14 - len(head)
            head += view[:need]
            length, skip = head[1] & 0x7F, 6
            if length == 126:
                skip = 8
            elif length == 127:
                skip = 14
            if len(head) < skip:
                break
            if head[0] & 0x0F == 8:
                return
            if length == 126:
                length = struct.unpack_from(">H", head, 2)[0]
            elif length == 127:
                length = struct.unpack_from(">Q", head, 2)[0]
            view = view[need - (len(head) - skip) if len(head) > skip else need :]
            head.clear()
            left = length
            messages += left == 0
        if messages > confirmed:
            confirmed = messages
            connection.sendall(b"\x82\x0b\x00" + struct.pack("<qH", confirmed - 1, 0))


def listen(server: socket.socket) -> None:
    while True:
        connection, _ = server.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=attend, args=(connection,), daemon=True).start()


def attend(connection: socket.socket) -> None:
    with connection:
        try:
            serve(connection)
        except OSError:
            return


def main() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        print(server.getsockname()[1], flush=True)
        threading.Thread(target=listen, args=(server,), daemon=True).start()
        sys.stdin.read()


if __name__ == "__main__":
    main()
