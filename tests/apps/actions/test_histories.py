"""Random histories of the ledger alone: what must hold behind every slot."""

import time
from contextlib import suppress
from random import Random

from apps.actions.ledger import ActionLedger
from apps.actions.records import Limits
from apps.actions.types import Action, Operation, State
from rsm.errors import Rejected
from tests.apps.actions.kit import SITES, Group, NoSuchAction, at
from tests.apps.actions.test_units import compete


class Small(ActionLedger):
    limits = Limits(undecided_max=40, retained_max=10, aborts_kept_max=3, step_max=4, parked_max=5)


def _operations(rng: Random) -> tuple[Operation, ...]:
    sites = rng.sample(SITES, rng.randrange(1, 4))
    return tuple(at(site, *rng.sample("kl", rng.randrange(0, 3)), whole=rng.random() < 0.1) for site in sites)


def _step(group: Group, rng: Random) -> None:
    name, site = f"{rng.randrange(40)}", rng.choice(SITES)
    depends = tuple(f"{rng.randrange(40)}" for _ in range(rng.choice((0, 0, 0, 1, 2))))
    match rng.randrange(12):
        case 0 | 1 | 2:
            group.request(name, *_operations(rng), depends=depends, timeout_ms=rng.choice((20, 500)))
        case 3 | 4 | 5 | 6 | 7:
            voting = group.ledger.actions(State.VOTING)
            chosen = rng.choice(voting) if voting else group.of(name)
            group.vote(chosen.id, site, yes=rng.random() < 0.85)
        case 8:
            group.finish(name, site, rng.choice(("", "", "full")))
        case 9:
            group.wait(rng.randrange(30))
        case 10:
            number = rng.randrange(1, 4)
            group.lives[number] += rng.randrange(2)
            group.view(*(each for each in (1, 2, 3) if each != number or rng.random() < 0.5))
        case _:
            if rng.random() < 0.2:
                group.call(group.ledger.abort, name, "")
            group.register(site, SITES.index(site) + 1)


def _check(group: Group, seen: dict[tuple[str, int], tuple[State, int]]) -> None:
    actions = group.ledger.actions()
    here = {site.name for site in group.ledger.sites() if site.is_here}
    in_steps = group.ledger.alarm() == group.context.time_ns
    for action in actions:
        if action.state.is_decided:
            known = seen.setdefault((action.id, action.requested), (action.state, action.decided))
            assert known == (action.state, action.decided), "a decision has changed"
        elif action.requested and not in_steps:
            voted = {vote.site for vote in action.votes}
            assert set(action.sites) - voted <= here, "it waits for a site that is away"
        if action.state is State.COMMITTED:
            assert {vote.site for vote in action.votes if vote.yes} >= set(action.sites)
            by_id = {each.id: each for each in actions}
            assert all(
                by_id[each].state is State.COMMITTED and by_id[each].decided <= action.decided
                for each in action.depends
                if each in by_id and by_id[each].requested <= action.decided
            )
    voting = [action for action in actions if action.state is State.VOTING]
    for one in voting:
        for other in voting:
            assert one.unit == other.unit or not _compete(one, other)
    if not in_steps:
        assert not actions or voting or not any(a.state is State.WAITING and a.unit for a in actions)


def _compete(one: Action, other: Action) -> bool:
    return any(
        mine.site == theirs.site and compete(mine.keys, theirs.keys)
        for mine in one.operations
        for theirs in other.operations
    )


def test_random_histories_keep_their_promises_and_survive_snapshots() -> None:
    for seed in range(60):
        rng = Random(seed)
        group = Group(Small)
        seen: dict[tuple[str, int], tuple[State, int]] = {}
        for number in range(150):
            with suppress(Rejected, NoSuchAction):
                _step(group, rng)
            _check(group, seen)
            if number % 40 == 0:
                before = group.snapshot()
                group.ledger = group.restored()
                assert group.snapshot() == before
        group.view(1, 2, 3)
        group.wait(1_000)
        assert not any(not each.state.is_decided for each in group.ledger.actions())


def test_many_unfinished_actions_do_not_slow_a_vote() -> None:
    group = Group()

    def votes(first: int) -> float:
        for number in range(first, first + 300):
            group.request(f"{number}", at("a", f"{number}"), at("b", f"{number}"))
        best = 1.0
        for begin in range(first, first + 300, 100):
            started = time.process_time()
            for number in range(begin, begin + 100):
                group.vote(f"{number}", "a")
                group.vote(f"{number}", "b")
            best = min(best, time.process_time() - started)
        return best

    alone = votes(0)
    for number in range(1_000, 21_000):
        group.request(f"{number}", at("a", f"{number}"), at("b", f"{number}"))
        if number % 2:
            group.vote(f"{number}", "a")
            group.vote(f"{number}", "b")
    assert votes(500) < 4 * alone
