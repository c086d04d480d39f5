"""Leases and locks: every line of their tables."""

import asyncio

import pytest

from api.routes import locks
from rsm.link_client import Link
from tests.api.gateways import Place, ask, problem
from tests.rsm.test_replica import crash, until


def test_when_a_lease_is_granted_then_it_can_be_looked_at_renewed_and_ended() -> None:
    async def check(place: Place) -> None:
        http = place.http
        made = await http.post("/v1/leases", json={"ttl": "30s"})
        assert made.status_code == 201
        lease = made.json()
        assert made.headers["location"] == f"/v1/leases/{lease['id']}"
        assert 0 <= lease.pop("age_ms") < 5000
        assert lease == {"id": lease["id"], "ttl_ms": 30_000, "remaining_ms": 30_000, "keys": 0, "locks": 0}
        await http.put(f"/v1/kv/k?lease={lease['id']}", content=b"x")
        await http.post("/v1/locks/l", json={"lease": lease["id"]})
        found = (await http.get(made.headers["location"])).json()
        assert (found["keys"], found["locks"]) == (1, 1)
        assert found["remaining_ms"] <= 30_000
        other = (await http.post("/v1/leases", json={"ttl": "1d"})).json()
        listed = (await http.get("/v1/leases")).json()["items"]
        assert [each["id"] for each in listed] == [lease["id"], other["id"]]
        listed = (await http.get(f"/v1/leases?after={lease['id']}&limit=5")).json()["items"]
        assert [each["id"] for each in listed] == [other["id"]]
        renewed = await http.post(f"/v1/leases/{lease['id']}:renew")
        assert renewed.status_code == 200
        assert renewed.json()["remaining_ms"] == 30_000
        gone = await http.delete(f"/v1/leases/{lease['id']}")
        assert gone.status_code == 204
        problem(await http.get("/v1/kv/k"), 404, "key_not_found")
        problem(await http.get("/v1/locks/l"), 404, "lock_not_found")
        for answer in (
            await http.get(f"/v1/leases/{lease['id']}"),
            await http.post(f"/v1/leases/{lease['id']}:renew"),
            await http.delete(f"/v1/leases/{lease['id']}"),
        ):
            problem(answer, 404, "lease_not_found")

    ask(check)


def test_when_a_group_is_idle_then_it_is_told_how_long_ago_the_time_of_a_lease_was_counted() -> None:
    async def check(place: Place) -> None:
        http = place.http
        path = (await http.post("/v1/leases", json={"ttl": "1m"})).headers["location"]
        before = (await http.get(path)).json()
        await asyncio.sleep(0.5)
        after = (await http.get(path)).json()
        left = [each["remaining_ms"] - each["age_ms"] for each in (before, after)]
        assert 500 <= left[0] - left[1] < 5000
        assert (await http.get("/v1/leases")).json()["items"][0]["age_ms"] >= after["age_ms"]

    ask(check)


def test_when_a_lease_is_not_renewed_then_it_ends_and_its_locks_pass_on() -> None:
    async def check(place: Place) -> None:
        http = place.http
        short = (await http.post("/v1/locks/l", json={"ttl": "200ms"})).json()
        answer = await http.post("/v1/locks/l", json={"ttl": "1m", "wait": "10s"})
        assert answer.status_code == 200
        taken = answer.json()
        assert taken["held"]
        assert taken["token"] > short["token"]
        problem(await http.get(f"/v1/leases/{short['lease']}"), 404, "lease_not_found")

    ask(check)


