"""The battery's share of the test run: seeds under faults, determinism, planted bugs."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ordering.simulator.mutants import MUTANTS, planted, search
from ordering.simulator.plan import FaultKind, FaultMix, Plan
from ordering.simulator.run import simulate

ROOT = Path(__file__).parents[2]
SEEDS = 200
CHUNK = 10
FOUND_SOMETHING = (
    583, 606, 708, 747, 748, 847, 870, 884, 966, 1070, 1247, 1262, 1463, 1524, 1580, 1605, 1616, 1880, 2060,
    2126, 2132, 2557, 2580, 3271, 3285, 3708, 4927, 5146, 5391, 7331,
)  # fmt: skip


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_when_a_swarm_of_faults_strikes_then_no_checker_complains(first: int) -> None:
    for seed in range(first, first + CHUNK):
        discipline = "sequencer" if seed % 4 == 3 else "rotating"
        report = simulate(Plan(seed=seed, discipline=discipline, sites=(3, 5, 5, 4, 7)[seed % 5]))
        assert report.violations == [], report.replay


@pytest.mark.parametrize("seed", FOUND_SOMETHING)
def test_when_a_seed_has_found_something_once_then_it_is_played_for_ever(seed: int) -> None:
    discipline = ("rotating", "sequencer")[seed // 4 % 2]
    sites = (5, 3, 4, 7)[seed % 4]
    report = simulate(pinned(seed=seed, discipline=discipline, sites=sites, durable=False, callers=0))
    assert report.violations == [], report.replay


def pinned(**settings: Any) -> Plan:
    """As it was when it found something: what is drawn aside since then would make another run of it."""
    return Plan(reads=False, retire=False, **settings)


@pytest.mark.parametrize(
    "plan",
    [
        # Others say that their ring holds a slot, and it is a later and smaller one.
        Plan(seed=1026, discipline="sequencer", reads=True, retire=False),
        # The same, and a site that is behind delivers at TOTAL by it.
        Plan(seed=33, discipline="sequencer"),
        # Holders are asked for of the slot of an install that is not told yet.
        Plan(seed=1042, reads=True, retire=False),
        # One event brings a site through several views, and holders are told in between.
        Plan(seed=335, discipline="sequencer"),
        # All restart while a voter is being removed, one without its disk: the one that goes is needed again.
        Plan(seed=731),
        # A site that has a state beyond its log loses the others, and must not go on alone.
        Plan(seed=2818),
        # Calls are bound to a view whose chain has ended.
        Plan(seed=1060),
        # A boot that is named in slots which a laggard lacks is fenced, and taken for a disk that went back.
        Plan(seed=36, sites=3, discipline="sequencer", seconds=8, durable=True, reads=True, retire=True),
        # Who accepts and decides in one moment has held all before, though nobody sees it.
        Plan(seed=126, sites=3, durable=True, reads=True, retire=True),
        pinned(seed=0, sites=3, durable=True),  # a site back from its disk takes calls before it is named
        pinned(seed=181),  # calls bound to a view of a chain that has ended
        pinned(seed=388),  # who answers with what its earlier boot sent sends nothing new
        pinned(seed=410),  # a message of an earlier boot lost its slot, and its number was given out again
        pinned(seed=1353),  # what an earlier boot sent arrives late, at a site that was paused
        pinned(seed=1629),  # one event brings a site through two epochs, and it sends in both
        pinned(seed=2159),  # a site comes back from its disk with more than it would keep
        pinned(seed=2362),  # the name of a boot was erased after it had numbered messages
        pinned(seed=49, discipline="sequencer"),  # a receiver has in its log what an earlier boot sent
    ],
    ids=lambda plan: f"seed {plan.seed}",
)
def test_when_a_plan_has_found_something_once_then_it_is_played_for_ever(plan: Plan) -> None:
    report = simulate(plan)
    assert report.violations == [], report.replay


@pytest.mark.parametrize("first", range(0, SEEDS // 2, CHUNK))
def test_when_disks_fail_too_then_no_checker_complains(first: int) -> None:
    for seed in range(first, first + CHUNK):
        discipline = ("rotating", "sequencer")[seed // 4 % 2]
        sites = (3, 5, 4, 7)[seed % 4]
        report = simulate(Plan(seed=seed, discipline=discipline, sites=sites, durable=True, seconds=8))
        assert report.violations == [], report.replay


@pytest.mark.parametrize("discipline", ["rotating", "sequencer"])
def test_when_nothing_fails_then_everything_is_applied_in_one_view(discipline: str) -> None:
    report = simulate(Plan(seed=4, discipline=discipline, faults=FaultMix.NONE))
    assert report.violations == []
    assert report.views == 1
    assert report.applied == report.submitted > 500


def test_when_the_network_is_merely_bad_then_no_checker_complains() -> None:
    for seed in range(6):
        report = simulate(Plan(seed=seed, faults=FaultMix.LIGHT))
        assert report.violations == [], report.replay


def test_when_a_seed_runs_under_two_hash_seeds_then_the_trace_is_one() -> None:
    line = (
        "from ordering.simulator.run import simulate; from ordering.simulator.plan import Plan;"
        "print(*[simulate(Plan(seed=s, seconds=6)).trace for s in (7, 8, 9)])"
    )
    traces = {
        subprocess.run(
            [sys.executable, "-c", line],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(traces) == 1


@pytest.mark.parametrize("sites", [3, 5, 7])
def test_when_callers_are_struck_as_well_then_no_checker_complains(sites: int) -> None:
    for seed in range(1000, 1006):
        report = simulate(Plan(seed=seed, sites=sites, callers=2))
        assert report.violations == [], report.replay
        assert report.calls > 0


@pytest.mark.parametrize("discipline", ["rotating", "sequencer"])
@pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])
def test_when_sites_are_stopped_in_an_orderly_way_then_no_epoch_ends(
    discipline: str, *, durable: bool
) -> None:
    for seed in range(4):
        plan = Plan(seed=seed, discipline=discipline, faults=FaultMix.NONE, durable=durable, retire=True)
        report = simulate(plan)
        assert report.violations == [], report.replay
        assert report.faults[FaultKind.RETIRE] > 2


@pytest.mark.parametrize("sites", [3, 4, 7])
def test_when_sites_retire_among_other_faults_then_no_checker_complains(sites: int) -> None:
    for seed in range(2000, 2006):
        report = simulate(Plan(seed=seed, sites=sites, retire=True))
        assert report.violations == [], report.replay


def test_every_kind_of_fault_happens() -> None:
    seen: dict[FaultKind, int] = {}
    for seed in range(SEEDS):
        for kind, count in simulate(Plan(seed=seed, seconds=6)).faults.items():
            seen[kind] = seen.get(kind, 0) + count
        if set(seen) == set(FaultKind):
            return
    pytest.fail(f"never seen: {set(FaultKind) - set(seen)}")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_still_finds_its_guard(mutant: object) -> None:
    assert any(mutant is known for known in MUTANTS)
    with planted(next(known for known in MUTANTS if known is mutant)):
        pass


def test_when_a_guard_is_removed_then_a_checker_notices() -> None:
    by_name = {mutant.name: mutant for mutant in MUTANTS}
    for name in ("deliver before a majority holds", "a founder founds alone", "majority of the ring"):
        result = search(by_name[name], seeds=30)
        assert result.found, name


def test_when_a_token_site_goes_deaf_while_somebody_wants_in_then_its_probes_prove_nothing() -> None:
    plan = Plan(seed=290, retire=False)
    sound = simulate(plan)
    assert sound.violations == []
    assert sound.faults[FaultKind.DEAF_TOKEN_SITE] == 1
    believed = next(mutant for mutant in MUTANTS if mutant.name == "a deaf token site is believed")
    assert search(believed, seeds=1, first_seed=plan.seed).checker == "liveness"
