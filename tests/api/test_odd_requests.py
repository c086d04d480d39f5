"""Requests that nobody means well with, or that a client of another make writes in its own way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from api.admission import Standing
from api.hot import KeyExchange
from api.protocol import BoundedProtocol
from rsm.client import Client
from rsm.quality import Held
from tests.api.gateways import Place, ask, connected, connections_of, healthy, problem, raw
from tests.api.test_connections import LAST, get, noted, put, statuses
from tests.rsm.test_replica import until

UPGRADE = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
JSON = b"content-type: application/json\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
MIB = 1 << 20


def put_with(key: bytes, headers: bytes, body: bytes) -> bytes:
    return b"PUT /v1/kv/%s HTTP/1.1\r\nhost: localhost\r\n%s\r\n%s" % (key, headers, body)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@asynccontextmanager
async def refused(place: Place) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that was told to come back later, for the only place is taken."""
    admission = place.gateway.parts.admission
    taken = admission.enter(Standing())
    async with connected(place) as (reader, writer):
        writer.write(get(b"k"))
        assert b" 429 " in await reader.readuntil(b"\r\n")
        yield reader, writer
    admission.leave(taken, None, 0.0)


# -- other protocols -----------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_when_a_request_asks_for_another_protocol_then_its_body_and_what_follows_are_read_all_the_same(
    step: int,
) -> None:
    async def check(place: Place) -> None:
        requests = (
            put_with(b"a", UPGRADE + b"content-length: 5\r\n", b"hello"),
            put_with(b"b", UPGRADE + CHUNKED, chunk(b"hel") + chunk(b"lo") + b"0\r\n\r\n"),
            put_with(b"c", UPGRADE + b"content-length: 0\r\n", b""),
            put_with(b"d", UPGRADE + b"content-length: %d\r\n" % (len(get(b"a")) + 1), get(b"a") + b"X"),
            b"POST /v1/txn HTTP/1.1\r\n%s%scontent-length: 2\r\n\r\n{}" % (UPGRADE, JSON),
            get(b"a", UPGRADE.rstrip()),
            get(b"b"),
        )
        told = b"".join((*requests, LAST))
        answer = await raw(place, *(told[at : at + step] for at in range(0, len(told), step)))
        assert statuses(answer) == [201, 201, 201, 201, 200, 200, 200, 200], answer
        for key, value in ((b"a", b"hello"), (b"b", b"hello"), (b"c", b""), (b"d", get(b"a") + b"X")):
            assert (await place.http.get(f"/v1/kv/{key.decode()}")).content == value

    ask(check, sites=1)


# -- lengths -------------------------------------------------------------------------------------


def test_when_a_length_is_written_oddly_then_it_is_no_defect() -> None:
    async def check(place: Place) -> None:
        for said, status in (
            (b"5 \t", 201),
            (b"0" * 5000 + b"5", 200),
            (b"9999999999999999999", 413),
        ):
            line = b"content-length: %s\r\nconnection: close\r\n" % said
            assert statuses(await raw(place, put_with(b"k", line, b"hello"))) == [status]
        line = b"content-length: 9999999999999999999\r\nconnection: close\r\n"
        assert statuses(await raw(place, b"POST /v1/txn HTTP/1.1\r\n%s\r\n" % line)) == [413]

    ask(check, sites=1)


def test_when_a_value_comes_in_a_coding_that_is_not_undone_then_it_is_not_kept_so() -> None:
    async def check(place: Place) -> None:
        coded = put_with(b"k", b"transfer-encoding: gzip, chunked\r\n", chunk(b"\x1f\x8b") + b"0\r\n\r\n")
        assert statuses(await raw(place, coded + LAST)) == [415, 200]
        problem(await place.http.get("/v1/kv/k"), 404, "key_not_found")

    ask(check, sites=1)


# -- what nobody waits for -----------------------------------------------------------------------


def test_when_a_request_is_held_back_then_nothing_of_its_body_is_kept() -> None:
    async def check(place: Place) -> None:
        admission = place.gateway.parts.admission
        async with refused(place) as (reader, writer):
            writer.write(put_with(b"k", CHUNKED, chunk(b"x" * 1000)))
            await until(lambda: admission.held)
            (held,) = (each._current for each in connections_of(place) if each.standing.is_due)
            assert isinstance(held, KeyExchange)
            for _ in range(20):
                writer.write(chunk(b"x" * 100_000))
                await writer.drain()
            writer.write(b"0\r\n\r\n" + LAST)
            answer = await reader.read()
            assert statuses(answer)[-1] == 200
            assert sum(map(len, held._pieces)) <= 1000
        assert admission.under_way == 0

    ask(check, sites=1, requests_max=1)


def test_when_a_body_waits_behind_another_request_then_it_is_not_read_in_advance() -> None:
    async def check(place: Place) -> None:
        async with connected(place) as (_, writer):
            writer.write(
                b"GET /v1/watch HTTP/1.1\r\nhost: localhost\r\n\r\n" + put_with(b"k", CHUNKED, chunk(b"x"))
            )
            await until(lambda: place.gateway.parts.watches.count)
            for _ in range(300):
                writer.write(chunk(b"x" * 100_000))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(writer.drain(), 1)
            (waiting,) = (each.cycle for each in connections_of(place) if each.pipeline)
            assert isinstance(waiting, KeyExchange)
            assert sum(map(len, waiting._pieces)) < MIB
            writer.transport.abort()
        await healthy(place)

    ask(check, sites=1)


def test_when_a_client_that_is_held_back_goes_then_nothing_waits_for_it() -> None:
    async def check(place: Place) -> None:
        admission = place.gateway.parts.admission
        async with refused(place) as (_, writer):
            writer.write(get(b"k"))
            await until(lambda: admission.held)
        async with asyncio.timeout(0.5):
            await until(lambda: not admission.held)
        assert await noted(place) == {"GET 429": 1.0, "GET 499": 1.0}

    ask(check, sites=1, requests_max=1)