def test_when_a_lease_is_wrongly_asked_for_then_it_says_why() -> None:
    async def check(place: Place) -> None:
        http = place.http
        for body in ({}, {"ttl": 30}, {"ttl": "30"}, {"ttl": "0s"}, {"ttl": "1y"}, {"ttl": "1s", "id": 1}):
            problem(await http.post("/v1/leases", json=body), 422, "invalid")
        problem(await http.post("/v1/leases", json={"ttl": "999999999999d"}), 422, "invalid")
        problem(await http.post("/v1/leases", json={"ttl": "999999999d"}), 400, "bad_request")
        problem(await http.get("/v1/leases/0"), 404, "not_found")
        problem(await http.get("/v1/leases/x"), 404, "not_found")
        problem(await http.get("/v1/leases/9223372036854775808"), 404, "not_found")
        problem(await http.get("/v1/leases?after=-1"), 400, "bad_request")
        answer = await http.put("/v1/leases/1", content=b"x")
        problem(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == "DELETE, GET"
        once = {"idempotency-key": "lease"}
        first = await http.post("/v1/leases", json={"ttl": "1m"}, headers=once)
        again = await http.post("/v1/leases", json={"ttl": "1m"}, headers=once)
        assert again.json() == {**first.json(), "age_ms": again.json()["age_ms"]}
        problem(await http.post("/v1/leases", json={"ttl": "2m"}, headers=once), 422, "key_reused")

    ask(check, sites=1)


def test_when_a_lock_is_taken_then_nobody_else_has_it_until_it_is_given_back() -> None:
    async def check(place: Place) -> None:
        http = place.http
        one, two = [(await http.post("/v1/leases", json={"ttl": "1m"})).json()["id"] for _ in range(2)]
        taken = await http.post("/v1/locks/a/b", json={"lease": one})
        assert taken.status_code == 200
        shape = taken.json()
        assert shape == {"name": "a/b", "lease": one, "token": shape["token"], "held": True, "waiting": 0}
        again = (await http.post("/v1/locks/a/b", json={"lease": one})).json()
        assert again["token"] == shape["token"]
        found = problem(await http.post("/v1/locks/a/b", json={"lease": two}), 409, "locked")
        assert found["lease"] == one
        assert (await http.get("/v1/locks/a/b")).json() == shape
        assert (await http.get("/v1/locks?prefix=a/")).json() == {"items": [shape]}
        assert (await http.get("/v1/locks?prefix=b")).json() == {"items": []}
        assert (await http.get("/v1/locks?prefix=a&after=a/a")).json() == {"items": [shape]}
        assert (await http.get("/v1/locks?prefix=a&after=a/b")).json() == {"items": []}
        problem(await http.delete(f"/v1/locks/a/b?lease={two}"), 409, "not_held")
        problem(await http.delete("/v1/locks/a/b"), 400, "bad_request")
        assert (await http.delete(f"/v1/locks/a/b?lease={one}")).status_code == 204
        problem(await http.get("/v1/locks/a/b"), 404, "lock_not_found")
        assert (await http.post("/v1/locks/a/b", json={"lease": two})).json()["token"] > shape["token"]

    ask(check)


def test_when_a_lock_is_waited_for_then_it_comes_when_it_is_free_or_the_place_is_given_up() -> None:
    async def check(place: Place) -> None:
        http = place.http
        one, two = [(await http.post("/v1/leases", json={"ttl": "1m"})).json()["id"] for _ in range(2)]
        await http.post("/v1/locks/l", json={"lease": one})
        waiting = asyncio.ensure_future(http.post("/v1/locks/l", json={"lease": two, "wait": "30s"}))
        async with asyncio.timeout(10):
            while not (await http.get("/v1/locks/l")).json()["waiting"]:
                await asyncio.sleep(0.01)
        assert place.gateway.parts.admission.waiting == 1
        assert place.gateway.parts.admission.under_way == 0
        assert (await http.delete(f"/v1/locks/l?lease={one}")).status_code == 204
        answer = await waiting
        assert answer.status_code == 200
        assert answer.json()["lease"] == two
        late = await http.post("/v1/locks/l", json={"ttl": "1m", "wait": "50ms"})
        problem(late, 409, "locked")
        assert (await http.get("/v1/locks/l")).json()["waiting"] == 0
        leases = [each["id"] for each in (await http.get("/v1/leases")).json()["items"]]
        assert leases == [one, two], "the lease that was made for a lock in vain is still there"
        problem(await http.post("/v1/locks/l", json={"ttl": "1m"}), 409, "locked")
        assert len((await http.get("/v1/leases")).json()["items"]) == 2
        once = {"idempotency-key": "lock"}
        first = await http.post("/v1/locks/other", json={"ttl": "1m"}, headers=once)
        assert (await http.post("/v1/locks/other", json={"ttl": "1m"}, headers=once)).json() == first.json()

    ask(check)


async def queued(place: Place, count: int = 1, name: str = "l") -> None:
    """Returns when so many wait."""
    async with asyncio.timeout(10):
        while (await place.http.get(f"/v1/locks/{name}")).json()["waiting"] != count:
            await asyncio.sleep(0.01)


def test_when_a_lock_is_given_back_then_who_waits_has_it_at_once_and_nobody_asked_meanwhile() -> None:
    async def check(place: Place) -> None:
        http, loop = place.http, asyncio.get_running_loop()
        one, two = [(await http.post("/v1/leases", json={"ttl": "1m"})).json()["id"] for _ in range(2)]
        await http.post("/v1/locks/l", json={"lease": one})
        waiting = asyncio.ensure_future(http.post("/v1/locks/l", json={"lease": two, "wait": "1m"}))
        await queued(place)
        before = int((await http.get("/v1/locks/l")).headers["x-rsm-timestamp"])
        await asyncio.sleep(0.5)
        idle = int((await http.get("/v1/locks/l")).headers["x-rsm-timestamp"])
        assert idle - before <= 1, "who waits has ordered something"
        released = (await http.delete(f"/v1/locks/l?lease={one}")).headers
        at = loop.time()
        answer = await waiting
        assert loop.time() - at < 0.1, "nobody told it that the lock is free"
        assert answer.json()["lease"] == two
        assert answer.json()["token"] == int(released["x-rsm-timestamp"])
        assert int(answer.headers["x-rsm-timestamp"]) - answer.json()["token"] <= 5

    ask(check)


def test_when_the_linked_replica_dies_while_a_lock_is_waited_for_then_it_comes_all_the_same() -> None:
    async def check(place: Place) -> None:
        http = place.http
        one = (await http.post("/v1/leases", json={"ttl": "1m"})).json()["id"]
        await http.post("/v1/locks/l", json={"lease": one})
        waiting = asyncio.ensure_future(http.post("/v1/locks/l", json={"ttl": "1m", "wait": "1m"}))
        await queued(place)
        linked = next(each for each in place.replicas if each.address == place.client.linked_to)
        await crash(linked)
        async with asyncio.timeout(20):
            while (await http.delete(f"/v1/locks/l?lease={one}")).status_code != 204:
                await asyncio.sleep(0.05)
        async with asyncio.timeout(locks.LOOK_SECONDS - 1):
            answer = await waiting
        assert answer.status_code == 200, answer.text
        assert answer.json()["lease"] != one

    ask(check)


def test_when_a_gateway_has_no_link_then_who_waits_for_a_lock_looks_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(_: object, *, stale: bool = False) -> None:
        await asyncio.Event().wait()

    async def check(place: Place) -> None:
        http = place.http
        one = (await http.post("/v1/leases", json={"ttl": "1m"})).json()["id"]
        await http.post("/v1/locks/l", json={"lease": one})
        waiting = asyncio.ensure_future(http.post("/v1/locks/l", json={"ttl": "1m", "wait": "1m"}))
        await queued(place)
        assert (await http.delete(f"/v1/locks/l?lease={one}")).status_code == 204
        assert (await waiting).json()["lease"] != one

    monkeypatch.setattr(Link, "up", never)
    monkeypatch.setattr(Link, "is_up", False)
    monkeypatch.setattr(locks, "LOOK_SECONDS", 0.1)
    ask(check)


def test_when_a_lease_ends_or_leaves_while_it_waits_for_a_lock_then_it_is_told() -> None:
    async def check(place: Place) -> None:
        http = place.http
        one, two, three = [(await http.post("/v1/leases", json={"ttl": "1m"})).json()["id"] for _ in range(3)]
        await http.post("/v1/locks/l", json={"lease": one})
        ended, left = (
            asyncio.ensure_future(http.post("/v1/locks/l", json={"lease": lease, "wait": "1m"}))
            for lease in (two, three)
        )
        await queued(place, 2)
        await http.delete(f"/v1/leases/{two}")
        problem(await ended, 409, "lease_expired")
        await http.delete(f"/v1/locks/l?lease={three}")
        problem(await left, 409, "locked")

    ask(check)


def test_when_a_gateway_stops_then_who_waits_for_a_lock_is_told_and_leaves_the_queue() -> None:
    async def check(place: Place) -> None:
        http = place.http
        await http.post("/v1/locks/l", json={"ttl": "1m"})
        waiting = asyncio.ensure_future(http.post("/v1/locks/l", json={"ttl": "1m", "wait": "1m"}))
        await queued(place)
        await place.gateway.stop()
        problem(await waiting, 503, "stopping")
        assert (await place.client.proxy.lock_of(b"l")).waiting == 0

    ask(check)


def test_when_who_waits_for_a_lock_goes_away_then_its_place_is_given_up() -> None:
    async def check(place: Place) -> None:
        http = place.http
        await http.post("/v1/locks/l", json={"ttl": "1m"})
        waiting = asyncio.ensure_future(http.post("/v1/locks/l", json={"ttl": "1m", "wait": "30s"}))
        await queued(place)
        async with asyncio.timeout(10):
            waiting.cancel()
            while (await http.get("/v1/locks/l")).json()["waiting"]:
                await asyncio.sleep(0.01)
            await until(lambda: not place.gateway.parts.admission.waiting)

    ask(check)


def test_when_a_lock_is_wrongly_asked_for_then_it_says_why() -> None:
    async def check(place: Place) -> None:
        http = place.http
        for body in ({}, {"lease": 1, "ttl": "1s"}, {"lease": "1"}, {"lease": 0}, {"ttl": "1s", "wait": 5}):
            problem(await http.post("/v1/locks/l", json=body), 422, "invalid")
        problem(await http.post("/v1/locks/l", json={"lease": 77}), 409, "lease_expired")
        problem(await http.post("/v1/locks/", json={"lease": 1}), 400, "bad_request")
        problem(await http.post("/v1/locks/" + "x" * 5000, json={"ttl": "1s"}), 413, "too_large")
        answer = await http.put("/v1/locks/l", content=b"x")
        problem(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == "DELETE, GET, POST"

    ask(check, sites=1)
