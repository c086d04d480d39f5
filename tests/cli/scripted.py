"""An endpoint that answers as it is told: a bad day of a gateway cannot be ordered of a real one."""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, NamedTuple

DROP = "drop"  # the connection, without an answer
HANG = "hang"  # until the endpoint is closed


class Answer(NamedTuple):
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})
    broken: bool = False  # more was to come


class Seen(NamedTuple):
    line: str
    headers: dict[str, str]
    body: bytes
    at: float


def problem(status: int, code: str, detail: str = "so it is", **headers: str) -> Answer:
    said = {"title": "It is so", "status": status, "code": code, "detail": detail}
    return Answer(status, json.dumps(said).encode(), {"Content-Type": "application/problem+json", **headers})


def events(*said: tuple[str, dict[str, Any], str], broken: bool = True) -> Answer:
    """Kind, data and id of each; the id is left out where it is empty."""
    text = "".join(
        f"event: {kind}\n" + f"data: {json.dumps(data)}\n" + (f"id: {number}\n" if number else "") + "\n"
        for kind, data, number in said
    )
    return Answer(200, text.encode(), {"Content-Type": "text/event-stream"}, broken)


class Endpoint:
    def __init__(self, *script: Answer | str) -> None:
        self.seen: list[Seen] = []
        self._script = list(script)
        self._over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65_536)
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                heads = {name.lower(): value for name, value in self.headers.items()}
                endpoint.seen.append(Seen(self.requestline, heads, body, time.monotonic()))
                endpoint.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """As the script says; its last line goes for all that come later."""
        said = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if isinstance(said, str):
            if said == HANG:
                self._over.wait()
            handler.close_connection = True
            return
        handler.send_response(said.status)
        for name, value in said.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(said.body) + said.broken))
        handler.end_headers()
        handler.wfile.write(said.body)
        handler.close_connection |= said.broken

    def run(self) -> None:
        self._server.serve_forever(poll_interval=0.01)

    def close(self) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def endpoint(*script: Answer | str) -> Iterator[Endpoint]:
    served = Endpoint(*script)
    thread = threading.Thread(target=served.run)
    thread.start()
    try:
        yield served
    finally:
        served.close()
        thread.join()
