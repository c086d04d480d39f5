"""What a site does, told what the ledger says and what became of its effects."""

from random import Random

import pytest

from apps.actions.ledger import ActionLedger
from apps.actions.records import Limits
from apps.actions.site import SiteCore
from apps.actions.types import (
    Abort,
    CastVote,
    Commit,
    Duty,
    Operation,
    Prepare,
    Register,
    ReportFinished,
    RetryLater,
    SiteEffect,
    Task,
)
from rsm.feeds import Feed
from tests.apps.actions.kit import Group, at

NOW = 5  # the incarnation


def ops(*keys: str) -> tuple[Operation, ...]:
    return (at("a", *keys, whole=not keys),)


def duty(task: Task, unit: str, *keys: str, incarnation: int = NOW) -> Duty:
    return Duty(task, unit, incarnation, () if task is Task.ABORT else ops(*keys))


def heard(core: SiteCore, *duties: Duty) -> list[SiteEffect]:
    return core.hear(Feed(list(duties), 1))


def reset(core: SiteCore, *duties: Duty) -> list[SiteEffect]:
    return heard(core, Duty(Task.RESET, incarnation=core.incarnation), *duties, Duty(Task.COMPLETE))


def begun(*recovered: str) -> SiteCore:
    core = SiteCore()
    assert core.begin(NOW, recovered) == []
    return core


def test_it_votes_yes_when_prepared_commits_when_told_and_reports() -> None:
    core = begun()
    assert reset(core) == []
    assert heard(core, duty(Task.PREPARE, "x", "k")) == [Prepare("x", ops("k"))]
    assert core.prepared("x", "") == [CastVote("x", NOW, True, "")]
    assert heard(core, duty(Task.PREPARE, "x", "k")) == []
    assert heard(core, duty(Task.COMMIT, "x", "k")) == [Commit("x", ops("k"))]
    assert core.committed("x", "") == [ReportFinished("x", "")]
    assert reset(core, duty(Task.COMMIT, "x", "k")) == [ReportFinished("x", "")]
    assert core.reported(["x"]) == []
    assert reset(core) == []


def test_a_failed_prepare_is_a_vote_no_and_undone_when_the_ledger_aborts() -> None:
    core = begun()
    heard(core, duty(Task.PREPARE, "x", "k"))
    assert core.prepared("x", "no money") == [CastVote("x", NOW, False, "no money")]
    assert heard(core, duty(Task.ABORT, "x")) == [Abort("x")]
    assert core.aborted("x", "") == []


def test_an_abort_while_it_prepares_waits_for_the_end_and_there_is_no_vote() -> None:
    core = begun()
    heard(core, duty(Task.PREPARE, "x", "k"))
    assert heard(core, duty(Task.ABORT, "x")) == []
    assert heard(core, duty(Task.PREPARE, "y", "k")) == []
    assert core.prepared("x", "") == [Abort("x")]
    assert core.aborted("x", "") == [Prepare("y", ops("k"))]


def test_what_competes_is_prepared_when_the_one_before_is_applied_here() -> None:
    core = begun()
    heard(core, duty(Task.PREPARE, "x", "k"))
    core.prepared("x", "")
    assert heard(core, duty(Task.COMMIT, "x", "k"), duty(Task.PREPARE, "y", "k")) == [Commit("x", ops("k"))]
    assert heard(core, duty(Task.PREPARE, "z", "other")) == [Prepare("z", ops("other"))]
    assert core.committed("x", "") == [ReportFinished("x", ""), Prepare("y", ops("k"))]


def test_when_a_commit_fails_then_it_is_tried_again_and_competitors_are_voted_down() -> None:
    core = begun()
    heard(core, duty(Task.PREPARE, "x", "k"))
    core.prepared("x", "")
    heard(core, duty(Task.COMMIT, "x", "k"), duty(Task.PREPARE, "y", "k"))
    failed = core.committed("x", "full")
    assert RetryLater("x") in failed
    assert ReportFinished("x", "full") in failed
    votes = [each for each in failed if isinstance(each, CastVote)]
    assert [(vote.unit, vote.yes) for vote in votes] == [("y", False)]
    (vote,) = heard(core, duty(Task.PREPARE, "z"))
    assert isinstance(vote, CastVote)
    assert not vote.yes
    assert core.retry("x") == [Commit("x", ops("k"))]
    assert core.retry("x") == []
    assert core.committed("x", "") == [ReportFinished("x", "")]
    assert heard(core, duty(Task.ABORT, "y"), duty(Task.ABORT, "z")) == []
    assert heard(core, duty(Task.PREPARE, "w", "k")) == [Prepare("w", ops("k"))]


def test_after_a_restart_what_stands_is_kept_or_committed_and_the_rest_is_undone() -> None:
    core = begun("held", "committed", "gone")
    after = reset(
        core,
        duty(Task.COMMIT, "committed", "1", incarnation=2),
        duty(Task.HOLD, "held", "2", incarnation=2),
        duty(Task.PREPARE, "new", "1"),
    )
    assert after == [Abort("gone")]  # nobody knows what it has touched
    assert core.aborted("gone", "") == [Commit("committed", ops("1"))]
    assert core.committed("committed", "") == [ReportFinished("committed", ""), Prepare("new", ops("1"))]
    assert heard(core, duty(Task.COMMIT, "held", "2", incarnation=2)) == [Commit("held", ops("2"))]


def test_several_recovered_commits_do_not_wait_for_each_other() -> None:
    core = begun("x", "y")
    effects = reset(core, duty(Task.COMMIT, "y", "1"), duty(Task.COMMIT, "x", "2"))
    assert effects == [Commit("y", ops("1")), Commit("x", ops("2"))]


