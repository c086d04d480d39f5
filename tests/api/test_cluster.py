"""How the group stands over HTTP, its log and its snapshots; and what operators order."""

import asyncio
import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from apps.kv.store import KeyValueStore
from rsm.client import Client
from rsm.replica import Replica
from tests.api.gateways import Place, ask, client_config, gateway_of, problem, served
from tests.api.test_watches import Reader
from tests.rsm.test_replica import config, crash, founded, play, until


def test_when_the_cluster_is_asked_for_then_every_member_tells_how_it_stands() -> None:
    async def check(place: Place) -> None:
        await place.http.put("/v1/kv/k", content=b"x")
        found = (await place.http.get("/v1/cluster")).json()
        assert found["group"] == "tested"
        assert found["primary"] is True
        status = place.replicas[0].status()
        assert (found["view"], found["chain"]) == (status.view, status.chain)
        assert found["views"][-1]["view"] == status.view
        assert {each["address"] for each in found["members"]} == {r.address for r in place.replicas}
        for member in found["members"]:
            (replica,) = [each for each in place.replicas if each.address == member["address"]]
            assert member["voter"] is True
            assert member["role"] == "ring"
            assert member["state"] == "serving"
            assert member["boot"] == replica.status().boot
            assert member["pid"] == os.getpid()
            assert member["applied"] > 0
            assert {"name", "received", "held", "lag", "log_bytes"} <= member.keys()
        assert found["token"]["address"] in {replica.address for replica in place.replicas}
        assert any(each["handler"] and each["address"] for each in found["locks"])
        assert found["counters"]["view changes"] >= 3

    ask(check)


def test_when_many_ask_at_once_then_the_group_is_asked_once() -> None:
    async def check(place: Place) -> None:
        surveys = place.gateway.parts.surveys
        pictures = await asyncio.gather(*(surveys.picture() for _ in range(20)))
        assert all(each is pictures[0] for each in pictures)
        assert await surveys.picture() is pictures[0]
        surveys.forget()
        assert await surveys.picture() is not pictures[0]

    ask(check, survey_ms=60_000)


def test_when_the_cluster_changes_then_its_stream_tells() -> None:
    async def check(place: Place) -> None:
        async with place.http.stream("GET", "/v1/cluster/events") as answer:
            reader = Reader(answer)
            kinds = []
            while True:
                event = await reader.next()
                assert event is not None
                kinds.append(event.event)
                if event.event == "cluster":
                    break
            assert kinds[0] == "history"
            assert len(event.data["members"]) == 3
            await crash(place.replicas[2])
            while True:
                event = await reader.next()
                assert event is not None
                states = [each["state"] for each in event.data.get("members", [])]
                if states.count("silent") == 1:
                    break

    ask(check)


def test_when_a_member_is_removed_then_it_must_be_gone_or_forced() -> None:
    async def check(place: Place) -> None:
        http, victim = place.http, place.replicas[2]
        name = victim.address
        problem(await http.post(f"/v1/cluster/members/{name}:remove"), 409, "member_runs")
        encoded = name.replace(":", "%3A")
        problem(await http.post(f"/v1/cluster/members/{encoded}:remove"), 409, "member_runs")
        problem(await http.post("/v1/cluster/members/10.0.0.1:1:remove"), 404, "member_not_found")
        problem(await http.post(f"/v1/cluster/members/{name}:remove?force=1"), 400, "bad_request")
        problem(await http.get(f"/v1/cluster/members/{name}:remove"), 405, "method_not_allowed")
        await crash(victim)
        async with asyncio.timeout(20):
            while (await http.post(f"/v1/cluster/members/{name}:remove")).status_code != 200:
                await asyncio.sleep(0.1)
        members = {each["address"] for each in (await http.get("/v1/cluster")).json()["members"]}
        assert name not in members
        assert (await http.put("/v1/kv/k", content=b"x")).status_code == 201

    ask(check, survey_ms=0)


def test_when_replicas_keep_nothing_then_there_is_no_log_and_no_snapshot() -> None:
    async def check(place: Place) -> None:
        problem(await place.http.get("/v1/log"), 409, "no_log")
        items = (await place.http.get("/v1/snapshots")).json()["items"]
        assert [each["slot"] for each in items] == [None, None, None]
        items = (await place.http.post("/v1/snapshots")).json()["items"]
        assert [each["saved"] for each in items] == [False, False, False]
        assert all("memory" in each["words"] for each in items)
        problem(await place.http.delete("/v1/log"), 405, "method_not_allowed")

    ask(check)


async def log_of(place: Place, limit: int) -> list[dict[str, Any]]:
    """All of it, page by page."""
    found: list[dict[str, Any]] = []
    since = 0
    while True:
        page = (await place.http.get(f"/v1/log?since={since}&limit={limit}")).json()
        assert len(page["items"]) <= limit
        found += page["items"]
        if page["next"] == since:
            return found
        since = page["next"]


