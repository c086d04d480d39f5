"""Actions over HTTP: what commits, what does not, and what is told of it."""

import asyncio
from pathlib import Path
from typing import Any

from apps.actions.types import NewAction, Operation, State
from tests.api.banks import BankPlace, ask_bank, call, transfer
from tests.api.gateways import Place, ask, problem
from tests.apps.actions.sites import until, until_state, until_voted


def test_when_an_action_is_posted_then_it_is_committed_at_all_sites_and_says_who_voted(
    tmp_path: Path,
) -> None:
    async def check(place: BankPlace) -> None:
        answer = await place.http.post("/v1/actions", json=transfer(30, id="transfer 1/2"))
        assert answer.status_code == 200, answer.text
        assert answer.headers["location"] == "/v1/actions/transfer%201%2F2"
        found = answer.json()
        assert (found["id"], found["state"], found["reason"]) == ("transfer 1/2", "committed", "")
        assert found["sites"] == ["a", "b"]
        assert found["operations"] == [
            {"site": "a", "operation": "debit", "arguments": ["a", 30], "keys": ["a"]},
            {"site": "b", "operation": "credit", "arguments": ["b", 30], "keys": ["b"]},
        ]
        votes = found["votes"]
        assert sorted(each["site"] for each in votes) == ["a", "b"]
        assert all(each["yes"] for each in votes)
        assert found["requested"] < votes[0]["slot"] < votes[1]["slot"] == found["decided"]
        assert int(answer.headers["x-rsm-timestamp"]) >= found["decided"]
        await place.bank.managers["a"].finished("transfer 1/2")
        assert place.bank.found == [70, 130, 100]
        looked = (await place.http.get("/v1/actions/transfer%201%2F2")).json()
        assert {each["site"] for each in looked["finished"]} == {"a", "b"}
        assert looked["votes"] == votes
        again = await place.http.post("/v1/actions", json=transfer(30, id="transfer 1/2"))
        assert (again.status_code, again.json()["decided"]) == (200, found["decided"])
        other = problem(
            await place.http.post("/v1/actions", json=transfer(31, id="transfer 1/2")), 409, "action_exists"
        )
        assert other["state"] == "committed"
        assert place.bank.found == [70, 130, 100]

    ask_bank(check, tmp_path)


def test_when_a_site_votes_no_then_nothing_happens_anywhere_and_the_answer_is_a_conflict(
    tmp_path: Path,
) -> None:
    async def check(place: BankPlace) -> None:
        found = problem(
            await place.http.post("/v1/actions", json=transfer(101, id="much")), 409, "action_aborted"
        )
        assert "too little is there" in found["detail"]
        assert found["action"]["state"] == "aborted"
        (no,) = [each for each in found["action"]["votes"] if not each["yes"]]
        assert (no["site"], no["slot"]) == ("a", found["action"]["decided"])
        looked = await place.http.get("/v1/actions/much")
        assert (looked.status_code, looked.json()["state"]) == (200, "aborted")
        problem(await place.http.post("/v1/actions", json=transfer(101, id="much")), 409, "action_aborted")
        assert place.bank.found == [100, 100, 100]

    ask_bank(check, tmp_path)


def test_when_an_action_is_opened_then_it_is_committed_or_aborted_when_somebody_says_so(
    tmp_path: Path,
) -> None:
    async def check(place: BankPlace) -> None:
        http = place.http
        opened = await http.post("/v1/actions", json=transfer(5, id="o:1", commit=False))
        assert (opened.status_code, opened.json()["state"]) == (201, "open")
        assert opened.json()["requested"] is None
        again = await http.post("/v1/actions", json=transfer(5, id="o:1", commit=False))
        assert (again.status_code, again.json()["opened"]) == (201, opened.json()["opened"])
        problem(await http.post("/v1/actions", json=transfer(5, id="o:1")), 409, "action_exists")
        for _ in range(2):
            done = await http.post("/v1/actions/o:1:commit")
            assert (done.status_code, done.json()["state"]) == (200, "committed")
        problem(await http.post("/v1/actions/o:1:abort"), 409, "action_decided")
        await http.post("/v1/actions", json=transfer(5, id="o2", commit=False))
        for _ in range(2):
            dropped = await http.post("/v1/actions/o2:abort")
            assert (dropped.status_code, dropped.json()["state"]) == (200, "aborted")
        problem(await http.post("/v1/actions/o2:commit"), 409, "action_aborted")
        problem(await http.post("/v1/actions/o3:commit"), 404, "action_not_found")
        problem(await http.post("/v1/actions/o3:abort"), 404, "action_not_found")
        problem(await http.get("/v1/actions/o3"), 404, "action_not_found")
        problem(await http.get("/v1/actions/%FF"), 404, "action_not_found")
        await place.bank.managers["a"].finished("o:1")
        assert place.bank.found == [95, 105, 100]

    ask_bank(check, tmp_path)