def test_it_votes_once_in_an_incarnation_and_never_for_another() -> None:
    core = begun()
    assert heard(core, duty(Task.PREPARE, "x", "k", incarnation=NOW - 1)) == []
    heard(core, duty(Task.PREPARE, "y", "k"))
    core.begin(NOW + 1, ())
    assert core.prepared("y", "") == []
    assert reset(core) == [Abort("y")]


def test_a_registration_that_is_over_is_renewed() -> None:
    core = begun()
    assert heard(core, Duty(Task.OVER, incarnation=NOW)) == []
    assert heard(core, Duty(Task.OVER, incarnation=NOW + 3)) == [Register()]


def test_a_ledger_that_does_not_know_the_registration_is_not_believed() -> None:
    core = begun("voted for")
    with pytest.raises(ValueError, match="does not know"):
        heard(core, Duty(Task.RESET, incarnation=NOW - 1), Duty(Task.COMPLETE))


def test_an_abort_that_fails_is_tried_again() -> None:
    core = begun("x")
    reset(core)
    assert core.aborted("x", "busy") == [RetryLater("x")]
    assert core.retry("x") == [Abort("x")]
    assert core.aborted("x", "") == []
    assert core.retry("x") == []


def test_random_lives_keep_the_rules_with_a_real_ledger() -> None:
    for seed in range(150):
        _Life(Random(seed)).run()


class _Life:
    """Site a by its core, b and c by chance. Its effects end in any order; now and then it crashes."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.group = Group()
        self.core = SiteCore()
        self.intents: dict[str, None] = {}
        self.applied: dict[str, int] = {}
        self.under_way: list[SiteEffect] = []
        self.votes: dict[tuple[str, int], int] = {}
        self.position = 0
        self._begin()

    def _begin(self) -> None:
        self.under_way.clear()
        incarnation = self.group.register("a", 1)
        self.core = SiteCore()
        self.position = 0
        self._take(self.core.begin(incarnation, list(self.intents)))

    def _take(self, effects: list[SiteEffect]) -> None:
        for effect in effects:
            self.under_way.append(effect)
            if isinstance(effect, CastVote):
                key = (effect.unit, effect.incarnation)
                self.votes[key] = self.votes.get(key, 0) + 1
                assert self.votes[key] == 1
                assert not effect.yes or effect.unit in self.intents

    def run(self) -> None:
        for number in range(80):
            self._step(number)
        self.rng = Random(1)  # that never crashes
        for _ in range(60):
            self._hear()
            while self.under_way:
                self._end(self.under_way.pop(0), fail=False)
        assert self.core.hear(self.group.ledger.duties(0, "a")) == []
        assert not self.intents

    def _step(self, number: int) -> None:
        rng, group = self.rng, self.group
        match rng.randrange(10):
            case 0 | 1:
                keys = rng.sample("klm", rng.randrange(1, 3))
                group.request(f"{number}", at("a", *keys, whole=rng.random() < 0.1), timeout_ms=200)
            case 2 if rng.random() < 0.2:
                self._begin()
            case 3:
                group.wait(rng.randrange(60))
            case 4 | 5 | 6:
                self._hear()
            case _ if self.under_way:
                self._end(self.under_way.pop(rng.randrange(len(self.under_way))), fail=rng.random() < 0.15)

    def _hear(self) -> None:
        feed = self.group.ledger.duties(self.position, "a")
        self.position = feed.position
        self._take(self.core.hear(feed))

    def _end(self, effect: SiteEffect, *, fail: bool) -> None:
        core, group, error = self.core, self.group, "failed" if fail else ""
        match effect:
            case Prepare(unit):
                if not fail:
                    self.intents[unit] = None
                self._take(core.prepared(unit, error))
            case Commit(unit):
                if not fail:
                    assert unit in self.intents or unit in self.applied
                    self.applied[unit] = self.applied.get(unit, 0) + (unit in self.intents)
                    self.intents.pop(unit, None)
                self._take(core.committed(unit, error))
            case Abort(unit):
                assert unit not in self.applied
                if not fail:
                    self.intents.pop(unit, None)
                self._take(core.aborted(unit, error))
            case CastVote(unit, incarnation, yes, reason):
                group.call(group.ledger.vote, unit, "a", incarnation, yes, reason)
            case ReportFinished(unit, error):
                group.call(group.ledger.finished, "a", group.incarnations["a"], [(unit, error)])
                if not error:
                    self._take(core.reported([unit]))
            case RetryLater(unit):
                self._take(core.retry(unit))


def test_when_aborts_are_forgotten_between_two_pages_then_it_begins_anew() -> None:
    class Small(ActionLedger):
        limits = Limits(aborts_kept_max=2, duties_max=3)

    group, core = Group(Small), SiteCore()
    for key in "123456":
        group.request(key, at("a", key), at("b", key))
        group.vote(key, "a")
    units = [group.of(key).unit for key in "123456"]
    core.begin(group.register("a", 1), units)
    page = group.ledger.duties(0, "a")
    assert core.hear(page) == []
    group.register("b", 2)  # none of them can be committed any more
    assert core.hear(group.ledger.duties(page.position, "a")) == [Register()]
    core.begin(group.register("a", 1), ())
    page, effects = Feed([], 0), []
    while page.position != group.context.timestamp:
        page = group.ledger.duties(page.position, "a")
        effects += core.hear(page)
    assert effects == [Abort(unit) for unit in units]
