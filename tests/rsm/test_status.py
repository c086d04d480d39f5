"""Status: one type, and what is in it is so."""

import asyncio
import stat
import time
from itertools import pairwise
from pathlib import Path

import msgspec

from ordering.naming import group_id
from ordering.views import Member, SiteId, View, ViewId
from rsm.client import Client, ClientConfig
from rsm.pages import fetch_locally
from rsm.replica import Replica
from rsm.status import ReplicaStatus, Role, Standing, describe_change
from rsm.transfer import Peer
from rsm.watch import VIEWS_KEPT
from tests.rsm.machines import Counter
from tests.rsm.test_durable import Cluster
from tests.rsm.test_replica import config, crash, group_of, play

A, B, C, D = (Member(SiteId(n), n, f"h{n}:1") for n in (1, 2, 3, 4))


def view(epoch: int, members: tuple[Member, ...], voters: str = "123", ring: str = "123") -> View:
    return View(
        ViewId(epoch, 0), members, tuple(SiteId(int(n)) for n in voters), tuple(SiteId(int(n)) for n in ring)
    )


def test_what_made_a_view_another_is_said_in_words() -> None:
    whole = view(1, (A, B, C))
    assert describe_change(None, whole) == "the first view seen"
    assert describe_change(whole, view(2, (A, B, C), ring="12")) == "view change; out of the ring: h3:1"
    joined = view(1, (A, B, C, D))
    assert describe_change(whole, joined) == "joined: h4:1"
    assert (
        describe_change(joined, view(1, (A, B, C, D), "1234", "1234")) == "now votes: h4:1; in the ring: h4:1"
    )
    assert describe_change(whole, view(1, (A, B), "12", "12")) == "gone: h3:1"
    again = Member(C.site, 99, C.address)
    assert describe_change(whole, view(2, (A, B, again))) == "view change; restarted: h3:1"
    assert describe_change(whole, view(2, (A, B, C))) == "view change; nobody changed"


def test_when_a_replica_is_asked_then_it_knows_itself_and_what_the_others_have_said() -> None:
    async def main() -> None:
        async with group_of(Counter) as (one, two, three):
            await one.proxy.add(1)
            async with one.lock("door") as grant:
                asked = await Peer(one.address, None, group_id("tested"), 1).status()
            assert asked is not None
            assert asked.standing is Standing.SERVING
            assert asked.boot == f"{one.member.boot:032x}"
            assert asked.token in {f"{each.member.site:x}" for each in (one, two, three)}
            assert asked.token_address in {each.address for each in (one, two, three)}
            (door,) = [lock for lock in asked.locks if lock.name == "door"]
            assert (door.address, door.fence, door.handler) == (one.address, grant.fencing_token, False)
            handlers = {lock.address for lock in asked.locks if lock.name == "1"}
            assert handlers == {each.address for each in (one, two, three) if each.status().handler}
            assert asked.received >= asked.held >= asked.applied > 0
            traffic, sites = asked.traffic, {f"{each.member.site:x}" for each in (one, two, three)}
            assert traffic is not None
            assert traffic.datagrams_out > 0
            assert traffic.bytes_in > traffic.datagrams_in > 0
            assert sum(traffic.latency) > 0
            assert traffic.passes >= len(traffic.path) > 0
            assert {each.source for each in traffic.path} | {each.target for each in traffic.path} <= sites
            for before, after in pairwise(traffic.path):
                assert after.slot == before.last + 1
                assert after.epoch > before.epoch or after.source == before.target
                assert after.at_ns >= before.at_ns
            assert [each.role for each in asked.members] == [Role.RING] * 3
            mine, *others = sorted(asked.members, key=lambda each: each.site != asked.site)
            assert (mine.applied, mine.state, mine.boot) == (asked.applied, "serving", asked.boot)
            assert {each.boot for each in others} == {f"{each.member.boot:032x}" for each in (two, three)}
            for other in others:
                assert (other.applied, other.log_bytes, other.state) == (None, None, "heard")
                assert 0 < other.held <= asked.received
            (born,) = asked.views
            assert born.ring == [each.address for each in asked.members]
            assert abs(born.at_s - time.time()) < 60

    play(main())


