"""Each checker on handmade histories, good and bad."""

from apps.actions.ledger import ActionLedger
from apps.actions.simulation import checkers
from apps.actions.simulation.bank import BALANCE, Disk
from apps.actions.simulation.checkers import End
from apps.actions.types import State
from rsm.state_machine import GroupView
from tests.apps.actions.kit import SITES, Group, at, new


def voted(*states: bool) -> Group:
    """An action x at sites a and b with these votes."""
    group = Group()
    group.request("x", at("a", "0"), at("b", "0"))
    for site, yes in zip("ab", states, strict=False):
        group.vote("x", site, yes=yes)
    return group


def ended(group: Group, *applied: str, intents: str = "", well: tuple[str, ...] = SITES) -> End:
    disks = {site: Disk() for site in SITES}
    unit = group.of("x").unit
    for site in applied:
        disks[site].applied[unit] = 1
    for site in intents:
        disks[site].intents[unit] = (7, ())
    return End(group.ledger, disks, list(well))


def finished(checker: checkers.ActionChecker, end: End) -> list[str]:
    checker.finish(end)
    return checker.violations


def test_atomicity_is_all_or_none() -> None:
    committed, aborted = voted(True, True), voted(False)
    assert not finished(checkers.Atomicity(), ended(committed, "a", "b"))
    assert not finished(checkers.Atomicity(), ended(aborted))
    assert finished(checkers.Atomicity(), ended(committed, "a"))
    assert not finished(checkers.Atomicity(), ended(committed, "a", well=("a", "c")))
    assert finished(checkers.Atomicity(), ended(aborted, "b"))
    assert finished(checkers.Atomicity(), ended(aborted, intents="a"))


def test_all_see_one_decision_at_one_slot() -> None:
    committed, aborted = voted(True, True).of("x"), voted(False).of("x")
    checker = checkers.Agreement()
    checker.changed("s1", committed)
    checker.changed("s2", committed)
    assert not checker.violations
    checker.changed("s3", aborted)
    assert checker.violations


def test_a_decision_that_changes_or_lacks_a_vote_is_a_violation() -> None:
    checker = checkers.Finality()
    checker.changed("s1", voted(True, True).of("x"))
    assert not checker.violations
    checker.changed("s1", voted(False).of("x"))
    assert "was committed" in checker.violations[0]
    group = voted(True)
    group.ledger._decide(group.ledger._units[group.of("x").unit], State.COMMITTED, "")
    checker = checkers.Finality()
    checker.changed("s1", group.of("x"))
    assert "without a yes of b" in checker.violations[0]


def test_applied_twice_is_once_too_often() -> None:
    checker = checkers.ExactlyOnce()
    checker.applied("a", "x", ())
    checker.applied("b", "x", ())
    assert not checker.violations
    checker.applied("a", "x", ())
    assert checker.violations


def test_money_is_counted() -> None:
    end = ended(voted(True, True), "a", "b")
    assert not finished(checkers.Money(), end)
    end.disks["a"].accounts["0"] += 1
    assert finished(checkers.Money(), end)
    end.disks["b"].accounts["0"] -= 1
    assert not finished(checkers.Money(), end)
    end.disks["b"].accounts["0"] -= BALANCE
    end.disks["a"].accounts["0"] += BALANCE
    assert "has -1 in account 0" in finished(checkers.Money(), end)[0]


def test_a_yes_without_an_intent_is_a_violation() -> None:
    checker = checkers.PreparedBeforeYes()
    checker.voted("a", "x", yes=False)
    checker.durable("a", "x")
    checker.voted("a", "x", yes=True)
    assert not checker.violations
    checker.voted("b", "x", yes=True)
    assert checker.violations
    group, checker = voted(True, True), checkers.PreparedBeforeYes()
    checker.durable("a", group.of("x").unit)
    checker.changed("s1", group.of("x"))  # however the votes have come into the ledger
    assert "b has voted for x@" in checker.violations[0]


