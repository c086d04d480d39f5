"""Event streams: nothing is left out, nothing is told twice, and nobody waits for who does not read."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx2

from api.key_events import ToldKey
from api.parameters import EVERYTHING
from api.watches import Told, Watcher
from apps.kv.types import Event
from tests.api.gateways import Place, ask, gateway_of, healthy, problem, settings_of
from tests.rsm.test_replica import crash, play, until


class Sent(NamedTuple):
    event: str
    data: dict[str, Any]
    id: str


class Reader:
    """A client of an event stream."""

    def __init__(self, answer: httpx2.Response) -> None:
        self.answer = answer
        self.last_id = ""
        self.comments = 0
        self._lines = answer.aiter_lines()

    async def next(self) -> Sent | None:
        """The next event, or None at the end."""
        fields: dict[str, str] = {}
        async for line in self._lines:
            if not line:
                if "data" in fields:
                    return Sent(fields.get("event", ""), json.loads(fields["data"]), fields.get("id", ""))
                fields = {}
                continue
            name, _, value = line.partition(": ")
            if not name:
                self.comments += 1
                continue
            fields[name] = value
            if name == "id":
                self.last_id = value
        return None

    async def take(self, count: int) -> list[Sent]:
        found = [await self.next() for _ in range(count)]
        return [each for each in found if each is not None]


@asynccontextmanager
async def watching(
    place: Place, query: str = "", headers: dict[str, str] | None = None
) -> AsyncIterator[Reader]:
    async with place.http.stream("GET", f"/v1/watch?{query}", headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Reader(answer)


def keys_of(events: list[Sent]) -> list[str]:
    return [each.data["key"] for each in events]


def test_when_somebody_watches_from_now_on_then_it_is_told_where_that_is_and_what_follows() -> None:
    async def check(place: Place) -> None:
        http = place.http
        before = (await http.put("/v1/kv/before", content=b"x")).json()["revision"]
        async with watching(place) as reader:
            ready = await reader.next()
            assert ready is not None
            assert ready.event == "ready"
            assert int(ready.id) >= before
            assert ready.data == {"revision": int(ready.id)}
            made = (await http.put("/v1/kv/k", content=b"\xff")).json()
            await http.delete("/v1/kv/k")
            put, deleted = await reader.take(2)
            assert put.event == "put"
            assert put.id == str(made["revision"])
            assert put.data["value_base64"] == "/w=="
            assert put.data["version"] == 1
            assert deleted.event == "delete"
            assert "value" not in deleted.data

    ask(check)


def test_when_a_watch_begins_further_back_then_it_has_all_of_it_once_and_in_order() -> None:
    async def check(place: Place) -> None:
        http = place.http
        for n in range(30):
            await http.put(f"/v1/kv/a/{n}", content=b"x")
        async with watching(place, "since=0&prefix=a/") as reader:
            writing = asyncio.ensure_future(write(place, "a/", 30, 60))
            revisions = [event.data["revision"] for event in await reader.take(60)]
            await writing
        assert revisions == sorted(set(revisions))
        assert len(revisions) == 60
        async with watching(place, f"since={revisions[44]}&prefix=a/") as reader:
            assert [each.data["revision"] for each in await reader.take(15)] == revisions[45:]
        resumed = {"last-event-id": str(revisions[57])}
        async with watching(place, "since=0&prefix=a/", resumed) as reader:
            assert [each.data["revision"] for each in await reader.take(2)] == revisions[58:]

    ask(check)


async def write(place: Place, prefix: str, first: int, last: int) -> None:
    for n in range(first, last):
        assert (await place.http.put(f"/v1/kv/{prefix}{n}", content=b"x")).status_code == 201


def test_when_many_watch_and_join_at_any_time_under_load_then_each_sees_every_change_once() -> None:
    async def check(place: Place) -> None:
        async def watch_from(since: int, after: float) -> list[int]:
            await asyncio.sleep(after)
            found: list[int] = []
            async with watching(place, f"since={since}&prefix=k/") as reader:
                while True:
                    event = await reader.next()
                    assert event is not None
                    if event.data["key"] == "k/end":
                        return found
                    found.append(event.data["revision"])

        start = (await place.http.put("/v1/kv/start", content=b"x")).json()["revision"]
        watchers = [asyncio.ensure_future(watch_from(start, n * 0.03)) for n in range(12)]
        await asyncio.gather(*(write(place, f"k/{w}/", 0, 40) for w in range(8)))
        await place.http.put("/v1/kv/k/end", content=b"x")
        seen = await asyncio.gather(*watchers)
        assert len(seen[0]) == 320
        assert all(each == seen[0] for each in seen)
        assert seen[0] == sorted(set(seen[0]))

    ask(check, watch_events_max=100)


def test_when_ranges_are_watched_then_each_sees_its_own_and_the_id_is_at_the_last_of_a_revision() -> None:
    async def check(place: Place) -> None:
        async with (
            watching(place, "key=b") as one,
            watching(place, "start=b&end=d") as some,
            watching(place, "prefix=") as all_of_them,
        ):
            for reader in (one, some, all_of_them):
                await reader.next()
            body = {"then": [{"op": "put", "key": key, "value": "1"} for key in "abcd"]}
            revision = str((await place.http.post("/v1/txn", json=body)).json()["revision"])
            assert [(each.data["key"], each.id) for each in await one.take(1)] == [("b", revision)]
            assert [(e.data["key"], e.id) for e in await some.take(2)] == [("b", ""), ("c", revision)]
            last = await all_of_them.take(4)
            assert keys_of(last) == ["a", "b", "c", "d"]
            assert [each.id for each in last] == ["", "", "", revision]

    ask(check)


def test_when_a_key_expires_then_its_watchers_are_told_that_it_did() -> None:
    async def check(place: Place) -> None:
        async with watching(place, "key=k") as reader:
            await reader.next()
            await place.http.put("/v1/kv/k?ttl=100ms", content=b"x")
            put, deleted = await reader.take(2)
            assert put.data["lease"]
            assert deleted.event == "delete"
            assert deleted.data["expired"] is True

    ask(check)


def test_when_nothing_happens_then_signs_of_life_come_and_move_the_id_on() -> None:
    async def check(place: Place) -> None:
        async with watching(place, "key=quiet") as reader:
            ready = await reader.next()
            assert ready is not None
            noise = (await place.http.put("/v1/kv/noise", content=b"x")).json()["revision"]
            waiting = asyncio.ensure_future(reader.next())
            await until(lambda: int(reader.last_id) >= noise)
            assert reader.comments
            waiting.cancel()

    ask(check, heartbeat_s=0.05)


def test_when_history_is_forgotten_then_a_watch_behind_it_is_refused_and_one_in_the_future_too() -> None:
    async def check(place: Place) -> None:
        http = place.http
        await http.put("/v1/kv/k", content=b"1")
        revision = (await http.put("/v1/kv/k", content=b"2")).json()["revision"]
        await place.client.proxy.compact(revision)
        found = problem(await http.get("/v1/watch?since=1"), 410, "compacted")
        assert found["compacted"] == revision
        problem(await http.get("/v1/watch?since=1000000000"), 400, "future")
        for query in ("since=x", "since=-1", "key=a&prefix=b", "keys=a", "key="):
            problem(await http.get(f"/v1/watch?{query}"), 400, "bad_request")
        for last in ("x", "-1", "1" * 30):
            problem(await http.get("/v1/watch", headers={"last-event-id": last}), 400, "bad_request")
        problem(await http.post("/v1/watch"), 405, "method_not_allowed")

    ask(check)


def test_when_a_watcher_does_not_read_then_it_is_dropped_and_others_are_not_disturbed() -> None:
    async def check(place: Place) -> None:
        reader, writer = await asyncio.open_connection(place.serving.host, place.serving.port, limit=1024)
        writer.write(b"GET /v1/watch?prefix=k HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await reader.readuntil(b"event: ready")
        async with watching(place, "prefix=k") as other:
            await other.next()
            watches = place.gateway.parts.watches
            assert watches.count == 2
            value = b"x" * 250_000
            for count in range(120):
                assert (await place.http.put("/v1/kv/k", content=value)).status_code < 300
                event = await other.next()
                assert event is not None
                if watches.count == 1:
                    assert count > 3
                    break
            assert watches.count == 1, "the slow one is still there"
        writer.close()
        await healthy(place)

    ask(check, watch_bytes_max=1 << 20)


def test_when_nobody_watches_any_more_then_the_feed_ends() -> None:
    async def check(place: Place) -> None:
        watches = place.gateway.parts.watches
        async with watching(place) as reader:
            await reader.next()
            await place.http.put("/v1/kv/k", content=b"x")
            await reader.next()
            assert watches.count == 1
            assert watches._hub is not None
        await until(lambda: not watches.count)
        assert watches._hub is None

    ask(check)


def test_when_there_are_too_many_watchers_then_the_next_is_told_to_come_later() -> None:
    async def check(place: Place) -> None:
        async with watching(place) as reader:
            await reader.next()
            answer = await place.http.get("/v1/watch")
            problem(answer, 429, "overloaded")
            assert answer.headers["retry-after"]
            problem(await place.http.get("/v1/cluster/events"), 429, "overloaded")
            assert (await place.http.put("/v1/kv/k", content=b"x")).status_code == 201

    ask(check, watches_max=1)


def test_when_a_replica_dies_then_watches_go_on_without_a_gap() -> None:
    async def main() -> None:
        async with gateway_of() as place, watching(place, "since=0&prefix=k") as reader:
            await write(place, "k/a", 0, 20)
            linked = place.client.linked_to
            (victim,) = [each for each in place.replicas if each.address == linked]
            await crash(victim)
            await write(place, "k/b", 0, 20)
            events = await reader.take(40)
            assert len({each.data["revision"] for each in events}) == 40
            assert keys_of(events) == [f"k/{w}{n}" for w in "ab" for n in range(20)]

    play(main())


def test_when_the_gateway_stops_then_watchers_are_told_and_it_does_not_wait_for_them() -> None:
    async def main() -> None:
        async with gateway_of() as place, watching(place) as reader:
            await reader.next()
            await asyncio.wait_for(place.serving.stop(), 3)
            event = await reader.next()
            assert event is not None
            assert event.event == "error"
            assert event.data["code"] == "stopping"
            assert await reader.next() is None

    play(main())


def test_when_a_change_comes_just_as_the_time_is_over_then_no_sign_of_life_goes_ahead_of_it() -> None:
    """A sign of life has the watcher's position as its id: who resumed behind it would miss the change."""

    async def main() -> None:
        watcher = Watcher(EVERYTHING, 3, settings_of(), lambda: None)
        waiting = asyncio.ensure_future(watcher.next(0.01))
        await asyncio.sleep(0)
        told: list[Told] = [ToldKey(Event(7, b"k", b"v", 7, 1))]
        asyncio.get_running_loop().call_later(0.011, watcher.take, 7, told)
        time.sleep(0.05)  # a busy loop: both are due in its next turn, the end of the time first
        assert b"id: 7" in await waiting
        assert watcher.position == 7

    asyncio.run(main())