def test_when_replicas_keep_a_log_then_it_is_told_message_by_message_and_snapshots_are_saved_on_demand(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with durable_group(tmp_path) as replicas:
            client = Client(KeyValueStore, client_config(replicas))
            async with client, served(client) as (gateway, serving, http):
                await check(Place(http, serving, gateway, client, replicas))

    async def check(place: Place) -> None:
        http = place.http
        revisions = [(await http.put(f"/v1/kv/{n}", content=b"v")).json()["revision"] for n in range(20)]
        large = (await http.put("/v1/kv/large", content=b"x" * 50_000)).json()["revision"]
        items = await log_of(place, 7)
        slots = [each["slot"] for each in items]
        assert slots == sorted(set(slots))
        copies = [each for each in items if each.get("method") == "put"]
        executed = {(each["session"], each["number"]): each for each in reversed(copies)}
        puts = sorted(executed.values(), key=lambda each: int(each["slot"]))
        assert [each["slot"] for each in puts] == [*revisions, large]
        assert {each["kind"] for each in items} >= {"view", "announce", "command"}
        assert puts[0]["arguments"]["key"] == "MA=="
        assert "arguments" not in puts[-1]
        assert [each["slot"] for each in await log_of(place, 1000)][: len(slots)] == slots
        for query in ("since=-1", "limit=0", "until=1"):
            problem(await http.get(f"/v1/log?{query}"), 400, "bad_request")
        saved = await http.post("/v1/snapshots")
        assert saved.status_code == 200
        assert [each["saved"] for each in saved.json()["items"]] == [True, True, True], saved.text
        kept = (await http.get("/v1/snapshots")).json()["items"]
        assert all(each["slot"] >= large for each in kept)
        assert all(each["mode"] == "durable" and each["bytes"] for each in kept)

    play(main())


def durable(directory: Path, **changes: Any) -> Replica[KeyValueStore]:
    return Replica(KeyValueStore, config(mode="durable", data=directory, **changes))


def durable_group(directory: Path) -> AbstractAsyncContextManager[list[Replica[Any]]]:
    return founded([durable(directory / str(n)) for n in range(3)])


def test_when_a_replica_serves_by_itself_then_it_is_the_same() -> None:
    async def main() -> None:
        async with (
            gateway_of() as place,
            served(place.replicas[1]) as (_gateway, _serving, http),
            http.stream("GET", "/v1/watch?since=0") as stream,
        ):
            made = await http.put("/v1/kv/k?qos=all", content=b"v")
            assert made.status_code == 201
            assert made.headers["x-rsm-replica"] == place.replicas[1].address
            assert made.headers["x-rsm-qos"] == "all"
            assert (await place.http.get("/v1/kv/k")).content == b"v"
            found = await http.get("/v1/kv/k?consistency=stale")
            assert found.headers["x-rsm-age"]
            event = await Reader(stream).next()
            assert event is not None
            assert event.data["key"] == "k"
            assert (await http.get("/v1/cluster")).json()["primary"] is True
            assert (await http.get("/readyz")).status_code == 200

    play(main())


def test_when_the_majority_is_gone_then_nothing_is_sent_and_it_says_so_until_it_is_back(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with durable_group(tmp_path) as replicas:
            client = Client(KeyValueStore, client_config(replicas))
            async with client, served(client, timeout=2.0) as (gateway, serving, http):
                await check(Place(http, serving, gateway, client, replicas))

    async def check(place: Place) -> None:
        http = place.http
        await http.put("/v1/kv/k", content=b"v")
        _, two, three = place.replicas
        await crash(two)
        await crash(three)
        answer = await http.put("/v1/kv/k", content=b"w")
        code = {503: "no_primary", 504: "outcome_unknown"}[answer.status_code]
        problem(answer, answer.status_code, code)
        await until(lambda: place.gateway.parts.store.is_lost)
        for answer in (
            await http.put("/v1/kv/k", content=b"w"),
            await http.get("/v1/kv/k"),
            await http.get("/v1/kv"),
            await http.get("/v1/watch"),
            await http.post("/v1/txn", json={}),
            await http.get("/readyz"),
        ):
            problem(answer, 503, "no_primary")
            assert answer.headers["retry-after"] == "1"
        assert (await http.get("/livez")).status_code == 200
        assert (await http.head("/livez")).status_code == 200
        stale = await http.get("/v1/kv/k?consistency=stale")
        assert stale.status_code == 200
        assert float(stale.headers["x-rsm-age"]) > 0
        assert (await http.get("/v1/cluster")).json()["primary"] is False
        again = durable(tmp_path / "1", bind=two.address)
        try:
            await again.open()
            again.join([each.address for each in place.replicas])
            async with asyncio.timeout(30):
                while (await http.get("/readyz")).status_code != 200:
                    await asyncio.sleep(0.05)
                while (await http.put("/v1/kv/k", content=b"z")).status_code != 200:
                    await asyncio.sleep(0.05)
        finally:
            await again.stop()

    play(main())


def test_when_nobody_answers_at_all_then_the_cluster_cannot_be_told() -> None:
    async def main() -> None:
        async with gateway_of(sites=1, timeout=0.5, survey_ms=0) as place:
            await crash(place.replicas[0])
            problem(await place.http.get("/v1/cluster"), 503, "no_primary")
            problem(await place.http.get("/v1/log"), 503, "no_primary")

    play(main())
