"""A relay between users and a gateway that does not tell the truth."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import urlsplit

import msgspec

EVERY = 10  # one of so many is a lie
_HOP = frozenset({"connection", "transfer-encoding", "content-length", "host"})


class Relay(BaseHTTPRequestHandler):
    """Honest, but for what a subclass makes of ``carry``."""

    protocol_version = "HTTP/1.1"
    upstream: ClassVar[str]
    lock: ClassVar[threading.Lock] = threading.Lock()
    counted: ClassVar[int] = 0

    def log_message(self, *_: Any) -> None:
        pass

    @classmethod
    def turn(cls) -> bool:
        with cls.lock:
            cls.counted += 1
            return cls.counted % EVERY == 0

    def handle_one(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.carry(body)

    do_GET = do_PUT = do_POST = do_DELETE = handle_one  # noqa: N815 - as the library calls them

    def ask(self, body: bytes) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self.upstream, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        connection.request(self.command, self.path, body or None, headers)
        return connection, connection.getresponse()

    def carry(self, body: bytes) -> None:
        connection, answer = self.ask(body)
        if answer.getheader("content-type", "").startswith("text/event-stream"):
            self._stream(answer)
        else:
            self.answer(answer.status, dict(answer.getheaders()), answer.read())
        connection.close()

    def _stream(self, answer: http.client.HTTPResponse) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        while data := answer.read1(65_536):
            try:
                self.wfile.write(data)
            except OSError:
                return

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in {*_HOP, "server", "date"}:
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Forgets(Relay):
    """Says that a value was written, and has not written it."""

    def carry(self, body: bytes) -> None:
        if self.command != "PUT" or b":" not in body[:20] or "If-Match" in self.headers or not self.turn():
            return super().carry(body)
        connection = http.client.HTTPConnection(self.upstream, timeout=60)
        connection.request("GET", "/v1/kv/nothing")
        slot = int(connection.getresponse().getheader("x-rsm-timestamp", "0")) + 1
        connection.close()
        headers = {"ETag": f'"{slot}"', "X-Rsm-Timestamp": str(slot), "Content-Type": "application/json"}
        told = {"revision": slot, "created": slot, "version": 1}
        return self.answer(201, headers, msgspec.json.encode(told))


class Remembers(Relay):
    """Answers a read with what it was told when the key was read first, as if that were so now."""

    first: ClassVar[dict[str, tuple[dict[str, str], bytes]]]

    def carry(self, body: bytes) -> None:
        if self.command != "GET" or not self.path.startswith("/v1/kv/"):
            return super().carry(body)
        connection, answer = self.ask(body)
        now, content = dict(answer.getheaders()), answer.read()
        connection.close()
        if answer.status == 200:
            old, old_content = self.first.setdefault(self.path, (now, content))
            if self.turn():
                stamp = {name: value for name, value in now.items() if name.lower() == "x-rsm-timestamp"}
                kept = {name: value for name, value in old.items() if name.lower() != "x-rsm-timestamp"}
                now, content = kept | stamp, old_content
        return self.answer(answer.status, now, content)


class Fails(Relay):
    """No liar: it refuses some requests for a moment, and loses the answers to others."""

    def carry(self, body: bytes) -> None:
        if self.path.startswith("/v1/watch") or self.path.startswith("/v1/cluster") or not self.turn():
            return super().carry(body)
        if self.counted % (2 * EVERY):
            headers = {"Retry-After": "0.2", "Content-Type": "application/problem+json"}
            return self.answer(503, headers, b'{"code": "no_primary", "status": 503}')
        connection, answer = self.ask(body)
        answer.read()
        connection.close()
        self.close_connection = True
        return None


@contextmanager
def relaying(kind: type[Relay], endpoint: str) -> Iterator[str]:
    """Its endpoint."""
    bound = type(kind.__name__, (kind,), {"upstream": urlsplit(endpoint).netloc, "first": {}, "counted": 0})
    server = ThreadingHTTPServer(("127.0.0.1", 0), bound)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