def test_when_actions_are_listed_then_they_come_by_id_and_state_page_by_page(tmp_path: Path) -> None:
    async def check(place: BankPlace) -> None:
        http = place.http
        for name in ("c", "a", "b"):
            await http.post("/v1/actions", json=transfer(1, id=name))
        await http.post("/v1/actions", json=transfer(500, id="x"))
        await http.post("/v1/actions", json=transfer(1, id="y", commit=False))

        async def ids(query: str) -> list[str]:
            found: list[str] = []
            after: str | None = ""
            while after is not None:
                page = (await http.get(f"/v1/actions?{query}&after={after}")).json()
                found += [each["id"] for each in page["items"]]
                after = page["next"]
            return found

        assert await ids("limit=2") == ["a", "b", "c", "x", "y"]
        assert await ids("state=committed") == ["a", "b", "c"]
        assert await ids("state=aborted&limit=1") == ["x"]
        assert await ids("state=open") == ["y"]
        for wrong in ("state=done", "limit=0", "after=%FF", "state=open&state=open", "id=a"):
            problem(await http.get(f"/v1/actions?{wrong}"), 400, "bad_request")

    ask_bank(check, tmp_path)


def test_when_sites_are_listed_then_it_is_told_what_each_can_do_and_who_is_away(tmp_path: Path) -> None:
    async def check(place: BankPlace) -> None:
        found = (await place.http.get("/v1/actions/sites")).json()["items"]
        assert [each["name"] for each in found] == ["a", "b", "c"]
        assert all(each["here"] and not each["unfinished"] for each in found)
        assert found[0]["address"] == place.replicas[0].address
        debit = next(each for each in found[0]["operations"] if each["operation"] == "debit")
        assert debit["keys"] == ["account"]
        (described,) = debit["arguments"]["$defs"].values()
        assert described["properties"] == {
            "account": {"type": "string"},
            "amount": {"type": "integer", "exclusiveMinimum": 0},
        }
        assert described["required"] == ["account", "amount"]
        assert debit["result"] == {"type": "integer"}
        total = next(each for each in found[0]["operations"] if each["operation"] == "total")
        assert total["keys"] is None
        await place.bank.crash("c")
        while (found := (await place.http.get("/v1/actions/sites")).json()["items"])[2]["here"]:
            await asyncio.sleep(0.02)
        assert found[2]["operations"] is None
        told = problem(await place.http.post("/v1/actions", json=transfer(1, target="c")), 503, "site_away")
        assert told["site"] == "c"

    ask_bank(check, tmp_path)


def test_when_a_site_has_an_encoding_of_its_own_then_its_arguments_are_told_in_base64(
    tmp_path: Path,
) -> None:
    async def check(place: BankPlace) -> None:
        ledger = place.client.proxy
        for number, encoded in enumerate((b"\xff\xfe", b"", b"\x90", b"\x81\xa1a\x01", b"\x91\xa1\xff")):
            await ledger.open(NewAction(f"own-{number}", (Operation("a", "own", encoded),)))
        found = (await place.http.get("/v1/actions")).json()["items"]
        assert [each["operations"][0]["arguments"] for each in found] == [
            "//4=",
            "",
            "kA==",
            "gaFhAQ==",
            "kaH/",
        ]

    ask_bank(check, tmp_path)


