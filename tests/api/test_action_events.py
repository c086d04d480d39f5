"""Actions as they change: nothing is left out, and who was away is told the last word."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from api.tokens import Scope, make_token
from tests.api.banks import BankPlace, ask_bank, call, transfer
from tests.api.gateways import problem
from tests.api.test_watches import Reader
from tests.apps.actions.sites import until_voted


@asynccontextmanager
async def watching(
    place: BankPlace, query: str = "", headers: dict[str, str] | None = None
) -> AsyncIterator[Reader]:
    async with place.http.stream("GET", f"/v1/actions/events?{query}", headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Reader(answer)


async def until(reader: Reader, action: str, state: str) -> list[dict[str, Any]]:
    """What is told of an action, up to this state."""
    found: list[dict[str, Any]] = []
    while not found or found[-1]["state"] != state:
        sent = await reader.next()
        assert sent is not None
        assert sent.event in {"action", "ready"}
        if sent.event == "action" and sent.data["id"] == action:
            found.append(sent.data)
    return found


def test_when_an_action_goes_on_then_each_vote_is_told_as_it_is_ordered(tmp_path: Path) -> None:
    async def check(place: BankPlace) -> None:
        slow = place.bank.participants["b"]
        came = slow.hold("prepare")
        async with watching(place) as reader:
            ready = await reader.next()
            assert ready is not None
            assert ready.event == "ready"
            await place.http.post("/v1/actions?wait=1ms", json=transfer(1, id="t", timeout_ms=60_000))
            await came.wait()
            await until_voted(place.bank.managers["a"], "t", "a")
            seen = await until(reader, "t", "voting")
            while [each["site"] for each in seen[-1]["votes"]] != ["a"]:
                seen += await until(reader, "t", "voting")
            slow.release("prepare")
            (*_, last) = await until(reader, "t", "committed")
            assert [each["site"] for each in last["votes"]] == ["a", "b"]
            assert last["votes"][-1]["slot"] == last["decided"]
            while {each["site"] for each in last["finished"]} != {"a", "b"}:
                (last,) = await until(reader, "t", "committed")

    ask_bank(check, tmp_path)


def test_when_a_stream_is_lost_then_it_goes_on_behind_its_last_id(tmp_path: Path) -> None:
    async def check(place: BankPlace) -> None:
        async with watching(place, "since=0") as reader:
            await place.http.post("/v1/actions", json=transfer(1, id="first"))
            await until(reader, "first", "committed")
            last = reader.last_id
        assert int(last) > 0
        await place.http.post("/v1/actions", json=transfer(1, id="missed"))
        async with watching(place, headers={"last-event-id": last}) as reader:
            await until(reader, "missed", "committed")
            await place.http.post("/v1/actions", json=transfer(1, id="next"))
            await until(reader, "next", "committed")
        async with watching(place, "back=1000000") as reader:
            told = {(await reader.take(1))[0].data["id"] for _ in range(3)}
            assert told == {"first", "missed", "next"}

    ask_bank(check, tmp_path)


def test_when_one_action_is_watched_then_it_is_told_how_it_stands_and_nothing_of_others(
    tmp_path: Path,
) -> None:
    async def check(place: BankPlace) -> None:
        http = place.http
        await http.post("/v1/actions", json=transfer(1, id="mine", commit=False))
        async with watching(place, "id=mine") as reader:
            (first,) = await reader.take(1)
            assert first.data["state"] == "open"
            await http.post("/v1/actions", json=transfer(1, id="other"))
            await http.post("/v1/actions/mine:commit")
            found: list[str] = []
            while "committed" not in found:
                (sent,) = await reader.take(1)
                assert sent.data["id"] == "mine"
                found.append(sent.data["state"])
        problem(await http.get("/v1/actions/events?id=nobody"), 404, "action_not_found")
        problem(await http.get("/v1/actions/events?since=1&back=1"), 400, "bad_request")
        problem(await http.get("/v1/actions/events?since=9999999999"), 400, "future")
        problem(await http.get("/v1/actions/events", headers={"last-event-id": "x"}), 400, "bad_request")

    ask_bank(check, tmp_path)


def test_when_nothing_happens_then_signs_of_life_come_and_say_how_far_it_is(tmp_path: Path) -> None:
    async def check(place: BankPlace) -> None:
        async with watching(place, "back=0") as reader:
            async for line in reader.answer.aiter_lines():
                if line.startswith(":"):
                    break
            assert place.gateway.parts.watches.count == 1
            problem(await place.http.get("/v1/actions/events"), 429, "overloaded")

    ask_bank(check, tmp_path, heartbeat_s=0.05, watches_max=1)


def test_when_somebody_looks_at_the_board_then_it_tells_of_sites_and_not_of_locks(tmp_path: Path) -> None:
    async def check(place: BankPlace) -> None:
        async with place.http.stream("GET", "/v1/cluster/events") as answer:
            reader, found = Reader(answer), dict[str, Any]()
            while not {"history", "cluster", "sites", "second"} <= found.keys():
                (sent,) = await reader.take(1)
                found.setdefault(sent.event, sent.data)
        assert "locks" not in found
        assert found["cluster"]["app"] == "actions"
        assert [(each["name"], each["here"]) for each in found["sites"]["items"]] == [
            (name, True) for name in ("a", "b", "c")
        ]
        assert "operations" not in found["sites"]["items"][0]

    ask_bank(check, tmp_path)


def test_when_there_are_tokens_then_actions_are_read_and_written_by_their_scopes(tmp_path: Path) -> None:
    made = [make_token(scope.value, [scope]) for scope in (Scope.READ, Scope.WRITE)]
    file = tmp_path / "tokens"
    file.write_text("".join(f"{line}\n" for _, line in made))

    async def check(place: BankPlace) -> None:
        http = place.http
        read, write = ({"authorization": f"Bearer {token}"} for token, _ in made)
        body = {"operations": [call("a", "look", "a")], "id": "x"}
        problem(await http.post("/v1/actions", json=body), 401, "unauthenticated")
        problem(await http.post("/v1/actions", json=body, headers=read), 403, "forbidden")
        assert (await http.post("/v1/actions", json=body, headers=write)).status_code == 200
        problem(await http.post("/v1/actions/x:abort", headers=read), 403, "forbidden")
        for path in ("", "/x", "/sites"):
            problem(await http.get(f"/v1/actions{path}", headers=write), 403, "forbidden")
            assert (await http.get(f"/v1/actions{path}", headers=read)).status_code == 200
        problem(await http.get("/v1/actions/events", headers=write), 403, "forbidden")
        async with watching(place, "id=x", read) as reader:
            (first,) = await reader.take(1)
            assert first.data["operations"][0]["arguments"] == ["a"]

    ask_bank(check, tmp_path, tokens=file)
