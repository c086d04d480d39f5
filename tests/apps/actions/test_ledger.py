"""What the order says of actions."""

import tracemalloc
from itertools import permutations

import msgspec

from apps.actions.ledger import ActionLedger
from apps.actions.records import Limits
from apps.actions.types import State, Task
from tests.apps.actions.kit import SITES, Group, at, boot_of, new

# -- decisions -----------------------------------------------------------------------------------


def test_the_last_missing_vote_commits_in_any_order() -> None:
    for order in permutations(SITES):
        group = Group()
        assert group.request("x", *(at(site, "k") for site in SITES)).state is State.VOTING
        for site in order[:2]:
            assert group.vote("x", site) is State.VOTING
        assert group.vote("x", order[2]) is State.COMMITTED
        assert group.of("x").decided == group.context.timestamp
        assert [vote.site for vote in group.of("x").votes] == list(SITES)


def test_a_vote_no_aborts_whatever_else_was_voted() -> None:
    group = Group()
    group.request("x", at("a", "k"), at("b", "k"))
    group.vote("x", "a")
    assert group.vote("x", "b", yes=False) is State.ABORTED
    assert "b voted no: because" in group.of("x").reason


def test_the_first_vote_of_a_site_counts_and_none_after_the_decision() -> None:
    group = Group()
    group.request("x", at("a", "k"), at("b", "k"))
    group.vote("x", "a")
    assert group.vote("x", "a", yes=False) is State.VOTING
    group.vote("x", "b")
    assert group.vote("x", "b", yes=False) is State.COMMITTED
    with group.refused("decided"):
        group.ledger.abort("x", "late")
    group.request("y", at("a", "k"))
    group.call(group.ledger.abort, "y", "no more")
    assert group.vote("y", "a") is State.ABORTED
    assert group.call(group.ledger.abort, "y", "again").reason == "no more"


def test_when_a_site_leaves_the_ring_then_what_it_has_not_voted_for_aborts_in_that_slot() -> None:
    group = Group()
    group.request("voted", at("a", "1"), at("c", "1"))
    group.request("unvoted", at("a", "2"), at("c", "2"))
    group.request("behind", at("a", "2"), at("c", "2"))
    group.request("elsewhere", at("a", "3"), at("b", "3"))
    group.vote("voted", "c")
    group.view(1, 2)
    assert [group.state(each) for each in ("voted", "unvoted", "behind", "elsewhere")] == [
        State.VOTING,
        State.ABORTED,
        State.ABORTED,
        State.VOTING,
    ]
    assert group.of("unvoted").decided == group.context.timestamp
    assert group.vote("unvoted", "c") is State.ABORTED  # it wakes, and its vote comes
    with group.refused("away"):
        group.ledger.request(new("late", at("c", "4")))
    assert group.vote("voted", "a") is State.COMMITTED


def test_when_a_site_is_back_with_another_boot_then_it_has_left() -> None:
    group = Group()
    group.request("x", at("a", "k"), at("c", "k"))
    group.lives[3] += 1
    group.view(1, 2, 3)
    assert group.state("x") is State.ABORTED
    with group.refused("outside"):
        group.ledger.register("c", 3, boot_of(3, 1))
    group.register("c", 3)
    assert group.request("y", at("c", "k")).state is State.VOTING


def test_another_registration_aborts_what_the_one_before_has_not_voted_for() -> None:
    group = Group()
    group.request("voted", at("a", "1"), at("c", "1"))
    group.request("unvoted", at("a", "2"), at("c", "2"))
    group.vote("voted", "c")
    before = group.incarnations["c"]
    assert group.register("c", 3) > before
    assert group.state("voted") is State.VOTING
    assert group.state("unvoted") is State.ABORTED
    group.request("next", at("c", "3"))
    with group.refused("away"):
        group.vote("next", "c", incarnation=before)
    assert group.vote("next", "c") is State.COMMITTED


def test_deadlines_are_the_groups_time_and_many_take_several_slots() -> None:
    class Small(ActionLedger):
        limits = Limits(step_max=2)

    group = Group(Small)
    for number in range(5):
        group.request(f"{number}", at("a", f"{number}"), timeout_ms=50)
    group.request("later", at("a", "k"), timeout_ms=100)
    assert group.wait(49) == 0
    assert group.wait(1) == 3
    assert {group.state(f"{number}") for number in range(5)} == {State.ABORTED}
    assert group.state("later") is State.VOTING
    assert group.wait(50) == 1