def test_when_operations_are_added_to_an_open_action_then_it_commits_with_all_of_them(tmp_path: Path) -> None:
    async def check(place: BankPlace) -> None:
        http = place.http
        opened = await http.post("/v1/actions", json={"id": "cart/1", "commit": False})
        assert (opened.status_code, opened.json()["operations"]) == (201, [])
        path = "/v1/actions/cart%2F1"
        first = {"operations": [call("a", "debit", "a", 5)], "behind": 0}
        for _ in range(2):  # said again, it is done once
            added = await http.post(f"{path}:add", json=first)
            assert (added.status_code, added.json()["state"]) == (200, "open")
            assert [each["site"] for each in added.json()["operations"]] == ["a"]
        other = {"operations": [call("c", "credit", "c", 5)], "behind": 0}
        problem(await http.post(f"{path}:add", json=other), 409, "action_changed")
        added = await http.post(
            f"{path}:add", json={"operations": [call("b", "credit", account="b", amount=5)]}
        )
        assert added.json()["sites"] == ["a", "b"]
        wrong = {"operations": [call("a", "jump")]}
        problem(await http.post(f"{path}:add", json=wrong), 422, "invalid")
        problem(await http.post(f"{path}:add", json={"operations": []}), 422, "invalid")
        problem(await http.post(f"{path}:add", json={**first, "behind": 9}), 400, "bad_request")
        problem(await http.post("/v1/actions/none:add", json=first), 404, "action_not_found")
        done = await http.post(f"{path}:commit")
        assert (done.status_code, len(done.json()["operations"])) == (200, 2)
        problem(await http.post(f"{path}:add", json=first), 409, "action_decided")
        await place.bank.managers["a"].finished("cart/1")
        assert place.bank.found == [95, 105, 100]

    ask_bank(check, tmp_path)


UNBOUND: list[tuple[dict[str, Any], str]] = [
    (call("z", "debit", "a", 1), "operations.1.site"),
    (call("a", "jump"), "operations.1.operation"),
    (call("a", "debit", "a"), "operations.1.arguments"),
    (call("a", "debit", "a", 1, 2), "operations.1.arguments"),
    (call("a", "debit", "a", "1"), "operations.1.arguments"),
    (call("a", "debit", "a", 0), "operations.1.arguments"),
    (call("a", "debit", account="a", amount=1, note=""), "operations.1.arguments"),
    (call("a", "debit", account="a"), "operations.1.arguments"),
]


def test_when_an_operation_cannot_be_bound_then_its_place_is_named_and_nothing_is_requested(
    tmp_path: Path,
) -> None:
    async def check(place: BankPlace) -> None:
        http = place.http
        for wrong, where in UNBOUND:
            body = {"operations": [call("b", "credit", "b", 1), wrong]}
            found = problem(await http.post("/v1/actions", json=body), 422, "invalid")
            assert [each["place"] for each in found["errors"]] == [where], found
        for body in (
            {"operations": [{"site": "a"}]},
            {"operations": [{**call("a", "total"), "keys": []}]},
            {"operations": [{"site": "a", "operation": "debit", "arguments": "a"}]},
            {**transfer(1), "id": ""},
            {**transfer(1), "id": "x" * 257},
            {**transfer(1), "timeout_ms": 0},
            {**transfer(1), "depends": [""]},
            {**transfer(1), "wait": 1},
        ):
            assert problem(await http.post("/v1/actions", json=body), 422, "invalid")["errors"], body
        json = {"content-type": "application/json"}
        half = b'{"operations": [{"site": "a", "operation": "look", "arguments": ["\\ud800"]}]}'
        found = problem(await http.post("/v1/actions", content=half, headers=json), 422, "invalid")
        assert found["errors"][0]["place"] == "operations.0.arguments"
        problem(await http.post("/v1/actions", json={}), 400, "bad_request")
        problem(await http.post("/v1/actions", json=transfer(1), params={"wait": "soon"}), 400, "bad_request")
        large = {"operations": [call("a", "look", "x" * (3 << 20))]}
        problem(await http.post("/v1/actions", json=large), 413, "too_large")
        assert (await http.get("/v1/actions")).json() == {"items": [], "next": None}

    ask_bank(check, tmp_path)


