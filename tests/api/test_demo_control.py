"""A demo's gateway, and the supervisor that it asks: here one that only writes down what it hears."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from api.control import Answer, DemoShape, Order, Question, Refusal
from api.settings import GatewaySettings
from tests.api.gateways import Place, ask, gateway_of, problem
from tests.api.test_board import until
from tests.api.test_security import token_file
from tests.api.test_watches import Reader
from tests.rsm.test_replica import play

ORDERS: tuple[Order, ...] = ("pause", "resume", "kill", "restart")


class Written:
    """What it was asked, and what it says."""

    def __init__(self) -> None:
        self.asked: list[Question] = []
        self.state: DemoShape = {
            "members": [{"name": "replica 1", "address": "127.0.0.1:1", "pid": 7, "state": "running"}],
            "restart_s": 3.0,
        }
        self.says: bytes | None = None

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = msgspec.json.decode(await reader.readline(), type=Question)
        if question.order is not None:
            self.asked.append(question)
            self.state["members"][0]["state"] = "down"
        told = Answer(demo=self.state)
        if question.order is not None and question.member != "replica 1":
            told = Answer(refusal=Refusal("member_not_found", "there is replica 1"))
        writer.write(msgspec.json.encode(told) if self.says is None else self.says)
        writer.close()


@asynccontextmanager
async def supervised(path: Path, **changes: Any) -> AsyncIterator[tuple[Place, Written]]:
    written = Written()
    async with (
        await asyncio.start_unix_server(written.answer, path),
        gateway_of(sites=1, demo=path, **changes) as place,
    ):
        yield place, written


def test_when_an_order_is_given_then_the_supervisor_hears_it_and_viewers_see_it_at_once(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with supervised(tmp_path / "s") as (place, written):
            found = await place.http.get("/v1/demo")
            assert found.json() == written.state
            async with place.http.stream("GET", "/v1/cluster/events") as answer:
                reader = Reader(answer)
                assert (await until(reader, "demo")).data["members"][0]["state"] == "running"
                done = await place.http.post("/v1/demo/members/replica%201:kill")
                assert done.status_code == 200
                assert done.json()["members"][0]["state"] == "down"
                assert (await until(reader, "demo")).data == done.json()
            for order in ORDERS:
                await place.http.post(f"/v1/demo/members/replica%201:{order}")
            assert written.asked == [Question(each, "replica 1") for each in (ORDERS[2], *ORDERS)]
            described = (await place.http.get("/openapi.json")).json()["paths"]
            assert "/v1/demo/members/{name}:{order}" in described

    play(main())


def test_when_an_order_is_none_or_for_nobody_then_it_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with supervised(tmp_path / "s") as (place, written):
            http = place.http
            problem(await http.post("/v1/demo/members/replica%209:kill"), 404, "member_not_found")
            problem(await http.post("/v1/demo/members/replica%201:burn"), 404, "not_found")
            problem(await http.post("/v1/demo/members/replica%201:kill?force=1"), 400, "bad_request")
            problem(await http.get("/v1/demo/members/replica%201:kill"), 405, "method_not_allowed")
            problem(await http.delete("/v1/demo"), 405, "method_not_allowed")
            assert [each.member for each in written.asked] == ["replica 9"]
            for garbage in (b"", b"{", b"x" * 100_000, b'{"refusal": 1}\n'):
                written.says = garbage
                problem(await http.get("/v1/demo"), 503, "no_supervisor")

    play(main())


def test_when_another_page_sends_an_order_then_it_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with supervised(tmp_path / "s") as (place, written):
            order = "/v1/demo/members/replica%201:kill"
            foreign = {"origin": "http://example.test"}
            problem(await place.http.post(order, headers=foreign), 403, "foreign_page")
            assert written.asked == []
            own = {"origin": place.serving.url}
            assert (await place.http.post(order, headers=own)).status_code == 200

    play(main())


def test_when_there_are_tokens_then_orders_need_admin(tmp_path: Path) -> None:
    path, headers = token_file(tmp_path)

    async def main() -> None:
        async with supervised(tmp_path / "s", tokens=path) as (place, written):
            order = "/v1/demo/members/replica%201:kill"
            for scope in ("read", "write"):
                problem(await place.http.post(order, headers=headers[scope]), 403, "forbidden")
            assert written.asked == []
            assert (await place.http.post(order, headers=headers["admin"])).status_code == 200
            assert (await place.http.get("/v1/demo", headers=headers["read"])).status_code == 200

    play(main())


def test_when_the_supervisor_is_gone_then_it_says_so_and_the_rest_goes_on(tmp_path: Path) -> None:
    async def check(place: Place) -> None:
        problem(await place.http.get("/v1/demo"), 503, "no_supervisor")
        async with place.http.stream("GET", "/v1/cluster/events") as answer:
            await until(Reader(answer), "cluster")

    ask(check, sites=1, demo=tmp_path / "nobody")


def test_when_it_is_no_demo_then_there_are_no_such_paths() -> None:
    async def check(place: Place) -> None:
        problem(await place.http.get("/v1/demo"), 404, "not_found")
        problem(await place.http.post("/v1/demo/members/replica%201:kill"), 404, "not_found")
        assert not any("demo" in path for path in (await place.http.get("/openapi.json")).json()["paths"])

    ask(check, sites=1)


def test_when_others_could_reach_a_demo_then_it_refuses_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="bind to"):
        GatewaySettings(bind="0.0.0.0:80", insecure=True, demo=tmp_path / "s")
