"""Actions in the simulator, under faults; and the planted bugs that its checkers must find."""

import pytest

from apps.actions.simulation.mutants import MUTANTS, play_planted
from apps.actions.simulation.run import ActionsPlan, ActionTeller, run_actions
from ordering.simulator.mutants import Mutant, planted, search
from ordering.simulator.plan import FaultMix

# Found within the first few seeds each; ``rsm sim --app actions --mutants`` hunts for all of them.
HUNTED = (
    "who has left the ring still counts",
    "committed with a vote missing",
    "competing requests are voted on at once",
    "it votes before it has prepared",
)


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])
def test_claims_hold_under_faults(durable: bool) -> None:
    for seed in range(8):
        report = run_actions(ActionsPlan(seed=seed, durable=durable))
        assert not report.violations, report.replay


def test_claims_hold_with_five_sites() -> None:
    for seed in range(100, 104):
        report = run_actions(ActionsPlan(seed=seed, sites=5))
        assert not report.violations, report.replay


def test_when_a_program_ends_before_others_have_their_turn_in_the_loop_then_nothing_of_it_goes_on() -> None:
    assert run_actions(ActionsPlan(seed=423)).violations == []


def test_when_a_process_is_started_before_its_host_has_ended_the_one_before_then_its_program_lives() -> None:
    assert run_actions(ActionsPlan(seed=1051)).violations == []


def test_without_faults_most_transfers_commit_and_a_seed_is_always_the_same_run() -> None:
    plan = ActionsPlan(seed=1, faults=FaultMix.NONE, seconds=2)
    told: list[object] = []
    first = run_actions(plan, (ActionTeller(told.append),))
    assert not first.violations
    assert sum("is committed" in str(line) for line in told) > 20
    assert run_actions(plan).trace == first.trace


def test_a_failing_seed_names_the_command_that_plays_it_again() -> None:
    plan = ActionsPlan(seed=7, sites=5, durable=True)
    assert plan.replay == "rsm sim --app actions --seed 7 --sites 5 --durable -v"


@pytest.mark.parametrize(
    "mutant", [each for each in MUTANTS if each.name in HUNTED], ids=lambda each: each.name
)
def test_planted_bugs_are_found(mutant: Mutant) -> None:
    result = search(mutant, 10, 0, play_planted)
    assert result.found, mutant.name


def test_every_mutant_still_finds_its_guard() -> None:
    for mutant in MUTANTS:
        with planted(mutant):
            pass