def test_open_actions_grow_and_are_committed_or_run_out() -> None:
    group = Group()
    assert group.call(group.ledger.open, new("x", at("a", "k"), timeout_ms=100)).state is State.OPEN
    group.call(group.ledger.add, "x", (at("b", "k"),))
    group.call(group.ledger.open, new("y", timeout_ms=100))
    group.wait(99)
    assert group.call(group.ledger.commit, "x").sites == ("a", "b")
    group.wait(50)
    assert group.state("y") is State.ABORTED
    assert group.state("x") is State.VOTING
    with group.refused("exists"):
        group.ledger.commit("x")
    with group.refused("decided"):
        group.ledger.add("y", (at("b", "k"),))
    with group.refused("unknown"):
        group.ledger.commit("z")


# -- competing -----------------------------------------------------------------------------------


def test_competing_requests_are_voted_on_one_after_the_other() -> None:
    group = Group()
    group.request("x", at("a", "k"), at("b", "1"))
    assert group.request("y", at("b", "2"), at("a", "k")).waits_for == ("x",)
    assert group.request("z", at("a", "other")).state is State.VOTING
    with group.refused("bad_request"):
        group.vote("y", "a")
    group.vote("x", "a")
    group.vote("x", "b")
    assert group.state("y") is State.VOTING
    tasks = group.tasks("a")
    assert tasks.index((Task.COMMIT, "x")) < tasks.index((Task.PREPARE, "y"))


def test_who_touches_everything_waits_for_all_and_all_wait_for_it() -> None:
    group = Group()
    group.request("1", at("a", "1"))
    group.request("2", at("a", "2"))
    group.request("whole", at("a", whole=True))
    group.request("3", at("a", "3"))
    group.request("b", at("b", "3"))
    assert group.state("3") is State.WAITING
    assert group.state("b") is State.VOTING
    group.vote("2", "a")
    assert group.state("whole") is State.WAITING
    group.vote("1", "a", yes=False)
    assert group.state("whole") is State.VOTING
    group.vote("whole", "a")
    assert group.state("3") is State.VOTING


def test_when_one_that_touches_everything_is_aborted_while_it_waits_then_nobody_waits_for_it() -> None:
    group = Group()
    group.request("1", at("a", "1"))
    group.request("whole", at("a", whole=True))
    group.request("same", at("a", "1"))
    group.request("2", at("a", "2"))
    group.call(group.ledger.abort, "whole", "")
    assert group.state("2") is State.VOTING
    assert group.state("same") is State.WAITING
    assert group.tasks("a") == [(Task.PREPARE, "1"), (Task.PREPARE, "2")]


# -- depending -----------------------------------------------------------------------------------


def test_who_depends_is_asked_when_the_other_has_committed_and_aborts_with_it() -> None:
    for yes in (True, False):
        group = Group()
        group.request("first", at("a", "1"))
        group.request("second", at("b", "2"), depends=("first",))
        group.request("third", at("c", "3"), depends=("second",))
        assert group.of("third").waits_for == ("second",)
        group.vote("first", "a", yes=yes)
        assert group.state("second") is (State.VOTING if yes else State.ABORTED)
        assert group.state("third") is (State.WAITING if yes else State.ABORTED)


def test_what_depends_on_nobody_knows_whom_is_parked_and_holds_up_nobody() -> None:
    group = Group()
    assert group.request("x", at("a", "k"), depends=("later",), timeout_ms=100).unit == ""
    assert group.request("y", at("a", "k")).state is State.VOTING
    group.call(group.ledger.open, new("later", at("b", "k")))
    assert group.of("x").waits_for == ("later",)
    group.call(group.ledger.commit, "later")
    assert group.of("x").waits_for == ("later", "y")
    group.vote("later", "b")
    group.vote("y", "a")
    assert group.vote("x", "a") is State.COMMITTED
    group.request("lonely", at("a", "k"), depends=("nobody",), timeout_ms=100)
    group.wait(100)
    assert group.state("lonely") is State.ABORTED


