"""Bounded searches of every small case, and planted bugs that the search must find."""

import msgspec
import pytest
from typer.testing import CliRunner

from cli.main import app
from ordering import stability
from ordering.packets import NO_BALLOT, Ballot, Head, RecoveryAckNewList, RecoveryNewList, RecoveryVote
from ordering.recovery import Recovery
from ordering.simulator.explore import CASES, Limits, Report, Scenario, explore_scenario
from ordering.simulator.explored_sites import start
from ordering.site import Site

BOUNDED = Limits(states=1200, seconds=8, walk_share=10, leaves=5)
PLANTED = Limits(states=200_000, seconds=60, leaves=0)

EVERY = [(case, scenario) for case, scenarios in CASES.items() for scenario in scenarios]


def scenario_of(case: str, name: str) -> Scenario:
    return next(scenario for scenario in CASES[case] if scenario.name == name)


def show(report: Report) -> str:
    return "\n".join(
        "\n".join((*violation.problems, *violation.steps, f"confirmed: {violation.confirmed}"))
        for violation in report.violations
    )


@pytest.mark.parametrize(("case", "scenario"), EVERY, ids=[f"{c}: {s.name}" for c, s in EVERY])
def test_nothing_breaks_within_bounds(case: str, scenario: Scenario) -> None:
    report = explore_scenario(scenario, BOUNDED)
    assert not report.violations, show(report)
    assert report.transitions >= report.distinct - 1
    assert report.leaves > 0
    assert report.is_complete or report.walks > 0 or report.distinct >= BOUNDED.states


@pytest.mark.parametrize(
    ("case", "name"), [("order", "one from each of two"), ("crash", "death of a bystander")]
)
def test_small_cases_are_searched_to_the_end(case: str, name: str) -> None:
    report = explore_scenario(scenario_of(case, name), PLANTED)
    assert not report.violations, show(report)
    assert report.is_complete
    assert report.expanded == report.distinct
    assert report.complete_depth == report.depth


def test_a_search_is_the_same_every_time() -> None:
    scenario = scenario_of("crash", "death of a bystander")
    one, other = (explore_scenario(scenario, PLANTED) for _ in range(2))
    assert (one.distinct, one.transitions, one.depth) == (other.distinct, other.transitions, other.depth)


def test_limits_cut_and_say_so() -> None:
    scenario = scenario_of("order", "one from each site")
    assert explore_scenario(scenario, Limits(depth=3, seconds=60, leaves=0)).cut_by == "depth"
    assert explore_scenario(scenario, Limits(states=100, seconds=60, leaves=0)).cut_by == "states"
    assert explore_scenario(scenario, Limits(seconds=0.01, leaves=0)).cut_by == "seconds"


def test_the_start_is_a_ring_at_rest() -> None:
    sites = [outcome.facts for outcome in start(3, joiner=False, seated=False)]
    assert [facts.epoch for facts in sites] == [1, 1, 1]
    assert sum(facts.holds_token for facts in sites) == 1
    learner = start(4, joiner=True, seated=True)[3].facts
    assert learner.log.request is not None
    assert not learner.outside


# --- planted bugs


def expect(case: str, name: str, words: str) -> None:
    report = explore_scenario(scenario_of(case, name), PLANTED)
    assert report.violations, f"{report.distinct} states, {report.cut_by or 'complete'}, nothing found"
    violation = report.violations[0]
    assert violation.confirmed, show(report)
    assert any(words in problem for problem in violation.problems), show(report)
    assert violation.steps


def test_finds_acceptance_without_the_slots_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def accept(self: Recovery, proposal: RecoveryNewList) -> None:
        self.accepted_ballot = proposal.ballot
        self.accepted = proposal.order
        if proposal.ballot.site == self.site.me:
            self._acks[self.site.me] = None
            self._try_decide()
        else:
            self.site.unicast(proposal.ballot.site, RecoveryAckNewList(self.site.head(), proposal.ballot))

    monkeypatch.setattr(Recovery, "_accept", accept)
    expect("duel", "two initiators, one knows more", "accepted an install")


def test_finds_hold_statements_of_a_fenced_site(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Site.head

    def head(self: Site) -> Head:
        fenced, self.fenced = self.fenced, False
        try:
            return honest(self)
        finally:
            self.fenced = fenced

    monkeypatch.setattr(Site, "head", head)
    expect("crash", "one message", "is fenced and states a hold")


def test_finds_promises_that_hide_what_was_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Recovery._vote

    def vote(self: Recovery, ballot: Ballot) -> RecoveryVote:
        return msgspec.structs.replace(honest(self, ballot), accepted=None, accepted_ballot=NO_BALLOT)

    monkeypatch.setattr(Recovery, "_vote", vote)
    expect("duel", "two initiators", "which only")


def test_finds_a_sync_point_below_what_was_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    def worst(self: Recovery) -> RecoveryVote:
        return min(self._votes.values(), key=lambda vote: vote.frontier)

    monkeypatch.setattr(Recovery, "_best_vote", worst)
    expect("duel", "two initiators, one knows more", "is not part of epoch 2")


def test_finds_a_majority_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stability, "majority_of", lambda electorate: 1)
    expect("order", "one from each of two", "which only [3] hold")


# --- the command


def test_command_reports_a_search() -> None:
    result = CliRunner().invoke(
        app,
        ["explore", "--case", "crash", "--states", "300", "--seconds", "120"],
        env={"COLUMNS": "200"},
    )
    assert result.exit_code == 0, result.output
    assert "death of" in result.output
    assert "cut by states" in result.output


def test_command_fails_and_tells_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stability, "majority_of", lambda electorate: 1)
    result = CliRunner().invoke(app, ["explore", "--case", "order", "--seconds", "120"])
    assert result.exit_code == 1
    assert "submits a message" in result.output
