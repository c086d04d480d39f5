"""Many seeds: none lost, whatever happens to it."""

import os
from pathlib import Path

import pytest

from ordering.simulator import campaign
from ordering.simulator.campaign import Outcome, Summary, play, run_campaign
from ordering.simulator.plan import FaultKind, FaultMix, Plan


def small(seed: int) -> Plan:
    return Plan(seed=seed, sites=3, faults=FaultMix.LIGHT, seconds=1, rate=20)


def summed(outcomes: list[Outcome], first_seed: int = 0) -> Summary:
    summary = Summary(first_seed=first_seed)
    for outcome in outcomes:
        summary.add(outcome)
    return summary


def test_when_seeds_run_on_two_processes_then_reports_equal_those_of_one() -> None:
    plans = [small(seed) for seed in range(10)]
    alone = {o.plan.seed: o.report for o in run_campaign(plans, jobs=1)}
    together = {o.plan.seed: o.report for o in run_campaign(plans, jobs=2)}
    assert alone == together
    assert len(alone) == 10


def test_when_a_run_raises_then_its_seed_fails_with_a_replay_line() -> None:
    broken = Plan(seed=3, discipline="none such")
    outcomes = list(run_campaign([small(2), broken, small(4)], jobs=1))
    assert [o.plan.seed for o in outcomes] == [2, 3, 4]
    summary = summed(outcomes, 2)
    assert [failure.seed for failure in summary.failures] == [3]
    assert summary.failures[0].replay == "rsm sim --seed 3 --discipline none such -v"
    assert "ConfigurationError" in summary.failures[0].violations[0]
    assert "Traceback" in outcomes[1].traceback
    assert summary.seeds == 3


class DeadlyPath(type(Path())):  # type: ignore[misc]
    """A recording directory that kills the process which plays seed 5."""

    def __truediv__(self, name: object) -> Path:
        if name == "seed-5":
            os._exit(9)
        raise ValueError("no recording here")


def test_when_a_worker_dies_then_only_its_deadly_seed_says_so() -> None:
    outcomes = list(run_campaign([small(seed) for seed in range(12)], jobs=2, record=DeadlyPath("x")))
    assert sorted(o.plan.seed for o in outcomes) == list(range(12))
    died = [o.plan.seed for o in outcomes if "died" in o.error]
    assert died == [5]


def test_when_seeds_finish_out_of_order_then_the_next_seed_leaves_none_out() -> None:
    outcomes = {seed: Outcome(plan=small(seed), report=None, error="x") for seed in range(7, 12)}
    summary = Summary(first_seed=7)
    nexts = []
    for seed in (8, 7, 10, 11, 9):
        summary.add(outcomes[seed])
        nexts.append(summary.next_seed)
    assert nexts == [7, 9, 9, 9, 12]


def test_when_summed_then_every_kind_of_fault_is_listed() -> None:
    assert list(Summary(first_seed=0).faults) == list(FaultKind)
    assert Summary(first_seed=0).messages_per_hour == 0


def test_when_reports_are_added_then_rates_are_per_simulated_hour() -> None:
    summary = summed([play(small(1)), play(small(2))])
    assert summary.hours == pytest.approx(summary.simulated_ns / 3.6e12)
    assert summary.messages_per_hour == pytest.approx(summary.applied / summary.hours)
    assert summary.applied > 0
    assert summary.pairs
    assert summary.cpu_seconds > 0


def test_when_cores_are_counted_then_there_is_one() -> None:
    assert campaign.cores() >= 1