def test_when_a_request_comes_again_by_its_key_then_it_is_carried_out_once(tmp_path: Path) -> None:
    async def check(place: BankPlace) -> None:
        once = {"idempotency-key": "k" * 255}
        first = await place.http.post("/v1/actions", json=transfer(1), headers=once)
        again = await place.http.post("/v1/actions", json=transfer(1), headers=once)
        assert (first.status_code, again.status_code) == (200, 200)
        assert first.json()["id"] == again.json()["id"]
        problem(await place.http.post("/v1/actions", json=transfer(2), headers=once), 422, "key_reused")
        problem(
            await place.http.post("/v1/actions", json=transfer(2), headers={"idempotency-key": ""}),
            400,
            "bad_request",
        )
        apart = await place.http.post("/v1/actions", json=transfer(1))
        assert apart.json()["id"] != first.json()["id"]
        await place.bank.managers["a"].finished(apart.json()["id"])
        assert place.bank.found == [98, 102, 100]

    ask_bank(check, tmp_path)


def test_when_a_request_comes_again_while_a_site_is_away_then_it_is_told_how_the_action_stands(
    tmp_path: Path,
) -> None:
    async def check(place: BankPlace) -> None:
        http, bank = place.http, place.bank
        keyed = {"idempotency-key": "k"}
        by_id = await http.post("/v1/actions", json=transfer(30, id="t"))
        by_key = await http.post("/v1/actions", json=transfer(1), headers=keyed)
        opened = await http.post("/v1/actions", json=transfer(2, id="open", commit=False))
        assert [each.status_code for each in (by_id, by_key, opened)] == [200, 200, 201]
        await bank.managers["a"].finished(by_key.json()["id"])
        await bank.stop("b")
        again = await http.post("/v1/actions", json=transfer(30, id="t"))
        assert (again.status_code, again.json()["decided"]) == (200, by_id.json()["decided"])
        again = await http.post("/v1/actions", json=transfer(1), headers=keyed)
        assert (again.status_code, again.json()["id"]) == (200, by_key.json()["id"])
        again = await http.post("/v1/actions", json=transfer(2, id="open", commit=False))
        assert (again.status_code, again.json()["opened"]) == (201, opened.json()["opened"])
        new = problem(await http.post("/v1/actions", json=transfer(30, id="new")), 503, "site_away")
        assert new["detail"].endswith("nothing was requested")
        for amount, id_, state in ((31, "t", "committed"), (2, "open", "open")):
            other = problem(await http.post("/v1/actions", json=transfer(amount, id=id_)), 503, "site_away")
            assert other["detail"].endswith(f"there is an action {id_!r}, and it is {state}")
        assert bank.found == [69, 131, 100]

    ask_bank(check, tmp_path)


def test_when_a_decision_takes_long_then_who_asked_is_told_how_it_stands(tmp_path: Path) -> None:
    async def check(place: BankPlace) -> None:
        http, slow = place.http, place.bank.participants["b"]
        came = slow.hold("prepare")
        answer = await http.post("/v1/actions?wait=50ms", json=transfer(1, id="slow", timeout_ms=60_000))
        assert (answer.status_code, answer.json()["state"]) == (202, "voting")
        await came.wait()
        await until_voted(place.bank.managers["a"], "slow", "a")
        behind = asyncio.ensure_future(http.post("/v1/actions", json=transfer(1, id="behind")))
        await until_state(place.bank.managers["a"], "behind", State.WAITING)
        looked = (await http.get("/v1/actions/behind")).json()
        assert (looked["state"], looked["waits_for"]) == ("waiting", ["slow"])
        assert place.gateway.parts.admission.waiting == 1
        assert place.gateway.parts.admission.under_way == 0
        slow.release("prepare")
        assert (await behind).status_code == 200
        again = await http.post("/v1/actions/slow:commit")
        assert (again.status_code, again.json()["state"]) == (200, "committed")
        depends = await http.post("/v1/actions", json=transfer(1, id="after", depends=["slow"]))
        assert (depends.status_code, depends.json()["depends"]) == (200, ["slow"])

    ask_bank(check, tmp_path)


