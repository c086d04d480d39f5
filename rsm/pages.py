"""What a replica shows to whoever comes by: pages over HTTP, on a port or on a socket in the file system.

No more of HTTP than scrapers, probes and ``curl`` use: one request for each connection, ``GET`` and ``HEAD``,
no body. It runs in the replica's event loop, so all of it is bounded: connections, bytes and time. Who sends
anything else is told so in a word, and nothing is logged: others must not be able to fill a disk.
"""

import asyncio
import os
import socket
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from rsm.logs import Throttle, logger

log = logger(__name__)

CONNECTIONS_MAX: Final = 16
REQUEST_BYTES_MAX: Final = 8_192
SECONDS_MAX: Final = 5.0
SAID_AGAIN_S: Final = 60.0
_PRIVATE: Final = stat.S_IRUSR | stat.S_IWUSR
_PATH_BYTES_MAX: Final = 100  # what every system has room for in the address of a local socket


class Page(msgspec.Struct, frozen=True):
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


Headers: TypeAlias = Mapping[str, str]
Maker: TypeAlias = Callable[[Headers], Page]


class Pages:
    """``makers`` has a function for each path. It is called with the request's headers, in the loop."""

    def __init__(self, makers: Mapping[str, Maker]) -> None:
        self._makers = makers
        self._throttle = Throttle(SAID_AGAIN_S)
        self._servers: list[asyncio.Server] = []
        self._under_way: dict[asyncio.Task[object], None] = {}
        self._local: tuple[Path, int] | None = None  # the socket's path and inode
        self.port = 0  # of the last ``listen``

    async def listen(self, host: str, port: int) -> int:
        """On a TCP port; returns which, where 0 was asked for."""
        server = await asyncio.start_server(self._meet, host, port, limit=REQUEST_BYTES_MAX)
        self._servers.append(server)
        self.port = server.sockets[0].getsockname()[1]
        return self.port

    async def listen_locally(self, path: Path) -> None:
        """On a socket in the file system, for this user alone. What a dead process has left there goes."""
        with suppress(FileNotFoundError):
            path.unlink()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _at(path, sock.bind)
            path.chmod(_PRIVATE)  # nobody can connect before ``listen``
            server = await asyncio.start_unix_server(self._meet, sock=sock, limit=REQUEST_BYTES_MAX)
        except BaseException:
            sock.close()
            raise
        self._servers.append(server)
        self._local = path, path.stat().st_ino

    async def close(self) -> None:
        self._unlink()
        for server in self._servers:
            server.close()
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        for server in self._servers:
            await server.wait_closed()

    def _unlink(self) -> None:
        """Before our socket is closed, for then its inode may be another's. Who came after us has a socket of
        its own in this place."""
        if self._local is not None:
            path, inode = self._local
            with suppress(OSError):
                if path.stat().st_ino == inode:
                    path.unlink()

    # -- one connection --------------------------------------------------------------------------

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._under_way) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._under_way[task] = None
        try:
            async with asyncio.timeout(SECONDS_MAX):
                writer.write(self._answer(await reader.readuntil(b"\r\n\r\n")))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass
        finally:
            del self._under_way[task]
            writer.transport.abort()

    def _answer(self, request: bytes) -> bytes:
        try:
            first, *lines = request.decode("ascii").split("\r\n")
            method, target, version = first.split(" ")
        except ValueError:
            return _response(_error(HTTPStatus.BAD_REQUEST))
        if not version.startswith("HTTP/1."):
            return _response(_error(HTTPStatus.BAD_REQUEST))
        if method not in {"GET", "HEAD"}:
            return _response(_error(HTTPStatus.METHOD_NOT_ALLOWED))
        maker = self._makers.get(target.partition("?")[0])
        if maker is None:
            return _response(_error(HTTPStatus.NOT_FOUND))
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, colon, value in pairs if colon}
        try:
            page = maker(headers)
        except Exception:  # a defect of a page is none of the replica's
            if (fields := self._throttle.admits(maker)) is not None:
                log.exception("a page could not be made", **fields)
            page = _error(HTTPStatus.INTERNAL_SERVER_ERROR)
        return _response(page, headers_only=method == "HEAD")


def _error(status: HTTPStatus) -> Page:
    return Page(f"{status.phrase}\n".encode(), status=status)


def _response(page: Page, *, headers_only: bool = False) -> bytes:
    lines = [
        f"HTTP/1.1 {page.status.value} {page.status.phrase}",
        f"Content-Type: {page.content_type}",
        f"Content-Length: {len(page.body)}",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    if page.status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    head = "\r\n".join([*lines, "", ""]).encode("ascii")
    return head if headers_only else head + page.body


# -- asking --------------------------------------------------------------------------------------


def fetch_locally(path: Path, page: str, accept: str = "application/json") -> bytes:
    """A page of a replica on this machine, by its local socket. Raises ``OSError``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(SECONDS_MAX)
        _at(path, sock.connect)
        sock.sendall(f"GET {page} HTTP/1.1\r\nHost: local\r\nAccept: {accept}\r\n\r\n".encode("ascii"))
        received = bytearray()
        while chunk := sock.recv(65_536):
            received += chunk
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise ConnectionError(
            f"{path}: {head.partition(bytes([13]))[0].decode('ascii', 'replace') or 'no answer'}"
        )
    return body


def _at(path: Path, use: Callable[[str], None]) -> None:
    """The address of a local socket has little room. A long path is said by way of its open directory."""
    if len(os.fsencode(path)) <= _PATH_BYTES_MAX:
        use(str(path))
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        use(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