def test_two_that_depend_on_each_other_are_voted_on_as_one() -> None:
    group = Group()
    group.request("x", at("a", "1"), at("b", "1"), depends=("y",))
    assert group.request("y", at("b", "2"), depends=("x",)).state is State.VOTING
    assert group.of("x").unit == group.of("y").unit
    (duty,) = group.duties("b")
    assert [operation.keys for operation in duty.operations] == [("1",), ("2",)]
    group.vote("x", "a")
    group.vote("y", "b")
    assert group.of("x").decided == group.of("y").decided == group.context.timestamp
    assert group.state("x") is group.state("y") is State.COMMITTED


def test_a_circle_aborts_as_one_and_who_depends_on_it_follows() -> None:
    group = Group()
    group.request("after", at("c", "9"), depends=("x",))
    group.request("x", at("a", "1"), depends=("y",))
    group.request("y", at("b", "2"), depends=("z",))
    assert group.request("z", at("c", "3"), depends=("x",)).unit.startswith("x@")
    group.call(group.ledger.abort, "y", "enough")
    assert {group.state(each) for each in ("x", "y", "z", "after")} == {State.ABORTED}
    assert group.request("late", at("c", "3"), depends=("x",)).state is State.ABORTED


# -- duties --------------------------------------------------------------------------------------


def test_a_follower_that_is_current_hears_what_is_new_and_one_from_the_beginning_all_that_stands() -> None:
    group = Group()
    group.request("done", at("a", "0"))
    group.vote("done", "a")
    group.finish("done", "a")
    group.request("committed", at("a", "1"))
    group.vote("committed", "a")
    group.request("held", at("a", "2"), at("b", "2"))
    group.vote("held", "a")
    group.request("asked", at("a", "3"))
    since = group.context.timestamp
    assert group.ledger.duties(since, "a").events == []
    stands = [(Task.COMMIT, "committed"), (Task.HOLD, "held"), (Task.PREPARE, "asked")]
    assert group.tasks("a") == stands
    page = group.ledger.duties(0, "a").events
    assert [each.task for each in page if not each.unit] == [Task.RESET, Task.COMPLETE, Task.OVER]
    group.call(group.ledger.abort, "held", "")
    assert group.tasks("a", since) == [(Task.ABORT, "held")]


def test_what_does_not_fit_a_page_comes_in_several_between_reset_and_complete() -> None:
    group = Group()
    for number in range(5):
        group.request(f"{number}", at("a", f"{number}", arguments=bytes(900_000)))
    since, pages = 0, list[list[Task]]()
    while not pages or since < 0:
        feed = group.ledger.duties(since, "a")
        pages.append([each.task for each in feed.events])
        since = feed.position
    assert pages[0] == [Task.RESET, Task.PREPARE, Task.PREPARE]
    assert pages[-1] == [Task.PREPARE, Task.COMPLETE, Task.OVER]
    assert since == group.context.timestamp


def test_who_is_behind_what_is_forgotten_is_told_everything() -> None:
    class Small(ActionLedger):
        limits = Limits(aborts_kept_max=2)

    group = Group(Small)
    since = group.context.timestamp
    for number in range(3):
        group.request(f"{number}", at("a", "k"))
        group.vote(f"{number}", "a", yes=False)
    assert group.ledger.duties(since, "a").events[0].task is Task.RESET
    assert group.tasks("a", since) == [(Task.ABORT, "1"), (Task.ABORT, "2")]


def test_a_site_is_told_that_its_registration_is_over() -> None:
    group = Group()
    since = group.context.timestamp
    group.view(1, 2)
    (over,) = group.ledger.duties(since, "c").events
    assert over.task is Task.OVER
    assert over.incarnation == group.context.timestamp
    assert group.ledger.duties(since, "a").events == []


# -- finishing -----------------------------------------------------------------------------------


def test_a_committed_action_is_kept_until_all_have_finished() -> None:
    class Small(ActionLedger):
        limits = Limits(retained_max=2)

    group = Group(Small)
    for number in range(4):
        group.request(f"{number}", at("a", f"{number}"), at("b", f"{number}"))
        group.vote(f"{number}", "a")
        group.vote(f"{number}", "b")
        group.finish(f"{number}", "a")
    assert [site.unfinished for site in group.ledger.sites()] == [0, 4, 0]
    assert group.finish("0", "b", "no space") == 1
    assert group.of("0").finished[1].error == "no space"
    reports = [(group.of(f"{number}").unit, "") for number in range(4)]
    assert group.call(group.ledger.finished, "b", group.incarnations["b"], reports) == 4
    assert group.call(group.ledger.finished, "b", group.incarnations["b"], reports) == 0
    assert [action.id for action in group.ledger.actions()] == ["2", "3"]
    with group.refused("away"):
        group.ledger.finished("b", 1, reports)


