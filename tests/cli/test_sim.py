"""`rsm sim` as a user types it."""

import json
import sys
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from ordering.simulator.campaign import Outcome, Runner, play
from ordering.simulator.checkers.base import Checker
from ordering.simulator.plan import Plan
from ordering.simulator.run import simulate

SMALL = ["--sites", "3", "--seconds", "1", "--rate", "20", "--faults", "light", "--jobs", "1"]


def rsm_sim(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["sim", *words])


def test_when_a_seed_is_replayed_then_it_ends_with_its_trace_hash() -> None:
    result = rsm_sim("--seed", "7", *SMALL, "-v")
    assert result.exit_code == 0, result.output
    assert "installs view 1.0" in result.output
    shown = json.loads(rsm_sim("--seed", "7", *SMALL, "--json").output)
    assert f"trace hash │ {shown['trace']}" in result.output
    assert shown["violations"] == []


def test_when_a_seed_is_replayed_without_v_then_only_the_summary_is_shown() -> None:
    result = rsm_sim("--seed", "7", *SMALL)
    assert "trace hash" in result.output
    assert "installs" not in result.output


def test_when_vv_is_given_then_packets_are_shown() -> None:
    assert "Probe to" in rsm_sim("--seed", "7", *SMALL, "-vv").output


def test_when_a_campaign_ends_then_its_table_and_the_next_seed_are_shown() -> None:
    result = rsm_sim("--seeds", "3", "--first-seed", "10", *SMALL)
    assert result.exit_code == 0, result.output
    assert "seeds 10 to 12" in result.output
    for words in ("hours simulated", "messages per simulated hour", "faults per simulated hour", "views"):
        assert words in result.output
    assert "fault: partition: bridge" in result.output
    assert "--first-seed 13" in result.output


def test_when_a_campaign_is_asked_for_json_then_it_prints_only_json() -> None:
    shown = json.loads(rsm_sim("--seeds", "2", *SMALL, "--json").stdout)
    assert shown["seeds"] == 2
    assert shown["next_seed"] == 2
    assert shown["faults"]["pause"] == 0


class Complainer(Checker):
    name = "complainer"

    def __init__(self) -> None:
        super().__init__()
        self.fail(0, "something is wrong")


@pytest.fixture
def complaining(monkeypatch: pytest.MonkeyPatch) -> None:
    def simulate_and_complain(plan: Plan, extra: tuple[Checker, ...] = ()) -> object:
        return simulate(plan, (*extra, Complainer()))

    monkeypatch.setattr("cli.sim.simulate", simulate_and_complain)


@pytest.mark.usefixtures("complaining")
def test_when_a_rule_is_violated_then_the_exit_code_is_1_and_the_replay_line_is_shown() -> None:
    result = rsm_sim("--seeds", "1", "--first-seed", "5", *SMALL)
    assert result.exit_code == 1
    assert "rsm sim --seed 5 --sites 3 --faults light --seconds 1 --rate 20 -v" in result.output
    assert "something is wrong" in result.output
    assert rsm_sim("--seed", "5", *SMALL).exit_code == 1


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("--sites", "99"), "--sites"),
        (("--seconds", "0"), "--seconds"),
        (("--rate", "0"), "--rate"),
        (("--discipline", "anarchy"), "--discipline"),
        (("--faults", "some"), "--faults"),
        (("--seeds", "0"), "--seeds"),
        (("--seed", "1", "--seeds", "2"), "--seed"),
        (("--seed", "1", "--coverage"), "--seed"),
        (("-v",), "--verbose"),
        (("--app", "nothing"), "--app"),
        (("--app", "actions", "--coverage"), "--coverage"),
    ],
)
def test_when_an_option_is_wrong_then_it_is_named_and_the_exit_code_is_2(
    words: tuple[str, ...], option: str
) -> None:
    result = rsm_sim(*words)
    assert result.exit_code == 2, result.output
    assert option in result.output
    assert "Traceback" not in result.output


def test_when_interrupted_then_the_sum_so_far_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(
        plans: Iterable[Plan], jobs: int, record: Path | None, runner: Runner
    ) -> Generator[Outcome, None, None]:
        remaining = iter(plans)
        yield play(next(remaining), run=runner)
        raise KeyboardInterrupt

    monkeypatch.setattr("cli.sim.run_campaign", interrupted)
    result = rsm_sim("--seeds", "50", *SMALL)
    assert result.exit_code == 130
    assert "hours simulated" in result.output
    assert "--first-seed 1" in result.output