def test_one_at_a_time_and_in_one_order() -> None:
    one = checkers.OneAtATime()
    one.preparing("a", "x", [])
    assert not one.violations
    one.preparing("a", "x", ["y"])
    assert one.violations
    group = Group()
    for name in ("x", "y"):
        group.request(name, at("a", "0"))
        group.vote(name, "a")
    units = [group.of(name).unit for name in ("x", "y")]
    for order, is_right in ((units, True), (units[::-1], False)):
        checker = checkers.OneOrder()
        for unit in order:
            checker.applied("a", unit, (at("a", "0"),))
        assert bool(finished(checker, ended(group))) != is_right


def test_who_waits_for_the_dead_or_for_an_earlier_life_is_blocked() -> None:
    group = voted(True)
    view = group.context.view
    assert view is not None
    checker = checkers.NoBlocking()
    checker.stepped("s1", group.ledger, view)
    assert not checker.violations
    checker.stepped("s1", group.ledger, _without(view, 2))
    assert "waits for b, which has left" in checker.violations[0]
    group.ledger._seats["b"].incarnation += 1
    checker = checkers.NoBlocking()
    checker.stepped("s1", group.ledger, view)
    assert "as it was at slot" in checker.violations[0]


def test_what_is_requested_never_waits_for_what_is_only_offered() -> None:
    checker = checkers.NoBlocking()
    checker.waiting("a", "x@7", [])
    assert not checker.violations
    checker.waiting("a", "x@7", ["y@early-1"])
    assert "x@7 waits at a for y@early-1" in checker.violations[0]


def test_who_overtakes_what_it_competes_with_is_found() -> None:
    group = voted()
    group.request("beside", at("a", "1"))
    group.request("behind", at("a", "0"))
    view = group.context.view
    assert view is not None
    for name, is_right in (("beside", True), ("behind", False)):
        unit = group.ledger._units[group.of(name).unit]
        unit.state = State.VOTING
        group.vote(name, "a")
        checker = checkers.NoOvertaking()
        checker.stepped("s1", group.ledger, view)
        checker.changed("s1", group.of(name))
        assert bool(checker.violations) != is_right


def _without(view: GroupView, number: int) -> GroupView:
    ring = tuple(site for site in view.ring if site != number)
    return GroupView(view.timestamp + 1, view.chain, 1, 1, ring, ring, (), {}, view.boots)


def test_a_deadlock_and_two_at_once_are_seen() -> None:
    group = voted()
    group.request("y", at("a", "0"))
    view = group.context.view
    assert view is not None
    checker = checkers.NoDeadlock()
    checker.stepped("s1", group.ledger, view)
    assert not checker.violations
    unit = group.ledger._units[group.of("y").unit]
    unit.state = State.VOTING
    checker.stepped("s1", group.ledger, view)
    assert "compete at a" in checker.violations[0]
    checker = checkers.NoDeadlock()
    for each in group.ledger._units.values():
        each.state = State.WAITING
    checker.stepped("s1", group.ledger, view)
    assert "wait for each other" in checker.violations[0]


def test_who_commits_before_what_it_depends_on_is_found() -> None:
    group = voted()
    group.request("y", at("c", "0"), depends=("x",))
    unit = group.ledger._units[group.of("y").unit]
    unit.awaits = ()
    group.ledger._begin_if_first(unit)
    assert not finished(checkers.Dependencies(), ended(group))
    group.vote("y", "c")
    assert finished(checkers.Dependencies(), ended(group))


def test_what_is_undecided_unfinished_or_away_at_the_end_is_not_live() -> None:
    assert "is voting" in finished(checkers.Liveness(), ended(voted()))[0]
    group = voted(True, True)
    group.finish("x", "a")
    assert "not finished at b" in finished(checkers.Liveness(), ended(group))[0]
    assert not finished(checkers.Liveness(), ended(group, well=("a", "c")))
    group.finish("x", "b")
    assert not finished(checkers.Liveness(), ended(group))
    group.view(1, 2)
    assert "c is well" in finished(checkers.Liveness(), ended(group))[0]


def test_all_checkers_are_used() -> None:
    kinds = {type(each) for each in checkers.all_checkers()}
    assert kinds == set(checkers.ActionChecker.__subclasses__())


def test_an_end_has_all_actions_however_many_pages_they_take() -> None:
    class Many(ActionLedger):
        pass

    group = Group(Many)
    for number in range(1_005):
        group.call(group.ledger.open, new(f"{number}"))
    assert len(End(group.ledger, {}, []).actions) == 1_005
