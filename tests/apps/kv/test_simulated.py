"""The store in the simulator: replicas that crash, pause and are cut off, and clients that ask again."""

from random import Random
from typing import Any

from apps.kv import (
    Add,
    Compare,
    Delete,
    Get,
    KeyValueStore,
    Lease,
    Limits,
    LockState,
    Once,
    Put,
    Range,
    Revoked,
    Written,
)
from rsm.state_machine import command
from rsm.testing import simulate

KEYS = (b"a", b"b", b"c", b"d")


class Guessed(KeyValueStore):
    """Calls are drawn before it is known which leases there will be; here they are named by their places."""

    def _lease_at(self, place: int) -> int:
        known = self._leases.records
        return int(known.keys()[place % len(known)]) if known else 999

    @command
    def put_at(self, key: bytes, value: bytes, place: int) -> Written:
        return self.put(key, value, lease=self._lease_at(place))

    @command
    def renew_at(self, place: int) -> Lease:
        return self.lease_renew(self._lease_at(place))

    @command
    def revoke_at(self, place: int) -> Revoked:
        return self.lease_revoke(self._lease_at(place))

    @command
    def lock_at(self, name: bytes, place: int, wait: bool) -> LockState:
        return self.lock(name, self._lease_at(place), wait)

    @command
    def unlock_at(self, name: bytes, place: int) -> LockState:
        return self.unlock(name, self._lease_at(place))


def draw(rng: Random) -> tuple[str, Any]:
    """Revisions are small numbers in a short run, so guesses hit now and then."""
    key, number = rng.choice(KEYS), rng.randrange(200)
    value = b"%d" % number
    once = Once(b"%d" % rng.randrange(30), b"") if rng.random() < 0.1 else None
    expect = rng.choice((None, None, 0, -1, number))
    some: list[tuple[str, Any]] = [
        ("put", (key, value, expect, None, None, once)),
        ("put", {"key": key, "value": value, "ttl_ms": rng.randrange(1, 800)}),
        ("put_at", (key, value, number)),
        ("delete", (key, expect, once)),
        ("delete_range", (key, None, 2)),
        ("add", (key, rng.randrange(-5, 5), once)),
        ("txn", _transaction(rng, key, value)),
        ("lease_grant", (rng.randrange(100, 2000), once)),
        ("renew_at", (number,)),
        ("revoke_at", (number,)),
        ("lock_at", (b"lock", number, rng.random() < 0.7)),
        ("unlock_at", (b"lock", number)),
        ("compact", (number // 4,)),
        ("configure", (Limits(history_events_max=rng.choice((10, 100, 1000))),)),
    ]
    queries: list[tuple[str, Any]] = [
        ("get", (key,)),
        ("get", (key, number)),
        ("range", (key, None, 3)),
        ("history", (key, number, 5)),
        ("changes", (number,)),
        ("locks", ()),
        ("statistics", ()),
    ]
    return rng.choice(some) if rng.random() < 0.7 else rng.choice(queries)


def _transaction(rng: Random, key: bytes, value: bytes) -> tuple[Any, ...]:
    other = rng.choice(KEYS)
    operations = [
        Put(key, value, rng.choice((None, 300))),
        Get(other),
        Delete(other),
        Add(key, 1),
        Range(b""),
    ]
    compare = [Compare(other, "exists", "=", rng.random() < 0.5)]
    return compare, rng.sample(operations, 3), rng.sample(operations, 2)


def contend(rng: Random) -> tuple[str, Any]:
    """Leases that end soon, all for one lock, and writes under its token."""
    place = rng.randrange(8)
    some: list[tuple[str, Any]] = [
        ("lease_grant", (rng.randrange(50, 1000),)),
        ("lock_at", (b"lock", place, True)),
        ("lock_at", (b"lock", place, True)),
        ("unlock_at", (b"lock", place)),
        ("renew_at", (place,)),
        ("lock_of", (b"lock",)),
        ("txn", ([Compare(b"lock", "lock", ">", rng.randrange(400))], [Add(b"n", 1)], [Get(b"n")])),
    ]
    return rng.choice(some)


def test_when_everything_goes_wrong_then_the_store_is_still_one_store() -> None:
    report = simulate(Guessed, draw, seeds=range(6), seconds=4).check()
    assert report.operations > 500
    assert report.executed > 300
    assert sum(report.faults.values()) > 20


def test_when_disks_fail_too_then_nothing_else_comes_of_it() -> None:
    simulate(Guessed, draw, seeds=range(6, 9), seconds=4, durable=True).check()


def test_when_clients_compete_for_a_lock_under_faults_then_there_is_one_order_of_holders() -> None:
    simulate(Guessed, contend, seeds=range(3), seconds=5, rate=200).check()
