"""``/v1/kv/{key}``: every line of its table."""

import asyncio
import base64
from collections.abc import AsyncIterator

from apps.kv.store import KeyValueStore
from rsm.client import Client
from tests.api.gateways import Place, ask, client_config, healthy, problem, served


def test_when_a_key_is_written_then_it_is_created_first_and_written_after_that() -> None:
    async def check(place: Place) -> None:
        http = place.http
        made = await http.put("/v1/kv/a/b", content=b"one")
        assert made.status_code == 201
        shape = made.json()
        assert shape == {
            "key": "a/b",
            "revision": shape["revision"],
            "created": shape["revision"],
            "version": 1,
        }
        assert made.headers["etag"] == f'"{shape["revision"]}"'
        assert made.headers["x-rsm-timestamp"] == str(shape["revision"])
        assert made.headers["x-rsm-qos"] in {"majority", "all"}
        assert made.headers["x-rsm-replica"] in {replica.address for replica in place.replicas}
        assert made.headers["x-rsm-view"] == place.replicas[0].status().view
        again = await http.put("/v1/kv/a/b", content=b"two")
        assert again.status_code == 200
        assert again.json()["version"] == 2
        assert again.json()["created"] == shape["revision"]
        empty = await http.put("/v1/kv/empty")
        assert empty.status_code == 201
        assert (await http.get("/v1/kv/empty")).content == b""

    ask(check)


def test_when_a_key_is_read_then_its_value_comes_as_it_is_with_what_is_known_of_it() -> None:
    async def check(place: Place) -> None:
        http, value = place.http, bytes(range(256))
        made = (await http.put("/v1/kv/k", content=value)).json()
        found = await http.get("/v1/kv/k")
        assert found.status_code == 200
        assert found.content == value
        assert found.headers["content-type"] == "application/octet-stream"
        assert found.headers["x-content-type-options"] == "nosniff"
        assert found.headers["cache-control"] == "no-cache"
        assert found.headers["etag"] == f'"{made["revision"]}"'
        assert found.headers["x-rsm-created"] == str(made["created"])
        assert found.headers["x-rsm-version"] == "1"
        assert int(found.headers["x-rsm-timestamp"]) >= made["revision"]
        assert "x-rsm-lease" not in found.headers
        head = await http.head("/v1/kv/k")
        assert head.status_code == 200
        assert head.content == b""
        assert head.headers["content-length"] == "256"
        assert head.headers["etag"] == found.headers["etag"]
        same = await http.get("/v1/kv/k", headers={"if-none-match": f'"1", W/{found.headers["etag"]}'})
        assert same.status_code == 304
        assert same.content == b""
        assert (await http.get("/v1/kv/k", headers={"if-none-match": "*"})).status_code == 304
        assert (await http.get("/v1/kv/k", headers={"if-none-match": '"1"'})).status_code == 200
        assert (await http.get("/v1/kv/k", headers={"if-match": found.headers["etag"]})).status_code == 200
        problem(await http.get("/v1/kv/k", headers={"if-match": '"1"'}), 412, "conflict")
        problem(await http.get("/v1/kv/none", headers={"if-match": "*"}), 412, "conflict")
        missing = await http.get("/v1/kv/none")
        problem(missing, 404, "key_not_found")
        assert missing.headers["x-rsm-timestamp"]
        assert (await http.head("/v1/kv/none")).status_code == 404

    ask(check)


def test_when_an_older_revision_is_asked_for_then_it_is_what_the_key_was_as_long_as_it_is_retained() -> None:
    async def check(place: Place) -> None:
        http = place.http
        one = (await http.put("/v1/kv/k", content=b"one")).json()["revision"]
        two = (await http.put("/v1/kv/k", content=b"two")).json()["revision"]
        assert (await http.get(f"/v1/kv/k?revision={one}")).content == b"one"
        assert (await http.get(f"/v1/kv/k?revision={two}")).content == b"two"
        problem(await http.get(f"/v1/kv/k?revision={10**15}"), 400, "future")
        await place.client.proxy.compact(two)
        problem(await http.get(f"/v1/kv/k?revision={one}"), 410, "compacted")
        assert (await http.head(f"/v1/kv/k?revision={one}")).status_code == 410

    ask(check)


def test_when_a_write_has_a_condition_then_it_is_done_only_if_that_holds() -> None:
    async def check(place: Place) -> None:
        http = place.http
        absent = {"if-none-match": "*"}
        made = await http.put("/v1/kv/k", content=b"1", headers=absent)
        assert made.status_code == 201
        refused = await http.put("/v1/kv/k", content=b"2", headers=absent)
        assert problem(refused, 412, "conflict")["revision"] == made.json()["revision"]
        assert int(refused.headers["x-rsm-timestamp"]) > int(made.headers["x-rsm-timestamp"])
        assert refused.headers["x-rsm-view"] == made.headers["x-rsm-view"]
        etag = made.headers["etag"]
        changed = await http.put("/v1/kv/k", content=b"2", headers={"if-match": etag})
        assert changed.status_code == 200
        problem(await http.put("/v1/kv/k", content=b"3", headers={"if-match": etag}), 412, "conflict")
        assert (await http.put("/v1/kv/k", content=b"4", headers={"if-match": "*"})).status_code == 200
        problem(await http.put("/v1/kv/x", content=b"1", headers={"if-match": "*"}), 412, "conflict")
        problem(await http.delete("/v1/kv/k", headers={"if-match": etag}), 412, "conflict")
        assert (await http.get("/v1/kv/k")).content == b"4"

    ask(check)


