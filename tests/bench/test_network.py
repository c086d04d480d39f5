"""The network battery: what it says where it cannot run, how it judges, and two short real cases."""

import asyncio
import os
import shutil
from array import array
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from bench.errors import BenchError, NotAvailable
from bench.network import faults
from bench.network.battery import NetworkPlan, play
from bench.network.cases import Case, Kind, all_cases
from bench.network.checks import Bounds, Judged, Times, Verdict, judge, longest_silence
from bench.network.replica import Replica, Report, Saved
from cli.main import app
from ordering import Config, LevelReached, Member, Retract, SiteId, View, ViewId
from ordering.driver import Driver

needs_network = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("nft") is None, reason="needs root and nft"
)
SECOND = 1_000_000_000
BOUNDS = Bounds.of(Config(group="g", founders=("a:1",)))
TIMES = Times(
    breaking=10 * SECOND,
    broken=10 * SECOND + 1,
    mending=14 * SECOND,
    mended=14 * SECOND + 1,
    stopped=16 * SECOND,
)
HALVES = next(case for case in all_cases(3) if case.name == "halves")
LOSS = next(case for case in all_cases(3) if case.name == "loss-5")


def view(epoch: int, *ring: int) -> View:
    everyone = tuple(SiteId(site) for site in (1, 2, 3))
    members = tuple(Member(site, site, f"s{site}:1") for site in everyone)
    return View(ViewId(epoch, 0), members, everyone, tuple(SiteId(site) for site in ring))


