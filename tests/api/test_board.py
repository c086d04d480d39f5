"""What the dashboard is told: by whom, how often, and to how many."""

import asyncio
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import pytest

from api import board
from api.board import Viewer
from api.cluster import shape_of
from api.problems import Problem
from api.store import App
from rsm.status import ReplicaStatus, Standing, ViewStatus
from rsm.survey import STATUS_SECONDS, Picture
from tests.api.gateways import Place, ask, problem
from tests.api.test_watches import Reader, Sent
from tests.rsm.test_replica import crash


async def until(reader: Reader, kind: str) -> Sent:
    while True:
        event = await reader.next()
        assert event is not None, f"it ended without {kind}"
        if event.event == kind:
            return event


def test_when_somebody_looks_then_every_second_tells_figures_and_the_way_of_the_token() -> None:
    async def check(place: Place) -> None:
        sites = {replica.status().site for replica in place.replicas}
        async with place.http.stream("GET", "/v1/cluster/events") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            reader = Reader(answer)
            history = await reader.next()
            assert history is not None
            assert (history.event, history.data) == ("history", {"seconds": []})
            await until(reader, "cluster")
            await until(reader, "second")
            for number in range(5):
                await place.http.put(f"/v1/kv/{number}", content=b"x")
            await place.http.get("/v1/kv/1")
            seconds: list[dict[str, Any]] = []
            path: list[dict[str, Any]] = []
            while not seconds or sum(each["requests"]["rate"] * each["seconds"] for each in seconds) < 5.5:
                seconds.append((await until(reader, "second")).data)
                path += seconds[-1]["token"]["path"]
            assert sum(each["ordering"]["rate"] * each["seconds"] for each in seconds) > 4.5
            assert any(each["requests"]["writes"]["p99_ms"] for each in seconds)
            assert any(each["requests"]["reads"]["p50_ms"] for each in seconds)
            assert any(each["network"]["datagrams"] for each in seconds)
            assert {each["source"] for each in path} | {each["target"] for each in path} <= sites
            slots = [each["slot"] for each in path]
            assert slots == sorted(set(slots))
            for one, following in pairwise(path):
                if following["slot"] == one["slot"] + one["messages"]:  # nothing is missing between them
                    assert following["source"] == one["target"]
        async with place.http.stream("GET", "/v1/cluster/events") as answer:
            again = await Reader(answer).next()
            assert again is not None
            assert len(again.data["seconds"]) >= len(seconds)
            assert "token" not in again.data["seconds"][0]

    ask(check)


def test_when_a_lock_is_taken_then_its_holder_is_told() -> None:
    async def check(place: Place) -> None:
        async with place.http.stream("GET", "/v1/cluster/events") as answer:
            reader = Reader(answer)
            assert (await until(reader, "locks")).data == {"items": []}
            made = (await place.http.post("/v1/locks/one", json={"ttl": "60s"})).json()
            (lock,) = (await until(reader, "locks")).data["items"]
            assert (lock["name"], lock["token"]) == ("one", made["token"])

    ask(check, sites=1)


def test_when_many_look_then_the_group_is_asked_once_and_not_at_all_when_nobody_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check(place: Place) -> None:
        asked: list[float] = []
        group, shown = place.gateway.parts.store.group, place.gateway.parts.board
        survey = group.survey

        async def counted(patience_s: float = STATUS_SECONDS) -> Picture:
            asked.append(patience_s)
            return await survey(patience_s)

        async def look(viewers: int) -> None:
            joined = [shown.join(lambda: None) for _ in range(viewers)]
            for viewer in joined:
                async with aclosing(viewer.chunks()) as stream:
                    text = b""
                    while b"event: cluster" not in text:
                        text += await anext(stream)
            for viewer in joined:
                await shown.leave(viewer)

        monkeypatch.setattr(group, "survey", counted)
        monkeypatch.setattr(board, "SECONDS_BETWEEN", 60.0)
        await look(20)
        assert asked == [board.PATIENCE_SECONDS]
        monkeypatch.setattr(board, "SECONDS_BETWEEN", 0.0)
        await look(1)
        before = len(asked)
        for _ in range(20):  # many turns of the loop; who looked would ask in each
            await place.http.put("/v1/kv/k", content=b"x")
        assert len(asked) == before

    ask(check)