def test_when_it_stops_then_who_is_held_back_is_told_at_once() -> None:
    async def check(place: Place) -> None:
        admission = place.gateway.parts.admission
        async with refused(place) as (reader, writer):
            writer.write(get(b"k"))
            await until(lambda: admission.held)
            async with asyncio.timeout(0.5):
                await place.gateway.stop()
                await reader.readuntil(b"HTTP/1.1 503 ")
        assert admission.held == 0

    ask(check, sites=1, requests_max=1)


def test_when_too_many_wait_for_a_lock_then_who_is_refused_is_not_in_its_queue() -> None:
    async def check(place: Place) -> None:
        http = place.http
        first, second = [(await http.post("/v1/leases", json={"ttl": "60s"})).json()["id"] for _ in range(2)]
        assert (await http.post("/v1/locks/l", json={"lease": first})).status_code == 200
        answer = await http.post("/v1/locks/l", json={"lease": second, "wait": "10s"})
        problem(answer, 429, "overloaded")
        assert (await http.delete(f"/v1/locks/l?lease={first}")).status_code == 204
        problem(await http.get("/v1/locks/l"), 404, "lock_not_found")
        assert place.gateway.parts.admission.under_way == 0

    ask(check, sites=1, watches_max=0)


# -- ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("follower", [get(b"other", method=b"DELETE"), LAST])
def test_when_the_last_request_fails_in_mid_body_then_what_follows_is_not_begun(follower: bytes) -> None:
    async def check(place: Place) -> None:
        await place.http.put("/v1/kv/other", content=b"x")
        async with connected(place) as (reader, writer):
            begun = put_with(b"k", CHUNKED + b"connection: keep-alive\r\n", chunk(b"x" * MIB))
            writer.write(begun.replace(b"HTTP/1.1", b"HTTP/1.0", 1))  # the parser goes on
            await until(lambda: place.gateway.parts.admission.under_way)
            (under_way,) = (each._current for each in connections_of(place) if each._current.body_due)
            await until(lambda: under_way._size >= MIB)
            writer.write(chunk(b"x") + b"0\r\n\r\n" + follower)
            assert statuses(await reader.read()) == [413]
        assert (await place.http.get("/v1/kv/other")).status_code == 200
        assert place.gateway.parts.admission.under_way == 0
        assert await noted(place) == {"PUT 201": 1.0, "PUT 413": 1.0, "GET 200": 1.0}

    ask(check, sites=1)


def test_when_a_body_breaks_behind_its_answer_then_there_is_no_second_one() -> None:
    async def check(place: Place) -> None:
        async with connected(place) as (reader, writer):
            writer.write(put_with(b"k?nonsense=1", CHUNKED, chunk(b"x")))
            answer = await reader.readuntil(b"}")
            writer.write(b"this is no chunk\r\n\r\n")
            assert statuses(answer + await reader.read()) == [400]
        async with connected(place) as (reader, writer):
            writer.write(put_with(b"k?nonsense=1", CHUNKED, chunk(b"x") + b"0\r\n\r\n"))
            answer = await reader.readuntil(b"}")
            writer.write(b"this is no request\r\n\r\n")
            assert statuses(answer + await reader.read()) == [400, 400]

    ask(check, sites=1)


# -- clocks --------------------------------------------------------------------------------------


def test_when_half_a_head_follows_then_it_has_no_clock_while_others_are_under_way() -> None:
    async def check(place: Place) -> None:
        async with connected(place) as (reader, writer):
            writer.write(get(b"k?nonsense=1") + b"GET /v1/watch HTTP/1.1\r\nhost: localhost\r\n\r\nGET /half")
            await until(lambda: place.gateway.parts.watches.count)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.6):
                    await reader.readuntil(b"HTTP/1.1 408")
            await place.gateway.stop()
            assert statuses(await reader.read())[-1:] != [200], "a head that does not come is still told"

    ask(check, sites=1, head_s=0.2)


def test_when_a_value_came_slowly_then_its_call_has_all_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def held(*_: object) -> Held | None:
        await asyncio.sleep(0.6)
        return None

    monkeypatch.setattr(Client, "held", held)

    async def check(place: Place) -> None:
        request = put(b"k?qos=all", b"value")
        async with connected(place) as (reader, writer):
            writer.write(request[:-1])
            await until(lambda: place.gateway.parts.admission.under_way)
            writer.write(request[-1:])
            assert b" 201 " in await reader.readuntil(b"\r\n")

    ask(check, sites=1, body_s=0.3)


# -- what is learnt ------------------------------------------------------------------------------


def test_when_a_body_is_refused_then_its_time_counts_for_nothing() -> None:
    async def check(place: Place) -> None:
        answer = await place.http.post("/v1/txn", content=b"x" * 2000)
        problem(answer, 413, "too_large")
        concurrency = place.gateway.parts.admission._concurrency
        assert not concurrency._bases

    ask(check, sites=1, json_bytes_max=1024)


def test_when_an_answer_cannot_be_said_then_its_place_is_left_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def respond(connection: BoundedProtocol, exchange: KeyExchange, *_: object) -> None:
        exchange.response_complete = True
        connection.abort()
        raise RuntimeError("Cannot call write() after write_eof()")

    async def check(place: Place) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(BoundedProtocol, "respond", respond)
            assert await raw(place, put(b"k", b"v")) == b""
        assert place.gateway.parts.admission.under_way == 0
        assert await noted(place) == {"PUT 201": 1.0}

    ask(check, sites=1)