def report(site: int) -> Report:
    """A site of the larger side, to which nothing bad happened."""
    beats = range(9 * SECOND, 16 * SECOND, SECOND // 10)
    return Report(
        site=site,
        state=Saved(ts=30, digest=b"same", applied=20, last={0: 5, 1: 5, 2: 10}),
        accepted=5,
        source=site,
        acked={site: 5},
        abandoned_lives=[],
        history=(array("Q", [10, 20]).tobytes(), array("Q", [7, 8]).tobytes()),
        calls=[(when, when - 1, number) for number, when in enumerate(beats)],
        views=[
            (SECOND, 1, view(1, 1, 2, 3)),
            (11 * SECOND, 1, view(2, 2, 3)),
            (15 * SECOND, 1, view(3, 1, 2, 3)),
        ],
        stances=[(9 * SECOND, True)],
        transfers=[],
        refused=0,
        took_ns=[],
        late_ns=1_000_000,
        counters={"retransmissions": 3},
        datagrams=100,
        wrongs=[],
    )


def cut_off() -> Report:
    """The smaller side of halves, as it has to be."""
    alone = report(0)
    alone.calls = [(9 * SECOND, 9 * SECOND, 1), (15 * SECOND, 15 * SECOND, 20)]
    alone.views = [(SECOND, 1, view(1, 1, 2, 3)), (15 * SECOND, 1, view(3, 1, 2, 3))]
    alone.stances = [(9 * SECOND, True), (11 * SECOND + SECOND // 2, False), (15 * SECOND, True)]
    return alone


def verdict(reports: list[Report], case: Case = HALVES) -> Judged:
    return judge(case, reports, TIMES, BOUNDS, gathered=True, settled=True, dropped=9)


def failing(judged: Judged) -> list[str]:
    return [line.name for line in judged.lines if not line.held]


def test_when_all_is_well_then_the_case_has_held_with_its_times() -> None:
    judged = verdict([cut_off(), report(1), report(2)])
    assert failing(judged) == []
    assert judged.verdict is Verdict.HELD
    assert judged.values["refuse_ms"] == 1500
    assert judged.values["whole_ms"] == 999
    assert judged.values["retransmissions"] == 9


def test_when_two_sites_differ_at_a_slot_then_the_case_has_failed_even_if_starved() -> None:
    other = report(2)
    other.history = (array("Q", [10, 20]).tobytes(), array("Q", [7, 9]).tobytes())
    other.late_ns = 5 * SECOND
    judged = verdict([cut_off(), report(1), other])
    assert failing(judged) == ["one order at all sites"]
    assert judged.verdict is Verdict.FAILED


def test_when_the_minority_delivers_what_was_submitted_after_the_cut_then_the_case_has_failed() -> None:
    minority = cut_off()
    minority.calls.insert(1, (12 * SECOND, 11 * SECOND, 2))
    judged = verdict([minority, report(1), report(2)])
    assert failing(judged) == ["the minority delivers nothing new"]
    assert judged.verdict is Verdict.FAILED


def test_when_the_minority_accepts_until_the_end_then_the_case_has_failed() -> None:
    minority = cut_off()
    minority.stances = minority.stances[:1]
    assert failing(verdict([minority, report(1), report(2)])) == ["site 1 refuses (NoPrimary)"]


def test_when_something_acknowledged_is_nowhere_then_the_case_has_failed() -> None:
    loser = report(1)
    loser.acked = {1: 6}
    judged = verdict([cut_off(), loser, report(2)])
    assert failing(judged) == ["nothing acknowledged is lost"]


def test_when_two_views_have_one_name_then_there_were_two_primaries() -> None:
    other = report(2)
    other.views[1] = (11 * SECOND, 1, view(2, 1, 3))
    assert failing(verdict([cut_off(), report(1), other])) == ["one primary"]


def test_when_the_ring_changes_under_little_loss_then_it_counts_unless_a_site_was_starved() -> None:
    reports = [report(site) for site in range(3)]
    judged = verdict(reports, LOSS)
    assert failing(judged) == ["the ring is not changed"]
    assert judged.verdict is Verdict.FAILED
    reports[1].late_ns = SECOND
    assert verdict(reports, LOSS).verdict is Verdict.STARVED


def test_when_a_silence_reaches_the_end_then_it_counts() -> None:
    assert longest_silence([5, 12, 13], 10, 20) == 7
    assert longest_silence([], 10, 20) == 10


@pytest.mark.parametrize("sites", [3, 4, 5])
def test_when_a_case_names_sides_then_the_larger_is_a_majority_and_no_link_joins_them(sites: int) -> None:
    for case in all_cases(sites):
        assert not set(case.primary) & set(case.minority)
        if case.minority:
            assert len(case.primary) >= case.majority
        if case.minority and case.kind is Kind.RULES:
            assert len(case.blocked) == 2 * len(case.primary) * len(case.minority)


def test_when_nft_is_missing_then_the_refusal_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotAvailable, match="apt-get install nftables"):
        faults.require_nft()


def test_when_not_root_then_the_command_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bench", "network"])
    assert done.exit_code == 3
    assert "only root can make" in done.output


def test_when_a_case_is_unknown_then_the_known_ones_are_listed() -> None:
    with pytest.raises(BenchError, match="sunspots is unknown; use some of: halves"):
        NetworkPlan(cases=("sunspots",)).check()


def played(name: str) -> Judged:
    plan = NetworkPlan(hold_seconds=2.5, loss_seconds=1.0, rate=200)
    case = next(case for case in all_cases(3) if case.name == name)
    judged = play(case, plan, lambda: None)
    assert isinstance(judged.values["applied"], int)
    assert judged.values["applied"] > 0
    return judged


@needs_network
def test_when_three_sites_are_parted_and_mended_then_all_have_the_same() -> None:
    judged = played("halves")
    assert judged.verdict is not Verdict.FAILED, msgspec.json.encode(judged)
    assert judged.values["dropped"]


@needs_network
def test_when_links_lose_then_all_have_the_same() -> None:
    judged = played("loss-20")
    assert judged.verdict is not Verdict.FAILED, msgspec.json.encode(judged)
    assert judged.values["retransmissions"]


def test_when_slots_are_taken_back_after_a_state_transfer_then_only_what_was_final_counts() -> None:
    """The state that was taken over is ahead of all that was delivered before it, and replaces it."""

    async def main() -> None:
        async with await Driver.open(bind="127.0.0.1:0", insecure=True) as driver:
            config = Config(group="battery", founders=(driver.address, "127.0.0.1:1"))
            replica = Replica(0, driver, config, None, 1)
            replica.join()
            replica._listen([LevelReached(10, 10)])
            replica.state.ts = 500
            replica._listen([Retract(12), Retract(10)])
            assert replica.wrongs == []
            replica._listen([Retract(9)])
            (wrong,) = replica.wrongs
            assert "taken back" in wrong

    asyncio.run(main())