def test_when_the_time_of_an_action_is_over_then_it_is_aborted(tmp_path: Path) -> None:
    async def check(place: BankPlace) -> None:
        place.bank.participants["b"].hold("prepare")
        answer = await place.http.post("/v1/actions", json=transfer(1, id="late", timeout_ms=200))
        assert "time was over" in problem(answer, 409, "action_aborted")["detail"]
        place.bank.participants["b"].release("prepare")

    ask_bank(check, tmp_path)


def test_when_a_client_goes_away_then_the_action_goes_on(tmp_path: Path) -> None:
    async def check(place: BankPlace) -> None:
        slow = place.bank.participants["b"]
        came = slow.hold("prepare")
        asking = asyncio.ensure_future(
            place.http.post("/v1/actions", json=transfer(1, id="left", timeout_ms=60_000))
        )
        await came.wait()
        asking.cancel()
        await until(lambda: place.gateway.parts.admission.waiting == 0)
        slow.release("prepare")
        assert (await place.bank.managers["a"].outcome("left")).state == "committed"

    ask_bank(check, tmp_path)


def test_when_the_gateway_stops_while_somebody_waits_then_it_is_told_how_the_action_stands(
    tmp_path: Path,
) -> None:
    async def check(place: BankPlace) -> None:
        slow = place.bank.participants["b"]
        came = slow.hold("prepare")
        asking = asyncio.ensure_future(
            place.http.post("/v1/actions", json=transfer(1, id="stopped", timeout_ms=60_000))
        )
        await came.wait()
        await place.serving.stop()
        answer = await asking
        assert (answer.status_code, answer.json()["state"]) == (202, "voting")
        slow.release("prepare")
        assert (await place.bank.managers["a"].outcome("stopped")).state == "committed"

    ask_bank(check, tmp_path)


def test_when_no_majority_is_there_then_nothing_is_requested_and_that_is_known(tmp_path: Path) -> None:
    async def check(place: BankPlace) -> None:
        slow = place.bank.participants["a"]
        came = slow.hold("prepare")
        waiting = asyncio.ensure_future(
            place.http.post("/v1/actions?wait=3s", json=transfer(1, id="before", timeout_ms=60_000))
        )
        await came.wait()
        for name in ("b", "c"):
            await place.bank.crash(name)
        while not place.gateway.parts.access.is_lost:
            await asyncio.sleep(0.02)
        problem(await place.http.post("/v1/actions", json=transfer(1, id="lost")), 503, "no_primary")
        problem(await place.http.get("/v1/actions/before"), 503, "no_primary")
        problem(await place.http.get("/v1/actions/events?since=0"), 503, "no_primary")
        answer = await waiting
        assert (answer.status_code, answer.json()["state"]) == (202, "voting")
        slow.release("prepare")

    ask_bank(check, tmp_path)


def test_when_a_gateway_serves_the_one_then_it_says_why_it_has_nothing_of_the_other(tmp_path: Path) -> None:
    async def check(place: BankPlace) -> None:
        for path in ("/v1/kv", "/v1/kv/a", "/v1/leases", "/v1/locks/x", "/v1/watch"):
            found = problem(await place.http.get(path), 404, "not_found")
            assert "serves actions" in found["detail"], path
        assert "nothing at this path" in (await place.http.get("/v1/nothing")).json()["detail"]
        for path in ("/v1/cluster", "/readyz", "/livez", "/metrics", "/docs", "/v1/snapshots"):
            assert (await place.http.get(path)).status_code == 200, path
        assert (await place.http.get("/v1/cluster")).json()["app"] == "actions"
        answer = await place.http.delete("/v1/actions/a")
        problem(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == "GET"

    ask_bank(check, tmp_path)

    async def check_keys(place: Place) -> None:
        found = problem(await place.http.get("/v1/actions/sites"), 404, "not_found")
        assert "serves the key-value store" in found["detail"]
        assert (await place.http.get("/v1/cluster")).json()["app"] == "kv"

    ask(check_keys, sites=1)