def test_when_a_key_is_deleted_then_it_is_gone_and_cannot_be_deleted_again() -> None:
    async def check(place: Place) -> None:
        http = place.http
        await http.put("/v1/kv/k", content=b"1")
        gone = await http.delete("/v1/kv/k")
        assert gone.status_code == 204
        assert gone.content == b""
        assert gone.headers["x-rsm-timestamp"]
        problem(await http.get("/v1/kv/k"), 404, "key_not_found")
        problem(await http.delete("/v1/kv/k"), 404, "key_not_found")

    ask(check)


ENCODED = [
    ("a%20b", b"a b"),
    ("a+b", b"a+b"),
    ("%FF%00%fe", b"\xff\x00\xfe"),
    ("a%2Fb//c/", b"a/b//c/"),
    ("%E2%82%AC", "€".encode()),
    ("a;b=c,d:e", b"a;b=c,d:e"),
]


def test_when_a_key_is_percent_encoded_then_it_is_those_bytes() -> None:
    async def check(place: Place) -> None:
        for path, key in ENCODED:
            made = await place.http.put(f"/v1/kv/{path}", content=b"v")
            assert made.status_code == 201
            found = made.json()
            told = found["key"].encode() if "key" in found else base64.b64decode(found["key_base64"])
            assert told == key
            entry = await place.client.proxy.get(key)
            assert entry is not None
            assert (await place.http.get(f"/v1/kv/{path}")).content == b"v"

    ask(check, sites=1)


def test_when_a_key_has_a_time_to_live_then_it_ends_by_itself_and_with_a_lease_when_that_does() -> None:
    async def check(place: Place) -> None:
        http = place.http
        short = await http.put("/v1/kv/short?ttl=300ms", content=b"v")
        assert (await http.get("/v1/kv/short")).headers["x-rsm-lease"] == str(short.json()["lease"])
        lease = (await http.post("/v1/leases", json={"ttl": "1h"})).json()["id"]
        held = await http.put(f"/v1/kv/held?lease={lease}", content=b"v")
        assert held.json()["lease"] == lease
        async with asyncio.timeout(10):
            while (await http.get("/v1/kv/short")).status_code != 404:
                await asyncio.sleep(0.02)
        assert (await http.get("/v1/kv/held")).status_code == 200
        assert (await http.delete(f"/v1/leases/{lease}")).status_code == 204
        problem(await http.get("/v1/kv/held"), 404, "key_not_found")
        problem(await http.put(f"/v1/kv/held?lease={lease}", content=b"v"), 409, "lease_expired")
        problem(await http.put(f"/v1/kv/held?lease={lease}&ttl=1s", content=b"v"), 400, "bad_request")

    ask(check)


def test_when_a_request_is_repeated_over_another_gateway_then_it_is_carried_out_once() -> None:
    async def check(place: Place) -> None:
        once = {"idempotency-key": "request-1"}
        first = await place.http.put("/v1/kv/k", content=b"1", headers=once)
        other = Client(KeyValueStore, client_config(place.replicas))
        async with other, served(other) as (_gateway, _serving, http):
            again = await http.put("/v1/kv/k", content=b"1", headers=once)
            assert again.status_code == first.status_code == 201
            assert again.json() == first.json()
            problem(await http.put("/v1/kv/k", content=b"2", headers=once), 422, "key_reused")
            problem(await http.put("/v1/kv/k2", content=b"1", headers=once), 422, "key_reused")
            gone = {"idempotency-key": "request-2"}
            assert (await http.delete("/v1/kv/k", headers=gone)).status_code == 204
            assert (await place.http.delete("/v1/kv/k", headers=gone)).status_code == 204
        problem(await place.http.get("/v1/kv/k"), 404, "key_not_found")
        long = {"idempotency-key": "x" * 256}
        problem(await place.http.put("/v1/kv/k", content=b"1", headers=long), 400, "bad_request")

    ask(check)


def test_when_a_level_is_asked_for_then_the_one_that_was_reached_is_told() -> None:
    reached = {"ordered": "majority", "majority": "majority", "k:1": "majority", "k:2": "all", "all": "all"}

    async def check(place: Place) -> None:
        for qos, level in reached.items():
            made = await place.http.put(f"/v1/kv/{qos}?qos={qos}", content=b"v")
            assert made.status_code == 201
            assert made.headers["x-rsm-qos"] in {level, "all"}

    ask(check)


