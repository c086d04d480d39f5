"""Pages over HTTP: what is served, to whom, and that nobody can hold it up."""

import asyncio
import socket
import stat
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path

import pytest

from rsm import pages
from rsm.pages import CONNECTIONS_MAX, REQUEST_BYTES_MAX, Headers, Page, Pages, fetch_locally
from tests.rsm.test_replica import play


def hello(headers: Headers) -> Page:
    return Page(f"hello {headers.get('accept', 'you')}\n".encode())


def broken(_: Headers) -> Page:
    raise KeyError("a defect")


@asynccontextmanager
async def served() -> AsyncIterator[Pages]:
    shown = Pages({"/hello": hello, "/broken": broken})
    await shown.listen("127.0.0.1", 0)
    try:
        yield shown
    finally:
        await shown.close()


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


def get(target: str, method: str = "GET", version: str = "HTTP/1.1") -> bytes:
    return f"{method} {target} {version}\r\nHost: x\r\nAccept: plain\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (get("/hello"), 200, b"hello plain\n"),
        (get("/hello?verbose=1"), 200, b"hello plain\n"),
        (get("/hello", "HEAD"), 200, b""),
        (get("/nothing"), 404, b"Not Found\n"),
        (get("/hello", "POST"), 405, b"Method Not Allowed\n"),
        (get("/broken"), 500, b"Internal Server Error\n"),
        (get("/hello", version="HTTP/2"), 400, b"Bad Request\n"),
        (b"\x16\x03\x01 is TLS\r\n\r\n", 400, b"Bad Request\n"),
        (b"\xff\xfe\r\n\r\n", 400, b"Bad Request\n"),
    ],
)
def test_what_is_asked_is_answered_or_refused_in_a_word(request_: bytes, status: int, body: bytes) -> None:
    async def main() -> None:
        async with served() as shown:
            head, _, got = (await ask(shown.port, request_)).partition(b"\r\n\r\n")
            assert head.startswith(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode())
            assert got == body
            assert b"Connection: close" in head

    play(main())


def test_when_a_request_never_ends_then_it_is_given_up_and_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "SECONDS_MAX", 0.2)

    async def main() -> None:
        async with served() as shown:
            reader, writer = await asyncio.open_connection("127.0.0.1", shown.port)
            writer.write(b"GET /hello HTTP/1.1\r\n")
            assert b"200 OK" in await ask(shown.port, get("/hello"))
            with suppress(ConnectionError):  # it is not even said good-bye
                assert await reader.read() == b""
            writer.close()

    play(main())


def test_when_a_request_is_too_long_then_it_is_cut_off() -> None:
    async def main() -> None:
        async with served() as shown:
            reader, writer = await asyncio.open_connection("127.0.0.1", shown.port)
            with suppress(ConnectionError):
                writer.write(b"GET /hello HTTP/1.1\r\nX: " + b"a" * (4 * REQUEST_BYTES_MAX))
                assert await reader.read() == b""
            writer.close()
            assert b"200 OK" in await ask(shown.port, get("/hello"))

    play(main())


def test_when_too_many_come_at_once_then_the_rest_is_turned_away_until_some_have_gone() -> None:
    async def main() -> None:
        async with served() as shown:
            held = [await asyncio.open_connection("127.0.0.1", shown.port) for _ in range(CONNECTIONS_MAX)]
            while len(shown._under_way) < CONNECTIONS_MAX:
                await asyncio.sleep(0)
            reader, writer = await asyncio.open_connection("127.0.0.1", shown.port)
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            for _, other in held:
                other.close()
            while shown._under_way:
                await asyncio.sleep(0)
            assert b"200 OK" in await ask(shown.port, get("/hello"))

    play(main())


def test_when_it_is_closed_then_connections_under_way_end(tmp_path: Path) -> None:
    async def main() -> None:
        shown = Pages({"/hello": hello})
        await shown.listen("127.0.0.1", 0)
        await shown.listen_locally(tmp_path / "s.sock")
        _, writer = await asyncio.open_connection("127.0.0.1", shown.port)
        while not shown._under_way:
            await asyncio.sleep(0)
        await shown.close()
        assert not (tmp_path / "s.sock").exists()
        with pytest.raises(ConnectionError):
            await ask(shown.port, get("/hello"))
        writer.close()

    play(main())


@pytest.mark.parametrize("depth", [0, 12], ids=["short", "longer than an address has room for"])
def test_a_local_socket_is_for_its_owner_alone_and_replaces_a_dead_one(tmp_path: Path, depth: int) -> None:
    directory = tmp_path.joinpath(*["a-long-name-of-a-directory"] * depth)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "status.sock"
    path.touch()

    async def main() -> None:
        shown = Pages({"/hello": hello})
        await shown.listen_locally(path)
        try:
            assert stat.S_ISSOCK(path.stat().st_mode)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert await asyncio.to_thread(fetch_locally, path, "/hello", "json") == b"hello json\n"
            with pytest.raises(ConnectionError, match="404"):
                await asyncio.to_thread(fetch_locally, path, "/other")
        finally:
            await shown.close()
        with pytest.raises(FileNotFoundError):
            await asyncio.to_thread(fetch_locally, path, "/hello")

    play(main())


def test_when_whoever_is_asked_locally_says_nothing_then_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        pages._at(path, silent.bind)
        silent.listen()

        def shut() -> None:
            silent.accept()[0].close()

        closer = threading.Thread(target=shut)
        closer.start()
        with pytest.raises(ConnectionError):
            fetch_locally(path, "/status")
        closer.join()


def test_when_the_next_process_is_there_before_the_last_is_gone_then_its_socket_stays(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        path = tmp_path / "s.sock"
        last, following = Pages({}), Pages({"/hello": hello})
        await last.listen_locally(path)
        await following.listen_locally(path)
        await last.close()
        try:
            assert path.exists()
            assert await asyncio.to_thread(fetch_locally, path, "/hello", "x") == b"hello x\n"
        finally:
            await following.close()
        assert not path.exists()

    play(main())