def test_when_too_few_pairs_are_covered_then_the_exit_code_is_1() -> None:
    result = rsm_sim("--coverage", "--seeds", "2", *SMALL)
    assert result.exit_code == 1
    assert "legal pairs seen" in result.output
    assert "never seen: " in result.output


def test_when_coverage_runs_then_disciplines_take_turns() -> None:
    shown = json.loads(rsm_sim("--coverage", "--seeds", "2", *SMALL, "--json").stdout)
    assert 0 < shown["legal_percent_seen"] < 95
    assert shown["coverage_violations"] == []


def test_when_help_is_asked_for_then_it_teaches_by_example() -> None:
    result = rsm_sim("--help")
    assert result.exit_code == 0
    assert "rsm sim --seed 7 -v" in result.output


class FakeMutant(msgspec.Struct):
    name: str
    pitfall: str
    found: bool = True
    seeds: int = 3
    checker: str = "total_order"


@pytest.mark.parametrize(("second_found", "exit_code"), [(True, 0), (False, 1)])
def test_when_mutants_are_hunted_then_one_that_got_away_fails(
    monkeypatch: pytest.MonkeyPatch, second_found: bool, exit_code: int
) -> None:
    def hunt(
        names: tuple[str, ...],
        seeds: int,
        jobs: int,
        progress: Callable[[FakeMutant], None],
        mutants: tuple[FakeMutant, ...],
        trial: object,
    ) -> list[FakeMutant]:
        results = [FakeMutant("deaf", "hears nothing"), FakeMutant("dumb", "says nothing", second_found)]
        assert names == ()
        assert [mutant.name for mutant in mutants] == ["deaf", "dumb"]
        assert trial == "plays"
        assert seeds == 20
        for result in results:
            progress(result)
        return results

    module = ModuleType("ordering.simulator.mutants")
    module.__dict__.update(
        MUTANTS=(FakeMutant("deaf", ""), FakeMutant("dumb", "")),
        MutantResult=FakeMutant,
        hunt=hunt,
        play_planted="plays",
    )
    monkeypatch.setitem(sys.modules, "ordering.simulator.mutants", module)
    result = rsm_sim("--mutants", "--seeds", "20")
    assert result.exit_code == exit_code, result.output
    assert "says nothing" in result.output
    assert ("nobody" in result.output) is not second_found


def test_when_a_run_is_recorded_then_its_seed_has_a_directory(tmp_path: Path) -> None:
    result = rsm_sim("--seed", "7", *SMALL, "--record", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert list((tmp_path / "seed-7").iterdir())


def test_when_a_directory_has_a_recording_then_a_second_one_is_refused(tmp_path: Path) -> None:
    """Two recordings of one run in one place would count every event twice."""
    rsm_sim("--seed", "7", *SMALL, "--record", str(tmp_path))
    again = rsm_sim("--seed", "7", *SMALL, "--record", str(tmp_path))
    assert again.exit_code == 2
    assert "is not empty; name another directory" in again.output


def test_when_a_campaign_ends_then_the_line_to_go_on_keeps_its_options() -> None:
    result = rsm_sim("--seeds", "2", "--first-seed", "5", *SMALL)
    assert "to go on: rsm sim --first-seed 7 --sites 3 --faults light --seconds 1 --rate 20" in result.output


def test_when_actions_are_simulated_then_a_replay_tells_what_becomes_of_them() -> None:
    small = ["--app", "actions", "--faults", "none", "--seconds", "1", "--jobs", "1"]
    result = rsm_sim("--seed", "1", *small, "-v")
    assert result.exit_code == 0, result.output
    assert "is committed" in result.output
    assert "installs view" not in result.output
    assert "installs view" in rsm_sim("--seed", "1", *small, "-vv").output
    campaign = rsm_sim("--seeds", "2", *small)
    assert campaign.exit_code == 0, campaign.output
    assert "to go on: rsm sim --app actions --first-seed 2 --faults none --seconds 1" in campaign.output
