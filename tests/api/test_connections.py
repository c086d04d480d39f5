"""What a connection does with requests for keys, whichever way their bytes come and go."""

import asyncio
import gc
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from api.protocol import BoundedProtocol
from rsm.calls import Calls
from tests.api.gateways import Place, ask, connected, gateway_of, healthy, problem, raw, served
from tests.rsm.test_replica import play, until

PUT = b"PUT /v1/kv/%s HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s"
LAST = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


def put(key: bytes, value: bytes) -> bytes:
    return PUT % (key, len(value), value)


def get(key: bytes, *headers: bytes, method: bytes = b"GET", version: bytes = b"1.1") -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"%s /v1/kv/%s HTTP/%s\r\nhost: localhost\r\n%s\r\n" % (method, key, version, lines)


def statuses(answer: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


async def noted(place: Place) -> dict[str, float]:
    """What was counted of keys, by method and status."""
    page = (await place.http.get("/metrics")).text
    found: dict[str, float] = {}
    for line in page.splitlines():
        if line.startswith("rsm_gateway_requests_total{") and '"/v1/kv/{key}"' in line:
            labels = dict(
                each.split("=", 1) for each in line[line.index("{") + 1 : line.rindex("}")].split(",")
            )
            found[f"{labels['method']} {labels['status']}".replace('"', "")] = float(line.split()[-1])
    return found


@asynccontextmanager
async def silence(place: Place, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[asyncio.Future[Any]]]:
    """Calls that nobody answers; those that were made. Whether a majority is there is not looked for."""
    made: list[asyncio.Future[Any]] = []
    store = place.gateway.parts.store
    await store.stop()
    store.is_lost = False

    def execute(*_: object) -> asyncio.Future[Any]:
        made.append(asyncio.get_running_loop().create_future())
        return made[-1]

    with monkeypatch.context() as patched:
        patched.setattr(Calls, "execute", execute)
        yield made


def test_when_a_request_is_answered_then_head_and_body_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    made = BoundedProtocol.connection_made

    class Counted:
        def __init__(self, transport: Any) -> None:
            self._transport = transport

        def write(self, data: bytes) -> None:
            written.append(data)
            self._transport.write(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._transport, name)

    def make(connection: BoundedProtocol, transport: Any) -> None:
        made(connection, cast(asyncio.Transport, Counted(transport)))

    monkeypatch.setattr(BoundedProtocol, "connection_made", make)

    async def check(place: Place) -> None:
        await place.http.put("/v1/kv/k", content=b"v" * 100)
        await place.http.get("/v1/kv/k")
        await place.http.head("/v1/kv/k")
        await place.http.get("/v1/kv/nothing")
        await place.http.delete("/v1/kv/k")
        assert [data.split(b" ", 2)[1] for data in written] == [b"201", b"200", b"200", b"404", b"204"]
        assert written[1].endswith(b"\r\n\r\n" + b"v" * 100)
        assert written[2].endswith(b"\r\n\r\n")
        assert b"content-length: 100\r\n" in written[2]
        for data in written:
            head = data.partition(b"\r\n\r\n")[0]
            assert b"\r\ndate: " in head
            assert head.count(b"\r\nx-content-type-options: nosniff") == 1
            assert b"connection:" not in head

    ask(check, sites=1)


def test_when_bytes_come_one_by_one_then_it_is_the_same_request() -> None:
    async def check(place: Place) -> None:
        chunked = b"PUT /v1/kv/c HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
        chunked += b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nt: u\r\n\r\n"
        async with connected(place) as (reader, writer):
            for byte in put(b"k", b"value") + chunked + get(b"c", b"connection: close"):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            found = await reader.read()
        assert statuses(found) == [201, 201, 200]
        assert found.endswith(b"\r\n\r\nabcde")
        assert (await place.http.get("/v1/kv/k")).content == b"value"

    ask(check, sites=1)


def test_when_requests_of_all_kinds_are_pipelined_then_answers_come_in_their_order() -> None:
    async def check(place: Place) -> None:
        asked = [
            put(b"a", b"1"),
            b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n",
            get(b"a"),
            get(b"nothing"),
            b"POST /v1/kv/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\nxx",
            b"GET /v1/kv HTTP/1.1\r\nhost: localhost\r\n\r\n",
            get(b"a", b"content-length: 5") + b"12345",
            get(b"a", method=b"HEAD"),
            get(b"a", method=b"DELETE"),
            LAST,
        ]
        expected = [201, 200, 200, 404, 405, 200, 200, 200, 204, 200]
        assert statuses(await raw(place, b"".join(asked))) == expected
        assert statuses(await raw(place, *asked, pause=0.01)) == expected
        await healthy(place)

    ask(check, sites=1)


def test_when_thousands_are_pipelined_then_others_are_served_meanwhile() -> None:
    async def check(place: Place) -> None:
        count = 5000
        async with connected(place) as (reader, writer):
            writer.write(get(b"a?no") * count + get(b"a?no", b"connection: close"))
            found = asyncio.ensure_future(reader.read())
            await asyncio.sleep(0)
            for _ in range(5):
                assert (await place.http.put("/v1/kv/k", content=b"v")).status_code in {200, 201}
            assert not found.done(), "one connection has kept the event loop to itself"
            assert statuses(await found) == [400] * (count + 1)

    ask(check, sites=1)


def test_when_a_connection_is_to_end_then_it_does_behind_the_answer() -> None:
    async def check(place: Place) -> None:
        for asked in (get(b"k", b"connection: close"), get(b"k", version=b"1.0")):
            found = await raw(place, asked + get(b"later"))
            assert statuses(found) == [404]
            assert b"\r\nconnection: close\r\n" in found

    ask(check, sites=1)


def test_when_something_unreadable_follows_then_what_came_before_it_is_answered() -> None:
    async def check(place: Place) -> None:
        found = await raw(place, put(b"k", b"v") + get(b"k") + b"GARBAGE\r\n\r\n")
        assert statuses(found) == [201, 200]
        broken = b"PUT /v1/kv/k HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nGARBAGE\r\n"
        assert statuses(await raw(place, broken)) == [400]
        assert statuses(await raw(place, put(b"k", b"v") + broken)) == [200, 400]
        await place.http.put("/v1/kv/k", content=b"v")
        deletion = broken.replace(b"PUT", b"DELETE")
        assert statuses(await raw(place, deletion)) == [204], "it was carried out, so it is not refused"
        assert (await place.http.get("/v1/kv/k")).status_code == 404
        endless = b"PUT /v1/kv/k HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nt: "
        assert statuses(await raw(place, endless, *[b"x" * 50_000] * 3, pause=0.01)) == [431]
        assert place.gateway.parts.admission.under_way == 0
        await healthy(place)

    ask(check, sites=1)


def test_when_the_group_does_not_answer_then_a_write_is_unknown_and_the_connection_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check(place: Place) -> None:
        async with silence(place, monkeypatch) as calls, connected(place) as (reader, writer):
            writer.write(put(b"k", b"v"))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 504")
            assert [call.cancelled() for call in calls] == [True]
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            assert b"outcome_unknown" in await reader.readexactly(length)
            writer.write(LAST)
            assert statuses(await reader.read()) == [200]
        assert await noted(place) == {"PUT 504": 1.0}
        assert place.gateway.parts.admission.under_way == 0
        assert (await place.http.put("/v1/kv/k", content=b"v")).status_code == 201

    ask(check, sites=1, timeout=0.3)


def test_when_clients_go_away_then_they_are_counted_and_their_places_are_free_when_the_calls_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check(place: Place) -> None:
        admission = place.gateway.parts.admission
        async with silence(place, monkeypatch) as calls:
            async with connected(place) as (_, writer):
                writer.write(put(b"k", b"v"))
                await until(lambda: calls)
            async with connected(place) as (_, writer):
                writer.write(put(b"k", b"value")[:-1])
                await until(lambda: admission.under_way >= 2)
            await until(lambda: admission.under_way <= 1)
            assert await noted(place) == {"PUT 499": 1.0}
            calls[0].set_exception(TimeoutError())
            await until(lambda: not admission.under_way)
            assert await noted(place) == {"PUT 499": 2.0}
        await healthy(place)

    ask(check, sites=1)


def test_when_a_client_has_gone_and_the_group_does_not_answer_then_its_place_is_free_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check(place: Place) -> None:
        admission = place.gateway.parts.admission
        async with silence(place, monkeypatch) as calls:
            async with connected(place) as (_, writer):
                writer.write(put(b"k", b"v"))
                await until(lambda: calls)
            await until(lambda: not admission.under_way)
            assert calls[0].cancelled()
        assert await noted(place) == {"PUT 499": 1.0}

    ask(check, sites=1, timeout=0.3)


def test_when_a_client_does_not_read_then_its_next_request_does_not_begin_and_none_is_lost() -> None:
    async def check(place: Place) -> None:
        size, count = 1 << 20, 12
        await place.http.put("/v1/kv/k", content=bytes(size))
        before = (await noted(place)).get("GET 200", 0)
        async with connected(place) as (reader, writer):
            for _ in range(count - 1):
                writer.write(get(b"k"))
                await asyncio.sleep(0.01)
            writer.write(get(b"k", b"connection: close"))
            await asyncio.sleep(0.3)
            assert (await noted(place)).get("GET 200", 0) - before < count
            assert len(await reader.read()) > count * size
        assert (await noted(place))["GET 200"] - before == count

    ask(check, sites=1)


def test_when_it_stops_under_load_then_each_request_has_an_answer_or_was_not_taken() -> None:
    async def main() -> None:
        async with gateway_of(sites=1) as place:
            answered: list[int] = []
            halves: list[bytes] = []

            async def client(number: int) -> None:
                async with connected(place) as (reader, writer):
                    while True:
                        writer.write(put(b"%d" % number, b"v"))
                        try:
                            head = await reader.readuntil(b"\r\n\r\n")
                        except (asyncio.IncompleteReadError, ConnectionError) as error:
                            halves.append(getattr(error, "partial", b""))
                            return
                        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                        await reader.readexactly(length)
                        answered.append(statuses(head)[0])

            clients = [asyncio.ensure_future(client(number)) for number in range(20)]
            await until(lambda: len(answered) >= 200)
            await place.serving.stop()
            await asyncio.gather(*clients)
            assert set(answered) <= {200, 201, 503}
            assert not any(halves)
            assert place.gateway.parts.admission.under_way == 0
            assert (await place.client.proxy.statistics()).keys == 20

    play(main())


def test_when_a_stop_has_waited_long_enough_then_who_is_still_there_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with (
            gateway_of(sites=1, drain_s=0) as place,
            silence(place, monkeypatch) as calls,
            connected(place) as (reader, writer),
        ):
            writer.write(put(b"k", b"v"))
            await until(lambda: calls)
            await place.serving.stop()
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await reader.readuntil(b"\r\n\r\n")

    play(main())


def test_when_a_replica_serves_by_itself_then_its_keys_are_answered_the_same_way() -> None:
    async def main() -> None:
        async with gateway_of(sites=1) as place, served(place.replicas[0]) as (_, _serving, http):
            assert (await http.put("/v1/kv/k", content=b"v")).status_code == 201
            for consistency in ("linearizable", "sequential", "stale"):
                assert (await http.get(f"/v1/kv/k?consistency={consistency}")).content == b"v"
            assert (await http.put("/v1/kv/k?qos=all", content=b"w")).headers["x-rsm-qos"] == "all"
            assert (await http.delete("/v1/kv/k")).status_code == 204
            problem(await http.get("/v1/kv/k"), 404, "key_not_found")

    play(main())


def test_when_requests_are_answered_then_the_collector_finds_nothing_of_them() -> None:
    """Whatever they are: what a request leaves behind would pile up until a full collection."""

    async def check(place: Place) -> None:
        asked = [
            put(b"k", b"v"),
            get(b"k"),
            get(b"k?consistency=stale"),
            get(b"nothing"),
            get(b"k?no=1"),
            put(b"k?ttl=1s&lease=1", b"v"),
            b'PUT /v1/kv/k HTTP/1.1\r\nif-match: "9999999"\r\ncontent-length: 1\r\n\r\nv',
            get(b"nothing", method=b"DELETE"),
            get(b"k", method=b"PATCH"),
        ]

        async def rounds(count: int) -> None:
            for _ in range(count):
                for one in asked:
                    async with connected(place) as (reader, writer):
                        writer.write(one * 2 + LAST)
                        await reader.read()

        await rounds(3)
        gc.collect()
        gc.disable()
        try:
            await rounds(20)
            await asyncio.sleep(0.1)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            kinds = [type(each) for each in gc.garbage]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        ours = [
            kind.__name__ for kind in kinds if kind.__module__.partition(".")[0] in {"api", "rsm", "apps"}
        ]
        assert not ours, ours[:20]

    ask(check, sites=1)