def test_forgetting_a_site_ends_the_wait_for_it() -> None:
    group = Group()
    group.request("x", at("a", "k"), at("c", "k"))
    group.vote("x", "a")
    group.vote("x", "c")
    group.finish("x", "a")
    group.view(1, 2)
    assert group.call(group.ledger.forget, "c").unfinished == 0
    assert group.of("x").finished[1].error == "forgotten"
    assert [site.name for site in group.ledger.sites()] == ["a", "b"]
    with group.refused("unknown"):
        group.ledger.forget("c")


def test_forgetting_a_site_that_is_here_tells_it_everything_anew() -> None:
    group = Group()
    group.request("x", at("a", "k"), at("c", "k"))
    group.vote("x", "a")
    group.vote("x", "c")
    group.finish("x", "c", "no space")
    seen = group.ledger.duties(0, "c").position
    assert group.call(group.ledger.forget, "c").unfinished == 0
    tasks = [duty.task for duty in group.ledger.duties(seen, "c").events]
    assert tasks == [Task.RESET, Task.COMPLETE]


def test_when_the_group_begins_anew_then_nothing_undecided_goes_on() -> None:
    group = Group()
    group.request("voted", at("a", "1"), at("c", "1"))
    group.vote("voted", "a")
    group.vote("voted", "c", yes=True)
    group.request("half", at("a", "2"), at("c", "2"))
    group.vote("half", "c")
    group.view(1, 2, 3, chain=8)
    assert group.state("voted") is State.COMMITTED
    assert group.state("half") is State.ABORTED
    assert not any(site.is_here for site in group.ledger.sites())


# -- bounds --------------------------------------------------------------------------------------


def test_when_an_action_has_many_short_keys_then_what_they_hold_counts() -> None:
    group = Group()
    many = [at("a", *(f"{n:x}" for n in range(first, first + 1000))) for first in range(0, 100_000, 1000)]
    with group.refused("bad_request"):
        group.ledger.request(new("x", *many))
    tracemalloc.start()
    group.request("x", *many[:9])
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 8 * group.ledger._bytes


def test_what_is_too_much_is_refused() -> None:
    class Small(ActionLedger):
        limits = Limits(
            undecided_max=3, parked_max=1, site_actions_max=2, sites_max=3, operations_max=2, bytes_max=3000
        )

    group = Group(Small)
    with group.refused("full"):
        group.ledger.register("d", 1, boot_of(1))
    with group.refused("bad_request"):
        group.ledger.request(new("x", *(at("a", "k") for _ in range(3))))
    with group.refused("bad_request"):
        group.ledger.request(new("x"))
    with group.refused("bad_request"):
        group.ledger.request(new("x", at("a"), depends=("x",)))
    with group.refused("full"):
        group.ledger.request(new("x", at("a", arguments=bytes(4000))))
    group.request("1", at("a", "1"), depends=("nobody",))
    with group.refused("exists"):
        group.ledger.open(new("1"))
    with group.refused("full"):
        group.ledger.request(new("2", at("b"), depends=("nobody",)))
    group.request("2", at("a", "1"))
    with group.refused("behind"):
        group.ledger.request(new("3", at("a", "2")))
    group.vote("2", "a")
    with group.refused("behind"):
        group.ledger.request(new("3", at("a", "2")))
    group.finish("2", "a")
    group.request("3", at("a", "2"))
    group.request("4", at("b", "2"))
    with group.refused("full"):
        group.ledger.request(new("5", at("c", "2")))


def test_lists_and_changes_come_in_pages() -> None:
    group = Group()
    since = group.context.timestamp
    for number in range(5):
        group.request(f"{number}", at("a", f"{number}"))
    group.vote("3", "a")
    assert [each.id for each in group.ledger.actions(after="1", limit=2)] == ["2", "3"]
    assert [each.id for each in group.ledger.actions(State.COMMITTED)] == ["3"]
    assert [each.id for each in group.ledger.changes(since).events] == ["0", "1", "2", "4", "3"]
    now = group.context.timestamp
    assert group.ledger.changes(now).events == []
    assert group.ledger.changes(now, "3").events == []
    (seen,) = group.ledger.changes(now - 1, "3").events
    assert seen.state is State.COMMITTED
    with group.refused("unknown"):
        group.ledger.changes(0, "nobody")


