"""The checkers of locks and time, on good and bad histories made by hand."""

from typing import Any

import msgspec
import pytest

from ordering.effects import Effect, LockGranted, LockLost, Tick
from ordering.simulator.checkers.handler_locks import HandlerLocks
from ordering.simulator.checkers.lock_exclusion import LockExclusion
from ordering.simulator.checkers.lock_liveness import LockLiveness
from ordering.simulator.checkers.slot_time import SlotTime
from ordering.views import Claim, Lock, LockTable, Owner, SiteId, View
from tests.simulation.handmade import (
    CONFIG,
    SETTLED,
    assert_finds,
    cluster_of,
    deliver,
    install,
    message,
    stubs,
    tell,
    view,
)


def owner(number: int) -> Owner:
    return Owner(SiteId(number), 1000 + number)


def lock(
    site: int, fence: int, number: int = 1, *waiting: int, name: str | int = "a", expires: int = 0
) -> Lock:
    queue = tuple(Claim(owner(w), 1, 0) for w in waiting)
    return Lock(name, Claim(owner(site), number, 0), fence, expires, queue)


def locked(revision: int, *locks: Lock, members: tuple[int, ...] = (1, 2, 3)) -> View:
    return msgspec.structs.replace(view(1, revision, members), locks=LockTable(locks))


# -- exclusion ---------------------------------------------------------------------------------------


def test_lock_exclusion_accepts_a_lock_that_passes_from_one_to_the_next() -> None:
    checker = LockExclusion()
    for process in stubs():
        tell(checker, process, install(1, locked(0, lock(1, 1, 1, 2))))
        tell(checker, process, install(4, locked(1, lock(2, 4, 1))), deliver(message(5, 1, 1), revision=1))
        tell(checker, process, install(7, locked(2, lock(1, 7, 2))))
    assert checker.violations == []


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (locked(1, lock(2, 1)), "fence 1 is of"),
        (locked(1, lock(1, 4)), "was granted twice, at slots 1 and 4"),
        (locked(1, lock(2, 9)), "does not lie behind view 1.0 at slot 1"),
        (locked(1, lock(1, 1, 1, 4)), "is not in 1.1"),
        (locked(1, lock(1, 1), members=(2, 3)), "is not in 1.1"),
    ],
    ids=[
        "one fence, two owners",
        "granted again",
        "fence of the future",
        "a stranger waits",
        "owner removed",
    ],
)
def test_lock_exclusion_finds_grants_that_make_no_sense(after: View, words: str) -> None:
    checker = LockExclusion()
    one, *_ = stubs()
    tell(checker, one, install(1, locked(0, lock(1, 1))), install(4, after))
    assert_finds(checker, words)


def test_lock_exclusion_finds_a_lease_that_a_slot_has_outlived() -> None:
    checker = LockExclusion()
    one, *_ = stubs()
    late = msgspec.structs.replace(message(2, 1, 1), time=50)
    tell(checker, one, install(1, locked(0, lock(1, 1, expires=50))), deliver(late))
    assert_finds(checker, "counts a lease until 50")


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        (LockGranted("a", 1, 1), False),
        (LockGranted("a", 2, 1), True),
        (LockGranted("b", 1, 1), True),
        (LockLost("a", 1), True),
        (LockLost("b", 1), False),
    ],
)
def test_lock_exclusion_wants_applications_to_be_told_what_their_view_says(told: Effect, wrong: bool) -> None:
    checker = LockExclusion()
    one, *_ = stubs()
    tell(checker, one, install(1, locked(0, lock(1, 1))), told)
    assert bool(checker.violations) is wrong


# -- handlers ----------------------------------------------------------------------------------------


def handled(number: int, ring: tuple[int, ...] = (1, 2), voters: tuple[int, ...] = (1, 2, 3)) -> View:
    locks = tuple(lock(number, 1, 0, name=handler) for handler in range(1, 7))
    return msgspec.structs.replace(view(1, 0, (1, 2, 3, 4), voters, ring), locks=LockTable(locks))


def test_handler_locks_accepts_a_ring_voter() -> None:
    checker = HandlerLocks()
    tell(checker, stubs()[0], install(1, handled(2)))
    assert checker.violations == []


@pytest.mark.parametrize(
    "shown",
    [handled(3), handled(4, ring=(1, 4)), handled(9), view()],
    ids=["out of the ring", "a learner", "a stranger", "nobody"],
)
def test_handler_locks_finds_who_may_not_answer(shown: View) -> None:
    checker = HandlerLocks()
    tell(checker, stubs()[0], install(1, shown))
    assert_finds(checker, "handler lock 1 is of")


# -- time --------------------------------------------------------------------------------------------


def at(ts: int, time: int) -> Any:
    return deliver(msgspec.structs.replace(message(ts, 1, ts), time=time))


def test_slot_time_accepts_one_time_that_stands_still_or_grows() -> None:
    checker = SlotTime()
    for process in stubs():
        tell(checker, process, install(), at(3, 5), at(4, 5), Tick(5, 8), at(6, 9))
    assert checker.violations == []


@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        ((at(3, 5),), (at(3, 6),), "slot 3 has time 6 at site 2, elsewhere 5"),
        ((at(3, 5), at(4, 4)), (), "goes back from 5 to 4 at slot 4"),
        ((at(3, 5), Tick(4, 4)), (), "goes back from 5 to 4 at slot 4"),
    ],
    ids=["differs", "goes back", "a tick goes back"],
)
def test_slot_time_finds_clocks_of_their_own(
    mine: tuple[Effect, ...], theirs: tuple[Effect, ...], words: str
) -> None:
    checker = SlotTime()
    one, two, _ = stubs()
    tell(checker, one, install(), *mine)
    tell(checker, two, install(), *theirs)
    assert_finds(checker, words)


# -- liveness ----------------------------------------------------------------------------------------


def finish(checker: LockLiveness, shown: View, version: int = 0) -> None:
    process = stubs()[0]
    process.view = shown
    process.engine.locks = type("Locks", (), {"version": version, "owner": owner(1)})
    cluster = cluster_of([process])
    cluster.wall_errors = {}
    cluster.true_wall = lambda now: 10**18
    checker.on_healed(cluster, 0)
    checker.finish(cluster, SETTLED)


def test_lock_liveness_accepts_locks_that_move_on() -> None:
    checker = LockLiveness()
    finish(checker, locked(1, lock(1, 1, 1, 2), lock(1, 1, name="b", expires=10**18 + CONFIG.suspect_ms)))
    assert checker.violations == []


@pytest.mark.parametrize(
    ("shown", "version", "words"),
    [
        (locked(1, Lock("a", queue=(Claim(owner(2), 1, 0),))), 0, "is free"),
        (locked(1, lock(1, 1, expires=10**9)), 0, "outlives its lease"),
        (locked(1, lock(1, 1)), 3, "has stated 3"),
    ],
    ids=["free and waited for", "a lease long over", "a statement nobody heard"],
)
def test_lock_liveness_finds_locks_that_are_stuck(shown: View, version: int, words: str) -> None:
    checker = LockLiveness()
    finish(checker, shown, version)
    assert_finds(checker, words)