def test_when_a_viewer_does_not_read_then_it_is_dropped_and_nobody_else_waits() -> None:
    async def check(place: Place) -> None:
        shown = place.gateway.parts.board
        aborted: list[str] = []
        slow = shown.join(lambda: aborted.append("slow"))
        reads = shown.join(lambda: aborted.append("reads"))
        stream = reads.chunks()
        text = b"event: second\ndata: %s\n\n" % (b"0" * 100_000)
        for _ in range(20):
            for viewer in (slow, reads):
                viewer.take(text)
            await anext(stream)
        assert aborted == ["slow"]
        assert (slow.is_over, reads.is_over) == (True, False)
        last = b"".join([chunk async for chunk in slow.chunks()])
        assert b"overloaded" in last
        assert len(last) < 1000  # what waited is not kept
        for viewer in (slow, reads):
            await shown.leave(viewer)

    ask(check, sites=1)


def test_when_a_viewer_is_ended_then_it_gets_what_waited_and_why() -> None:
    async def main() -> None:
        viewer = Viewer(lambda: None)
        viewer.take(b"event: x\ndata: 1\n\n")
        viewer.end(Problem("stopping", "words"))
        viewer.take(b"event: y\ndata: 2\n\n")
        said = b"".join([chunk async for chunk in viewer.chunks()])
        assert said.startswith(b"event: x")
        assert b"event: y" not in said
        assert b'"code":"stopping"' in said

    asyncio.run(main())


def test_when_there_are_too_many_streams_then_a_viewer_is_refused() -> None:
    async def check(place: Place) -> None:
        async with place.http.stream("GET", "/v1/cluster/events") as answer:
            assert await Reader(answer).next() is not None
            problem(await place.http.get("/v1/cluster/events"), 429, "overloaded")

    ask(check, sites=1, watches_max=1)


def test_when_nobody_in_the_group_answers_then_that_is_told_and_figures_go_on() -> None:
    async def check(place: Place) -> None:
        async with place.http.stream("GET", "/v1/cluster/events") as answer:
            reader = Reader(answer)
            await until(reader, "cluster")
            await crash(place.replicas[0])
            assert (await until(reader, "error")).data["code"] == "no_primary"
            assert (await until(reader, "second")).data["ordering"]["rate"] == 0.0

    ask(check, sites=1)


def test_when_the_board_has_a_defect_then_viewers_are_told_and_the_next_one_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check(place: Place) -> None:
        def broken(*_: object) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as patched:
            patched.setattr(board, "second_of", broken)
            async with place.http.stream("GET", "/v1/cluster/events") as answer:
                reader = Reader(answer)
                assert (await until(reader, "error")).data["code"] == "defect"
                assert await reader.next() is None
        async with place.http.stream("GET", "/v1/cluster/events") as answer:
            await until(Reader(answer), "second")

    ask(check, sites=1)


def test_when_the_gateway_stops_then_viewers_are_told() -> None:
    async def check(place: Place) -> None:
        async with place.http.stream("GET", "/v1/cluster/events") as answer:
            reader = Reader(answer)
            await until(reader, "cluster")
            await place.gateway.stop()
            assert (await until(reader, "error")).data["code"] == "stopping"
            assert await reader.next() is None

    ask(check, sites=1)


def test_when_a_member_is_back_then_views_from_before_are_still_told() -> None:
    """Who came back knows the last view alone; the others know the rest, and why each came."""

    def view(name: str, slot: int, why: str) -> ViewStatus:
        return ViewStatus(view=name, slot=slot, at_s=0.0, ring=[], electorate=[], learners=[], why=why)

    def said(chain: str, *views: ViewStatus) -> ReplicaStatus:
        return ReplicaStatus(
            group="g",
            address="a",
            site="1",
            standing=Standing.SERVING,
            mode="memory",
            chain=chain,
            view="2.1",
            views=list(views),
        )

    back = said("c", view("2.1", 12, "the first view seen"))
    stayed = said(
        "c", view("1.0", 1, "the first view seen"), view("2.0", 9, "gone"), view("2.1", 12, "joined")
    )
    other = said("d", view("7.0", 3, "another chain"))
    for answers in ([back, stayed, other], [stayed, other, back]):
        picture = Picture({str(n): each for n, each in enumerate([*answers, None])}, "c", back)
        told = shape_of(picture, back, App.KV)["views"]
        assert [(each["view"], each["why"]) for each in told] == [
            ("1.0", "the first view seen"),
            ("2.0", "gone"),
            ("2.1", "joined"),
        ]