def test_a_ledger_in_the_middle_of_everything_is_restored_as_it_was() -> None:
    group = Group()
    group.request("committed", at("a", "1"))
    group.vote("committed", "a")
    group.request("parked", at("a", "2"), depends=("nobody",))
    group.request("voting", at("a", whole=True), at("b", "2"))
    group.vote("voting", "b")
    group.request("waiting", at("a", "2"), depends=("voting",))
    group.call(group.ledger.open, new("open", at("a")))
    group.request("aborted", at("c", "1"))
    group.vote("aborted", "c", yes=False)
    other = group.restored()
    assert b"".join(other.snapshot()) == group.snapshot()
    for name in SITES:
        assert other.duties(0, name) == group.ledger.duties(0, name)
    group.slot()
    unit = group.of("voting").unit
    for ledger in (group.ledger, other):
        assert ledger.vote(unit, "a", group.incarnations["a"], True, "") is State.COMMITTED
    assert b"".join(other.snapshot()) == group.snapshot()
    assert other.actions() == group.ledger.actions()
    assert msgspec.msgpack.encode(other.alarm()) == msgspec.msgpack.encode(group.ledger.alarm())


# -- who goes ------------------------------------------------------------------------------------


def test_when_a_site_unregisters_then_what_it_has_not_voted_for_is_aborted_and_its_votes_stand() -> None:
    group = Group()
    group.request("voted", at("a", "x"), at("b", "x"))
    group.request("unvoted", at("a", "y"), at("b", "y"))
    group.request("parked", at("b", "z"), depends=("nobody",))
    group.vote("voted", "b")
    assert group.call(group.ledger.unregister, "b", group.incarnations["b"])
    assert group.state("voted") is State.VOTING
    assert {group.of(each).reason for each in ("unvoted", "parked")} == {"b has gone"}
    with group.refused("away"):
        group.request("new", at("b", "x"))
    group.vote("voted", "a")
    assert group.state("voted") is State.COMMITTED
    assert group.finish("voted", "b") == 1  # it may still end what it has begun
    assert [(each.name, each.is_here) for each in group.ledger.sites()][1] == ("b", False)


def test_when_a_site_unregisters_twice_or_late_then_the_later_registration_stays() -> None:
    group = Group()
    first = group.incarnations["b"]
    assert group.call(group.ledger.unregister, "b", first)
    before = group.snapshot()
    assert not group.call(group.ledger.unregister, "b", first)
    assert not group.call(group.ledger.unregister, "z", 1)
    assert group.snapshot() == before
    group.register("b", 2)
    group.request("new", at("b", "x"))
    assert not group.call(group.ledger.unregister, "b", first)
    assert group.vote("new", "b") is State.COMMITTED


def test_when_a_site_unregisters_and_leaves_the_ring_then_that_is_one_end() -> None:
    group = Group()
    group.call(group.ledger.unregister, "b", group.incarnations["b"])
    since = group.ledger.duties(0, "b").events[-1].incarnation
    group.view(1, 3)
    assert group.ledger.duties(0, "b").events[-1].incarnation == since
    group.view(1, 2, 3)
    assert [each.name for each in group.ledger.sites() if each.is_here] == ["a", "c"]


def test_when_operations_are_added_behind_a_number_then_they_are_added_once() -> None:
    group = Group()
    group.call(group.ledger.open, new("cart"))
    one, two = at("a", "x"), at("b", "x")
    for _ in range(2):
        assert group.call(group.ledger.add, "cart", (one,), 0).operations == (one,)
    assert group.call(group.ledger.add, "cart", (two,), 1).operations == (one, two)
    assert group.call(group.ledger.add, "cart", (one,), 0).operations == (one, two)
    with group.refused("changed"):
        group.ledger.add("cart", (two,), 0)
    with group.refused("bad_request"):
        group.ledger.add("cart", (two,), 3)
    assert group.call(group.ledger.add, "cart", (one,)).operations == (one, two, one)