def test_when_a_read_may_be_weaker_then_it_says_how_old_it_is_and_misses_nothing_that_is_named() -> None:
    async def check(place: Place) -> None:
        http = place.http
        revision = (await http.put("/v1/kv/k", content=b"v")).json()["revision"]
        for consistency in ("linearizable", "sequential", "stale"):
            found = await http.get(f"/v1/kv/k?consistency={consistency}")
            assert found.status_code == 200
            assert ("x-rsm-age" in found.headers) == (consistency == "stale")
        named = {"x-rsm-timestamp": str(revision)}
        found = await http.get("/v1/kv/k?consistency=sequential", headers=named)
        assert int(found.headers["x-rsm-timestamp"]) >= revision
        wrong = {"x-rsm-timestamp": "soon"}
        problem(await http.get("/v1/kv/k?consistency=sequential", headers=wrong), 400, "bad_request")
        ahead = {"x-rsm-timestamp": str(revision + 1_000_000)}  # nobody was told of that slot
        for path in ("/v1/kv/k", "/v1/kv"):
            refused = await http.get(f"{path}?consistency=sequential", headers=ahead)
            problem(refused, 400, "future")

    ask(check)


def test_when_a_method_is_none_of_a_keys_then_it_says_which_are() -> None:
    async def check(place: Place) -> None:
        answer = await place.http.post("/v1/kv/k", content=b"v")
        problem(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == "DELETE, GET, HEAD, PUT"
        problem(await place.http.request("OPTIONS", "/v1/kv/k"), 405, "method_not_allowed")

    ask(check, sites=1)


WRONG_WRITES = [
    ("/v1/kv/k?tll=3s", {}),
    ("/v1/kv/k?ttl=3", {}),
    ("/v1/kv/k?ttl=0s", {}),
    ("/v1/kv/k?ttl=3s&ttl=4s", {}),
    ("/v1/kv/k?lease=0", {}),
    ("/v1/kv/k?lease=9223372036854775808", {}),
    ("/v1/kv/k?lease=x", {}),
    ("/v1/kv/k?qos=most", {}),
    ("/v1/kv/k?qos=k:65", {}),
    ("/v1/kv/k?qos=k:", {}),
    ("/v1/kv/", {}),
    ("/v1/kv/%zz", {}),
    ("/v1/kv/k%2", {}),
    ("/v1/kv/k", {"if-match": "17"}),
    ("/v1/kv/k", {"if-match": '"0"'}),
    ("/v1/kv/k", {"if-match": 'W/"17"'}),
    ("/v1/kv/k", {"if-match": '"17", "18"'}),
    ("/v1/kv/k", {"if-match": '"99999999999999999999"'}),
    ("/v1/kv/k", {"if-none-match": '"17"'}),
    ("/v1/kv/k", {"if-match": "*", "if-none-match": "*"}),
    ("/v1/kv/k", {"idempotency-key": ""}),
]


def test_when_a_write_cannot_be_understood_then_it_is_refused_and_nothing_is_written() -> None:
    async def check(place: Place) -> None:
        for path, headers in WRONG_WRITES:
            problem(await place.http.put(path, content=b"v", headers=headers), 400, "bad_request")
        assert (await place.client.proxy.statistics()).keys == 0
        await healthy(place)

    ask(check, sites=1)


WRONG_READS = [
    "/v1/kv/k?consistency=strong",
    "/v1/kv/k?revision=0",
    "/v1/kv/k?revision=-1",
    "/v1/kv/k?revision=",
    "/v1/kv/k?ttl=3s",
    "/v1/kv/k?%66oo=1",
]


def test_when_a_read_cannot_be_understood_then_it_is_refused() -> None:
    async def check(place: Place) -> None:
        for path in WRONG_READS:
            problem(await place.http.get(path), 400, "bad_request")
        await healthy(place)

    ask(check, sites=1)


def test_when_key_or_value_are_too_large_then_they_are_refused_and_the_ring_is_well() -> None:
    async def check(place: Place) -> None:
        http = place.http
        problem(await http.put("/v1/kv/" + "k" * 4097, content=b"v"), 413, "too_large")
        assert (await http.put("/v1/kv/" + "k" * 4096, content=b"v")).status_code == 201
        largest = bytes(1 << 20)
        assert (await http.put("/v1/kv/large", content=largest)).status_code == 201
        assert (await http.get("/v1/kv/large")).content == largest
        found = problem(await http.put("/v1/kv/large", content=largest + b"x"), 413, "too_large")
        assert found["bytes_max"] == 1 << 20

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(40):
                yield bytes(1 << 16)

        problem(await http.put("/v1/kv/large", content=endless()), 413, "too_large")
        encoded = {"content-encoding": "gzip"}
        problem(await http.put("/v1/kv/k", content=b"v", headers=encoded), 415, "unsupported_media_type")
        await healthy(place)

    ask(check)
