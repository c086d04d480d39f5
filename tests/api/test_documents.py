"""Many keys at once, counters, history, transactions."""

from typing import Any

from tests.api.gateways import Place, ask, healthy, problem


async def fill(place: Place, *keys: str) -> None:
    for key in keys:
        assert (await place.http.put(f"/v1/kv/{key}", content=key.encode())).status_code == 201


async def pages(place: Place, query: str) -> list[dict[str, Any]]:
    """All items of a listing, page by page."""
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        answer = await place.http.get(f"/v1/kv?{query}{cursor}")
        assert answer.status_code == 200, answer.text
        found += answer.json()["items"]
        if answer.json()["cursor"] is None:
            return found
        cursor = f"&cursor={answer.json()['cursor']}"


def test_when_keys_are_listed_then_they_come_in_order_page_by_page() -> None:
    async def check(place: Place) -> None:
        names = [f"a/{n:02}" for n in range(7)] + ["b", "c/1"]
        await fill(place, *reversed(names))
        assert [each["key"] for each in await pages(place, "limit=2")] == names
        assert [each["key"] for each in await pages(place, "prefix=a/&limit=3")] == names[:7]
        assert [each["key"] for each in await pages(place, "start=a/05&end=c")] == ["a/05", "a/06", "b"]
        assert [each["key"] for each in await pages(place, "start=b")] == ["b", "c/1"]
        first = (await place.http.get("/v1/kv?limit=1")).json()["items"][0]
        assert first["value"] == "a/00"
        assert first["version"] == 1
        assert first["revision"] == first["created"]
        bare = await place.http.get("/v1/kv?keys_only=true&limit=1")
        assert "value" not in bare.json()["items"][0]
        assert bare.json()["revision"] <= int(bare.headers["x-rsm-timestamp"])
        for consistency in ("sequential", "stale"):
            assert (await place.http.get(f"/v1/kv?consistency={consistency}")).status_code == 200

    ask(check)


def test_when_keys_are_no_text_then_they_are_listed_in_base64() -> None:
    async def check(place: Place) -> None:
        await place.http.put("/v1/kv/%FF%FE", content=b"\x80")
        (found,) = (await place.http.get("/v1/kv?prefix=%FF")).json()["items"]
        assert found["key_base64"] == "//4="
        assert found["value_base64"] == "gA=="
        assert "key" not in found
        assert "value" not in found

    ask(check, sites=1)


def test_when_a_listing_is_huge_then_its_pages_are_bounded() -> None:
    async def check(place: Place) -> None:
        for n in range(5):
            await place.http.put(f"/v1/kv/{n}", content=b"x" * 500_000)
        page = await place.http.get("/v1/kv?limit=9223372036854775807")
        assert page.status_code == 200
        assert len(page.content) < 2 << 20
        assert page.json()["cursor"] is not None
        assert len(await pages(place, "limit=1000000")) == 5
        await healthy(place)

    ask(check)


def test_when_a_range_is_deleted_then_it_must_be_named() -> None:
    async def check(place: Place) -> None:
        http = place.http
        await fill(place, "a/1", "a/2", "a/3", "b", "c")
        problem(await http.delete("/v1/kv"), 400, "bad_request")
        gone = await http.delete("/v1/kv?prefix=a/&limit=2")
        assert gone.status_code == 200
        assert gone.json() == {"deleted": 2, "more": True, "revision": int(gone.headers["x-rsm-timestamp"])}
        assert (await http.delete("/v1/kv?start=a&end=c")).json()["deleted"] == 2
        assert (await http.delete("/v1/kv?prefix=")).json() | {"revision": 0} == {
            "deleted": 1,
            "more": False,
            "revision": 0,
        }
        once = {"idempotency-key": "sweep"}
        await fill(place, "d")
        first = await http.delete("/v1/kv?prefix=d", headers=once)
        await http.put("/v1/kv/d", content=b"again")
        assert (await http.delete("/v1/kv?prefix=d", headers=once)).json() == first.json()
        assert (await http.get("/v1/kv/d")).status_code == 200

    ask(check)