def test_when_callers_are_outside_then_the_time_of_their_calls_is_known_where_they_come_in() -> None:
    async def main() -> None:
        async with group_of(Counter) as replicas:

            def measured() -> int:
                told = [each.status().traffic for each in replicas]
                return sum(sum(each.latency) for each in told if each is not None)

            before = measured()
            addresses = tuple(each.address for each in replicas)
            outside = ClientConfig(group="tested", replicas=addresses, insecure=True)
            async with Client(Counter, outside) as counter:
                for _ in range(5):
                    await counter.add(1)
            assert measured() >= before + 5

    play(main())


def test_when_a_member_dies_then_the_others_call_it_silent_and_then_external() -> None:
    async def main() -> None:
        async with group_of(Counter) as (one, two, three):
            lost = three.address
            await crash(three)
            await two.proxy.add(1)
            await one.proxy.add(1)
            (dead,) = [each for each in one.status().members if each.address == lost]
            assert (dead.role, dead.in_ring, dead.voter) == (Role.EXTERNAL, False, True)
            while dead.state != "silent":
                await one.proxy.add(1)
                await asyncio.sleep(0.02)
                (dead,) = [each for each in one.status().members if each.address == lost]
            assert dead.silent_s > 0
            assert dead.lag > 0
            assert [each.why for each in one.status().views][1:] == [f"view change; out of the ring: {lost}"]
            assert one.status().counters["view changes"] == 2

    play(main())


def test_when_views_come_and_go_then_only_the_last_are_kept() -> None:
    async def main() -> None:
        async with group_of(Counter) as (one, *_):
            while one.status().counters["view changes"] <= VIEWS_KEPT:
                late: Replica[Counter] = Replica(Counter, config())
                await late.open()
                late.join((), (one.address,))
                await late.ready()
                assert late._group is not None
                late._group.leave()
                await late._group.ended
                await late.stop()
            kept = one.status().views
            assert len(kept) == VIEWS_KEPT
            assert [each.slot for each in kept] == sorted({each.slot for each in kept})
            assert kept[-1].view == one.status().view

    play(main())


def test_when_an_older_replica_is_asked_then_its_answer_can_be_read() -> None:
    member = {"site": "1", "address": "a:1", "voter": True, "in_ring": True, "version": 1}
    replica = {"group": "g", "address": "a:1", "site": "1", "standing": "serving", "mode": "memory"}
    old = msgspec.msgpack.encode({**replica, "applied": 5, "members": [member], "of_the_future": [1]})
    read = msgspec.msgpack.decode(old, type=ReplicaStatus)
    assert (read.applied, read.views, read.members[0].held) == (5, [], 0)


def test_when_a_durable_replica_runs_then_its_local_socket_tells_the_same_without_a_key(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.replicas[0].proxy.add(1)
            path = tmp_path / "site-0" / "status.sock"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            said = await asyncio.to_thread(fetch_locally, path, "/status")
            packed = await asyncio.to_thread(fetch_locally, path, "/status", "application/msgpack")
            read = msgspec.json.decode(said, type=ReplicaStatus)
            assert read.address == cluster.replicas[0].address
            assert read.log_bytes > 0
            assert msgspec.msgpack.decode(packed, type=ReplicaStatus).site == read.site
            assert await asyncio.to_thread(fetch_locally, path, "/healthz") == b"serving\n"
            await cluster.stop(0)
            assert not path.exists()
            path.touch()  # left behind by a crash
            await cluster.start(0)
            await cluster.ready()
            assert await asyncio.to_thread(fetch_locally, path, "/healthz") == b"serving\n"

    play(main())


def test_when_a_founder_waits_for_the_others_then_it_can_be_asked_how_it_stands() -> None:
    async def main() -> None:
        replica = Replica(Counter, config())
        await replica.open()
        try:
            replica.join((replica.address, "127.0.0.1:1", "127.0.0.1:2"))
            status = replica.status()
            assert (status.standing, status.age_s, status.members) == (Standing.STARTING, 0.0, [])
        finally:
            await replica.stop()

    play(main())


def test_when_a_majority_is_gone_then_who_is_left_does_not_say_that_it_serves() -> None:
    async def main() -> None:
        async with group_of(Counter) as (one, two, three):
            assert one.status().standing is Standing.SERVING
            await crash(two)
            await crash(three)
            async with asyncio.timeout(20):
                while one.status().standing is Standing.SERVING:
                    await asyncio.sleep(0.02)
            assert one.status().standing is Standing.CUT_OFF

    play(main())
