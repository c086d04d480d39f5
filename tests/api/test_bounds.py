"""Who sends too much, too slowly, or takes nothing, is told so or left; nobody else is disturbed."""

import asyncio
import gc
import json
from types import FrameType

import httpx2

from api.admission import RETRY_MAX_S, RETRY_S, Standing
from api.app import Gateway
from api.hot import KeyExchange
from api.protocol import LINGER_BYTES
from tests.api.gateways import (
    Place,
    ask,
    connected,
    connections_of,
    gateway_of,
    healthy,
    problem,
    raw,
)
from tests.rsm.test_replica import play, until


def told(answer: bytes) -> tuple[int, str]:
    """Status and code of a problem, as it came over the wire."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head, answer[:300]
    return int(head.split()[1]), json.loads(body)["code"]


def test_when_a_head_comes_too_slowly_or_is_too_large_or_is_no_http_then_it_is_told_and_left() -> None:
    async def check(place: Place) -> None:
        assert told(await raw(place, b"GET /livez HTTP/1.1\r\nhost:")) == (408, "too_slow")
        assert await raw(place) == b""
        large = b"GET /livez HTTP/1.1\r\nx: " + b"y" * 70_000 + b"\r\n\r\n"
        assert told(await raw(place, large)) == (431, "headers_too_large")
        endless = [b"GET /livez HTTP/1.1\r\nx: ", *[b"y" * 30_000] * 4]
        assert told(await raw(place, *endless)) == (431, "headers_too_large")
        many = b"GET /livez HTTP/1.1\r\n" + b"".join(b"x%d: y\r\n" % n for n in range(20_000))
        assert told(await raw(place, many)) == (431, "headers_too_large")
        assert told(await raw(place, b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n")) == (
            431,
            "headers_too_large",
        )
        assert told(await raw(place, b"hello\r\n\r\n")) == (400, "bad_request")
        assert told(await raw(place, b"GET /v1/kv/\xff HTTP/1.1\r\n\r\n")) == (400, "bad_request")
        await healthy(place)

    ask(check, head_s=0.3)


def test_when_a_body_stops_coming_then_it_is_told_and_a_slow_one_that_keeps_coming_is_taken() -> None:
    async def check(place: Place) -> None:
        head = b"PUT /v1/kv/k HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 100\r\n\r\n"
        assert told(await raw(place, head, b"x" * 50)) == (408, "too_slow")
        assert told(await raw(place, head.replace(b"kv/k", b"txn").replace(b"PUT", b"POST"))) == (
            408,
            "too_slow",
        )
        slow = await raw(place, head, *[b"x" * 20] * 5, pause=0.1)
        assert slow.startswith(b"HTTP/1.1 201")
        assert (await place.http.get("/v1/kv/k")).content == b"x" * 100
        await healthy(place)

    ask(check, body_s=0.3, body_bytes_per_s_min=100)


def test_when_a_body_is_larger_than_said_or_has_no_length_then_it_is_counted_as_it_comes() -> None:
    async def check(place: Place) -> None:
        head = b"PUT /v1/kv/k HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        assert told(await raw(place, head + b"content-length: 99999999999\r\n\r\n"))[0] == 413
        chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
        chunked = await raw(place, head + b"transfer-encoding: chunked\r\n\r\n", *[chunk] * 20)
        assert told(chunked) == (413, "too_large")
        json = head.replace(b"kv/k", b"txn").replace(b"PUT", b"POST")
        assert told(await raw(place, json + b"content-length: 99999999\r\n\r\n"))[0] == 413
        found = await raw(place, head + b"content-length: 1\r\n\r\nxGARBAGE")
        assert found.startswith(b"HTTP/1.1 201")
        assert b"400" not in found.split(b"\r\n")[0]
        await healthy(place)

    ask(check)


def test_when_a_refused_body_goes_on_then_the_answer_can_be_read_and_the_rest_is_thrown_away() -> None:
    async def check(place: Place) -> None:
        too_large = bytes((1 << 20) + 1)
        for _ in range(3):
            problem(await place.http.put("/v1/kv/k", content=too_large), 413, "too_large")
        problem(await place.http.put("/v1/kv/k?what=1", content=bytes(100_000)), 400, "bad_request")
        assert (await place.http.put("/v1/kv/k", content=b"v")).status_code == 201
        reader, writer = await asyncio.open_connection(place.serving.host, place.serving.port)
        writer.write(b"PUT /v1/kv/k HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999999999\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 413")
        sent = 0
        try:
            while sent < 4 * LINGER_BYTES:
                writer.write(bytes(1 << 20))
                await writer.drain()
                sent += 1 << 20
        except OSError:
            pass
        assert sent < 4 * LINGER_BYTES, "it would have taken anything"
        writer.close()
        await healthy(place)

    ask(check)


def test_when_a_client_asks_before_it_sends_a_body_then_it_is_told_at_once() -> None:
    async def check(place: Place) -> None:
        head = b"PUT /v1/kv/k HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\nconnection: close\r\n"
        refused = await raw(place, head + b"content-length: 99999999\r\n\r\n")
        assert refused.startswith(b"HTTP/1.1 413")
        async with connected(place) as (reader, writer):
            writer.write(head + b"content-length: 2\r\n\r\n")
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"ab")
            assert (await reader.read()).startswith(b"HTTP/1.1 201")

    ask(check, sites=1)


def test_when_a_client_takes_nothing_then_it_is_left() -> None:
    async def check(place: Place) -> None:
        await place.http.put("/v1/kv/k", content=bytes(1 << 20))
        _, writer = await asyncio.open_connection(place.serving.host, place.serving.port, limit=1024)
        for _ in range(20):
            writer.write(b"GET /v1/kv/k HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await until(lambda: len(connections_of(place)) >= 2)
        await until(lambda: len(connections_of(place)) <= 1)
        writer.close()
        await healthy(place)

    ask(check, sites=1, stalled_s=0.3)


def test_when_there_are_too_many_connections_then_the_next_is_told() -> None:
    async def check(place: Place) -> None:
        assert (await place.http.get("/livez")).status_code == 200
        opened = [await asyncio.open_connection(place.serving.host, place.serving.port) for _ in range(2)]
        assert told(await raw(place)) == (429, "overloaded")
        for _, writer in opened:
            writer.close()

    ask(check, sites=1, connections_max=3)


def test_when_requests_are_pipelined_then_each_has_its_answer_in_order() -> None:
    async def check(place: Place) -> None:
        asked = b"".join(
            b"PUT /v1/kv/%d HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\n%d" % (n, n)
            for n in range(5)
        )
        last = b"GET /v1/kv/4 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        found = await raw(place, asked + last)
        assert found.count(b"HTTP/1.1 201 Created") == 5
        assert found.endswith(b"\r\n\r\n4")

    ask(check, sites=1)


def test_when_too_many_requests_are_under_way_then_the_rest_comes_back_later() -> None:
    async def main() -> None:
        async with gateway_of(requests_max=4) as place:
            limits = httpx2.Limits(max_connections=200)
            async with httpx2.AsyncClient(base_url=place.serving.url, limits=limits, timeout=30) as http:
                answers = await asyncio.gather(*(http.put(f"/v1/kv/{n}", content=b"x") for n in range(150)))
            codes = {answer.status_code for answer in answers}
            assert codes == {201, 429}
            for answer in answers:
                if answer.status_code == 429:
                    problem(answer, 429, "overloaded")
                    assert 1 <= int(answer.headers["retry-after"]) <= RETRY_MAX_S
            assert place.gateway.parts.admission.under_way == 0
            assert place.gateway.parts.admission.held == 0
            assert (await place.client.proxy.statistics()).keys == sum(a.status_code == 201 for a in answers)
            await healthy(place)

    play(main())


def test_when_a_refused_connection_comes_back_too_early_then_only_that_one_is_held_back() -> None:
    async def check(place: Place) -> None:
        admission = place.gateway.parts.admission
        taken = admission.enter(Standing())
        assert taken
        loop = asyncio.get_running_loop()
        began = loop.time()
        told = problem(await place.http.get("/v1/kv/k"), 429, "overloaded")
        assert told["detail"] == "too many requests are under way; come back when it is time"
        assert loop.time() - began < RETRY_S
        early = asyncio.ensure_future(place.http.get("/v1/kv/k"))
        await until(lambda: admission.held)
        async with httpx2.AsyncClient(base_url=place.serving.url) as other:
            problem(await other.get("/v1/kv"), 429, "overloaded")
        assert not early.done()
        page = (await place.http.get("/metrics")).text
        assert "rsm_gateway_refusals_held_back 1.0" in page
        assert "rsm_gateway_requests_limit 1.0" in page
        assert (await early).headers["retry-after"] == "1"
        assert loop.time() - began >= RETRY_S
        assert admission.held == 0
        admission.leave(taken, None, 0.0)
        problem(await place.http.get("/v1/kv/k"), 404, "key_not_found")

    ask(check, sites=1, requests_max=1)


def test_when_requests_were_refused_then_nothing_is_kept_of_them() -> None:
    async def check(place: Place) -> None:
        admission = place.gateway.parts.admission
        taken = admission.enter(Standing())
        for _ in range(20):
            async with httpx2.AsyncClient(base_url=place.serving.url) as http:
                problem(await http.get("/v1/kv/k"), 429, "overloaded")
        gc.collect()
        frames = [frame for frame in gc.get_objects() if isinstance(frame, FrameType)]
        answering = {Gateway._answer.__code__, KeyExchange.begin.__code__}
        kept = [frame for frame in frames if frame.f_code in answering]
        assert not kept, "an error that is raised again holds on to everybody it was raised for"
        admission.leave(taken, None, 0.0)

    ask(check, sites=1, requests_max=1)


def test_when_clients_go_away_in_mid_request_then_nothing_is_left_of_them() -> None:
    async def check(place: Place) -> None:
        for request in (
            b"PUT /v1/kv/k HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\nhalf",
            b"POST /v1/txn HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\nhalf",
            b"GET /v1/kv/k HTTP/1.1\r\nhost: localhost\r\n\r\n",
            b"GET /v1/watch HTTP/1.1\r\nhost: localhost\r\n\r\n",
            b"GET /v1/cluster/events HTTP/1.1\r\nhost: localhost\r\n\r\n",
        ):
            for _ in range(5):
                _, writer = await asyncio.open_connection(place.serving.host, place.serving.port)
                writer.write(request)
                await until(lambda: any(each.cycle for each in connections_of(place)))  # its head was read
                writer.transport.abort()
                await until(lambda: not connections_of(place))
        parts = place.gateway.parts
        await until(lambda: not (parts.admission.under_way or parts.watches.count))
        await healthy(place)

    ask(check)


def test_when_the_gateway_stops_then_what_is_under_way_is_answered_and_the_rest_is_refused() -> None:
    async def main() -> None:
        async with gateway_of() as place:
            http = place.http
            reader, writer = await asyncio.open_connection(place.serving.host, place.serving.port)
            writer.write(b"PUT /v1/kv/k HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\nha")
            await until(lambda: place.gateway.parts.admission.under_way)
            await place.gateway.stop()
            answer = await http.put("/v1/kv/other", content=b"x")
            problem(answer, 503, "stopping")
            assert answer.headers["retry-after"]
            problem(await http.get("/v1/kv"), 503, "stopping")
            problem(await http.get("/readyz"), 503, "stopping")
            assert (await http.get("/livez")).status_code == 200
            stopping = asyncio.ensure_future(place.serving.stop())
            server = place.serving._server
            assert server is not None
            await until(lambda: server.should_exit)
            writer.write(b"lf")
            assert (await reader.readline()).startswith(b"HTTP/1.1 201")
            await stopping
            writer.close()

    play(main())