def test_when_a_counter_is_added_to_then_it_counts_within_its_bounds() -> None:
    async def check(place: Place) -> None:
        http = place.http
        one = await http.post("/v1/counters/n/x")
        assert one.status_code == 200
        assert one.json() == {"key": "n/x", "value": 1, "revision": int(one.headers["x-rsm-timestamp"])}
        assert (await http.post("/v1/counters/n/x?delta=-5")).json()["value"] == -4
        assert (await http.post("/v1/counters/n/x?delta=0")).json()["value"] == -4
        assert (await http.get("/v1/kv/n/x")).content == b"-4"
        assert (await http.post("/v1/counters/a%0Ab")).json()["key"] == "a\nb"
        once = {"idempotency-key": "add"}
        assert (await http.post("/v1/counters/n/x?delta=2", headers=once)).json()["value"] == -2
        assert (await http.post("/v1/counters/n/x?delta=2", headers=once)).json()["value"] == -2
        problem(await http.post("/v1/counters/n/x?delta=3", headers=once), 422, "key_reused")
        await http.post("/v1/counters/full?delta=9223372036854775807")
        problem(await http.post("/v1/counters/full"), 409, "out_of_range")
        await http.put("/v1/kv/text", content=b"x")
        problem(await http.post("/v1/counters/text"), 409, "not_a_number")
        problem(await http.post("/v1/counters/n?delta=9223372036854775808"), 400, "bad_request")
        problem(await http.post("/v1/counters/n?delta=1.5"), 400, "bad_request")
        problem(await http.post("/v1/counters/"), 400, "bad_request")
        answer = await http.get("/v1/counters/n")
        problem(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == "POST"

    ask(check)


def test_when_history_is_asked_for_then_it_tells_what_happened_as_far_as_it_is_retained() -> None:
    async def check(place: Place) -> None:
        http = place.http
        made = (await http.put("/v1/kv/k", content=b"1")).json()["revision"]
        written = (await http.put("/v1/kv/k", content=b"2")).json()["revision"]
        await http.delete("/v1/kv/k")
        found = (await http.get("/v1/history/k")).json()
        assert [(each["event"], each.get("value")) for each in found["items"]] == [
            ("put", "1"),
            ("put", "2"),
            ("delete", None),
        ]
        assert not found["more"]
        assert found["items"][0]["revision"] == made
        since = (await http.get(f"/v1/history/k?since={made}&limit=1")).json()
        assert [each["revision"] for each in since["items"]] == [written]
        assert since["more"]
        await place.client.proxy.compact(written)
        assert (await http.get("/v1/history/k")).json()["retained_from"] == written + 1
        assert (await http.get("/v1/history/nothing")).json()["items"] == []

    ask(check)


def test_when_comparisons_hold_then_the_one_branch_is_carried_out_else_the_other() -> None:
    async def check(place: Place) -> None:
        http = place.http
        body = {
            "compare": [{"key": "a", "target": "exists", "with": False}],
            "then": [
                {"op": "put", "key": "a", "value": "1"},
                {"op": "add", "key": "n", "delta": 4},
                {"op": "get", "key": "a"},
                {"op": "range", "prefix": "", "limit": 1},
                {"op": "delete", "key": "b"},
            ],
            "else": [{"op": "get", "key": "a"}, {"op": "get", "key_base64": "/w=="}],
        }
        first = await http.post("/v1/txn", json=body)
        assert first.status_code == 200
        found = first.json()
        assert found["succeeded"]
        assert found["revision"] == int(first.headers["x-rsm-timestamp"])
        put, added, got, listed, deleted = found["results"]
        assert (put["key"], put["version"]) == ("a", 1)
        assert (added["key"], added["value"]) == ("n", 4)
        assert got["item"]["value"] == "1"
        assert [each["key"] for each in listed["items"]] == ["a"]
        assert listed["cursor"] is not None
        assert deleted == {"revision": found["revision"], "deleted": False}
        second = (await http.post("/v1/txn", json=body)).json()
        assert not second["succeeded"]
        assert second["results"][0]["item"]["revision"] == found["revision"]
        assert second["results"][1] == {"item": None}

    ask(check)


def test_when_a_transaction_compares_then_every_target_is_compared_with_what_it_is() -> None:
    async def check(place: Place) -> None:
        http = place.http
        made = (await http.put("/v1/kv/k", content=b"\xff")).json()
        lease = (await http.post("/v1/locks/l", json={"ttl": "1m"})).json()
        for compare, holds in (
            ({"key": "k", "target": "revision", "with": made["revision"]}, True),
            ({"key": "k", "target": "revision", "op": ">", "with": made["revision"]}, False),
            ({"key": "k", "target": "version", "op": "<", "with": 2}, True),
            ({"key": "k", "target": "created", "op": "!=", "with": 0}, True),
            ({"key": "k", "target": "lease", "with": 0}, True),
            ({"key": "k", "target": "value", "with_base64": "/w=="}, True),
            ({"key": "k", "target": "value", "with": "x"}, False),
            ({"key": "k", "target": "exists", "with": True}, True),
            ({"key": "l", "target": "lock", "with": lease["token"]}, True),
        ):
            answer = await http.post("/v1/txn", json={"compare": [compare]})
            assert answer.status_code == 200, answer.text
            assert answer.json()["succeeded"] is holds, compare

    ask(check)


def test_when_an_operation_of_a_transaction_is_refused_then_nothing_of_it_is_done() -> None:
    async def check(place: Place) -> None:
        http = place.http
        body = {
            "then": [
                {"op": "put", "key": "a", "value": "1"},
                {"op": "put", "key": "b", "value": "1", "lease": 77},
            ]
        }
        found = problem(await http.post("/v1/txn", json=body), 409, "lease_expired")
        assert found["operation"] == 1
        problem(await http.get("/v1/kv/a"), 404, "key_not_found")
        once = {"idempotency-key": "txn"}
        body = {"then": [{"op": "add", "key": "n"}]}
        first = await http.post("/v1/txn", json=body, headers=once)
        assert (await http.post("/v1/txn", json=body, headers=once)).json() == first.json()
        problem(await http.post("/v1/txn", json={}, headers=once), 422, "key_reused")
        many = {"then": [{"op": "get", "key": "a"}] * 200}
        problem(await http.post("/v1/txn", json=many), 413, "too_large")
        large = {"then": [{"op": "put", "key": "a", "value": "x" * (2 << 20)}]}
        problem(await http.post("/v1/txn", json=large), 413, "too_large")
        await healthy(place)

    ask(check)


MALFORMED = [
    {"then": [{"op": "jump", "key": "a"}]},
    {"then": [{"op": "put", "key": "a"}]},
    {"then": [{"op": "put", "value": "a"}]},
    {"then": [{"op": "put", "key": "a", "key_base64": "YQ==", "value": "1"}]},
    {"then": [{"op": "put", "key": "a", "value_base64": "?"}]},
    {"then": [{"op": "put", "key": "a", "value": "1", "ttl": "soon"}]},
    {"then": [{"op": "put", "key": "a", "value": "1", "ttl": "1s", "lease": 1}]},
    {"then": [{"op": "add", "key": "a", "delta": 1 << 64}]},
    {"then": {"op": "get", "key": "a"}},
    {"then": "get"},
    {"them": []},
    {"compare": [{"key": "a", "target": "size", "with": 1}]},
    {"compare": [{"key": "a", "target": "exists", "with": 1}]},
    {"compare": [{"key": "a", "target": "revision", "with": "1"}]},
    {"compare": [{"key": "a", "target": "revision"}]},
    {"compare": [{"key": "a", "target": "revision", "with_base64": "YQ=="}]},
    [],
    None,
]


def test_when_a_transaction_has_another_shape_then_each_wrong_field_is_named() -> None:
    async def check(place: Place) -> None:
        for body in MALFORMED:
            found = problem(await place.http.post("/v1/txn", json=body), 422, "invalid")
            assert found["errors"], body
            assert all(each["words"] for each in found["errors"])
        json = {"content-type": "application/json"}
        half = b'{"then": [{"op": "get", "key": "\\ud800"}]}'
        problem(await place.http.post("/v1/txn", content=half, headers=json), 422, "invalid")
        for text in (b"{", b'{"then": "\xff"}', b"", b"[1", b"\xff\xfe"):
            answer = await place.http.post("/v1/txn", content=text, headers=json)
            assert answer.status_code in {400, 422}, text
            problem(answer, answer.status_code, "bad_request" if answer.status_code == 400 else "invalid")
        answer = await place.http.post("/v1/txn", content=b"{}", headers={"content-type": "text/plain"})
        problem(answer, 415, "unsupported_media_type")
        problem(await place.http.post("/v1/txn?dry=1", json={}), 400, "bad_request")
        deep = b'{"then":' * 5000
        problem(await place.http.post("/v1/txn", content=deep, headers=json), 400, "bad_request")
        assert (await place.client.proxy.statistics()).keys == 0

    ask(check, sites=1)


WRONG_LISTINGS = [
    "limit=0",
    "limit=-1",
    "limit=x",
    "cursor=x",
    "cursor=%FF",
    "cursor=MmI=",
    "prefix=b&cursor=MWE=",
    "keys_only=yes",
    "prefix=a&start=b",
    "start=b&end=a",
    "start=b&end=b",
    "key=a",
    "prefix=a&prefix=b",
    "prefix=%f",
]


def test_when_a_listing_cannot_be_understood_then_it_is_refused() -> None:
    async def check(place: Place) -> None:
        for query in WRONG_LISTINGS:
            problem(await place.http.get(f"/v1/kv?{query}"), 400, "bad_request")
        answer = await place.http.post("/v1/kv", content=b"x")
        problem(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == "DELETE, GET"
        problem(await place.http.get("/v2/kv"), 404, "not_found")
        problem(await place.http.get("/v1/kvx"), 404, "not_found")
        problem(await place.http.get("/v1"), 404, "not_found")
        problem(await place.http.get("/v1/%6bv/x"), 404, "not_found")

    ask(check, sites=1)
