"""A server that answers as a test tells it to, byte by byte."""

import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from bench.http_load import Address

# Gets the number of the request, its bytes and the connection; tells whether to go on with that.
Answer = Callable[[int, bytes, socket.socket], bool]

_RESET = struct.pack("ii", 1, 0)


def answered(body: bytes = b"", status: int = 200, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def always(answer: bytes) -> Answer:
    return lambda number, asked, client: send(client, answer)


def send(client: socket.socket, data: bytes) -> bool:
    client.sendall(data)
    return True


def reset(client: socket.socket) -> bool:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    client.close()
    return False


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _Client)
        self.answer = answer
        self.numbers = count()
        self.opened = 0
        self.asked: list[bytes] = []

    @property
    def address(self) -> Address:
        return ("127.0.0.1", self.server_address[1])


class _Client(socketserver.BaseRequestHandler):
    server: Server

    def handle(self) -> None:
        self.server.opened += 1
        waiting = b""
        while True:
            while b"\r\n\r\n" not in waiting:
                if not (data := self._receive()):
                    return
                waiting += data
            head, _, rest = waiting.partition(b"\r\n\r\n")
            length = _length(head)
            while len(rest) < length:
                if not (data := self._receive()):
                    return
                rest += data
            asked, waiting = head + b"\r\n\r\n" + rest[:length], rest[length:]
            self.server.asked.append(asked)
            if not self.server.answer(next(self.server.numbers), asked, self.request):
                return

    def _receive(self) -> bytes:
        try:
            data: bytes = self.request.recv(65_536)
        except OSError:
            return b""
        return data


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


@contextmanager
def serving(answer: Answer) -> Iterator[Server]:
    with Server(answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
