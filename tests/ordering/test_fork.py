"""Forks: who may leave a chain, who must not, and how one chain remains (R9)."""

from random import Random

import pytest

from ordering.config import MS
from ordering.effects import Ending, EndMembership
from ordering.engine import Engine
from ordering.errors import MembershipError
from ordering.events import ForkRequested, PacketsReceived, Started, StateTransferred
from ordering.packets import ChainAlive, Descent, Head, Orphan, Packet
from ordering.simulator.process import Process
from ordering.simulator.stage import Stage
from ordering.views import Member, SiteId

SECOND = 1000 * MS


def chains(stage: Stage) -> set[int]:
    return {process.engine.site.chain for process in stage.cluster.live()}


def claim(
    stage: Stage, process: Process, chain: int, depth: int, root: int | None = None, *, solicited: bool = True
) -> list[object]:
    """Let ``process`` hear that another chain lives."""
    site = process.engine.site
    head = Head(site.group, chain, SiteId(99), 99, 1, 0, 0, 0, 0)
    descent = Descent(site.descent.root if root is None else root, depth)
    asked = process.engine.fork.kin.question() if solicited else 7
    packet = ChainAlive(head, "elsewhere", descent, 5, asked)
    now = process.local_time(stage.cluster.clock.now)
    return [e for e in process.engine.handle(PacketsReceived((packet,)), now) if isinstance(e, EndMembership)]


def test_when_a_majority_is_in_reach_then_a_fork_is_refused() -> None:
    stage = Stage.born(3)
    with pytest.raises(MembershipError, match="would split a living group"):
        stage.force("s1")
    assert len(chains(stage)) == 1
    stage.finish()


def test_when_a_site_is_no_member_then_it_cannot_fork() -> None:
    stage = Stage(Stage.born(3).cluster.config)
    process = stage.cluster.start("s1", founder=True)
    with pytest.raises(MembershipError, match="founding"):
        process.engine.handle(ForkRequested(), 1)


@pytest.mark.parametrize(("minimum_size", "goes_on"), [(0, False), (2, False), (1, True)])
def test_when_fewer_than_the_minimum_are_left_then_they_wait(minimum_size: int, goes_on: bool) -> None:
    stage = Stage.born(3, minimum_size=minimum_size, orphan_ms=2000)
    before = chains(stage)
    stage.cluster.crash("s2")
    stage.cluster.crash("s3")
    stage.run(10 * SECOND)
    assert (chains(stage) != before) is goes_on
    assert stage.process("s1").engine.site.view.electorate == (
        (stage.process("s1").member.site,) if goes_on else (1, 2, 3)
    )


def test_when_a_state_is_ahead_of_the_log_then_its_site_goes_into_no_fork_before_it_has_that_log() -> None:
    """The new chain would give slots anew that the application has passed."""
    stage = Stage.born(3, minimum_size=1)
    stage.submit("s1", "once")
    stage.run(SECOND)
    site = stage.process("s1").engine.site
    site.state_ts = site.queue.frontier + 3
    for address in ("s2", "s3"):
        stage.cluster.crash(address)
    before = site.chain
    stage.run(20 * SECOND)
    assert (site.chain, site.epoch) == (before, 1)
    with pytest.raises(MembershipError, match="the state here is of slot"):
        stage.force("s1")
    site.state_ts = site.queue.frontier
    stage.until(lambda: site.chain != before and not site.fenced, "it goes on alone")


def test_when_a_member_of_the_fork_dies_in_it_then_the_rest_fork_again() -> None:
    stage = Stage.born(7, minimum_size=2, orphan_ms=2000)
    for address in ("s1", "s2", "s3", "s4"):
        stage.cluster.crash(address)
    stage.until(lambda: stage.process("s5").engine.recovery.initiating, "s5 leads")
    stage.cluster.crash("s7")  # s5 has asked for its promise; it will never come
    stage.run(10 * SECOND)
    living = [stage.process(address).engine.site for address in ("s5", "s6")]
    assert [site.view.electorate for site in living] == [(5, 6), (5, 6)]
    assert {site.descent.depth for site in living} == {2}
    stage.finish()


@pytest.mark.parametrize("first", ["s1", "s2"])
@pytest.mark.parametrize("later_ms", [0, 400, 900, 1400])
def test_when_a_survivor_is_back_later_than_the_other_then_both_go_on_in_one_chain(
    first: str, later_ms: int
) -> None:
    """Who is back has every voter's time before it misses the majority. The first to miss it is ordered to go
    on, and the other, which has not noticed yet, must not be left behind."""
    stage = Stage.born(5, durable="yes", orphan_ms=2000)
    for number in range(1, 6):
        stage.cluster.crash(f"s{number}")
    stage.cluster.restart(first)
    stage.run(later_ms * MS)
    stage.cluster.restart("s2" if first == "s1" else "s1")
    fork = stage.process(first).engine.fork
    stage.until(lambda: not fork.detection.reaches_majority(), "it misses the majority")
    stage.force(first)
    stage.run(10 * SECOND)
    sites = [stage.process(address).engine.site for address in ("s1", "s2")]
    assert [site.view.electorate for site in sites] == [(1, 2), (1, 2)]
    assert [site.descent.depth for site in sites] == [1, 1]
    assert len(chains(stage)) == 1
    stage.finish()


def test_when_a_voter_speaks_and_never_becomes_an_orphan_then_it_is_not_waited_for_without_end() -> None:
    stage = Stage.born(5, orphan_ms=2000)
    for address in ("s3", "s4", "s5"):
        stage.cluster.crash(address)
    stage.until(lambda: not stage.process("s1").engine.fork.detection.reaches_majority(), "it misses it")
    stage.drop("s1", "s2", Orphan, 1000)  # s2 is never told that somebody ordered it
    stage.force("s1")
    stage.run(2 * SECOND)
    assert stage.process("s1").engine.site.descent.depth == 0
    stage.run(10 * SECOND)
    assert stage.process("s1").engine.site.descent.depth == 1


def test_when_an_elder_chain_lives_then_a_fork_yields() -> None:
    stage = Stage.born(3, minimum_size=1, orphan_ms=2000)
    stage.cluster.crash("s2")
    stage.cluster.crash("s3")
    stage.run(5 * SECOND)
    process = stage.process("s1")
    root = process.engine.site.descent.root
    assert process.engine.site.descent.depth == 1
    assert claim(stage, process, chain=5, depth=2) == []  # younger, and we are well
    assert claim(stage, process, chain=root, depth=0, root=root + 1) == []  # no kin
    assert claim(stage, process, chain=root, depth=0, solicited=False) == []  # late, or never asked for
    assert claim(stage, process, chain=root, depth=0) == [EndMembership(Ending.SUPERSEDED)]


def test_when_a_younger_chain_lives_then_only_who_has_long_lost_the_majority_yields() -> None:
    stage = Stage.born(3)
    process = stage.process("s1")
    assert claim(stage, process, chain=5, depth=1) == []
    stage.isolate("s1")
    stage.run(3 * SECOND)
    assert claim(stage, process, chain=5, depth=1) == []  # the first word of it
    for _ in range(4):  # as long as claims keep coming
        stage.run(stage.cluster.config.orphan_ms * MS // 4 - 1)
        assert claim(stage, process, chain=5, depth=1) == []
    stage.run(10)
    assert claim(stage, process, chain=5, depth=1) == [EndMembership(Ending.SUPERSEDED)]


def engine_at(address: str) -> Engine:
    return Engine(Stage.born(3).cluster.config, Member(SiteId(9), 9, address), Random(0))


def test_when_a_site_is_started_twice_then_the_second_time_is_refused() -> None:
    engine = engine_at("s1")
    engine.handle(Started(founder=True), 1)
    with pytest.raises(MembershipError, match="make a new engine"):
        engine.handle(Started(founder=True), 2)


def test_when_a_founder_is_not_configured_as_one_then_it_is_refused() -> None:
    with pytest.raises(MembershipError, match="founder=False to join"):
        engine_at("s9").handle(Started(founder=True), 1)


def test_when_a_state_comes_before_it_is_asked_for_then_it_is_refused() -> None:
    engine = engine_at("s9")
    engine.handle(Started(founder=False), 1)
    with pytest.raises(MembershipError, match="RequestState"):
        engine.handle(StateTransferred(7), 2)
    assert not engine.membership.promotable


def test_when_a_claim_comes_late_then_the_only_living_chain_does_not_yield_to_it() -> None:
    """The elder chain lived when it answered; when the answer arrives it is dead."""
    stage = Stage.born(5, minimum_size=2, orphan_ms=2000)
    late: list[tuple[str, Packet]] = []
    send = stage.network.send

    def hold_claims(source: str, to: str, packet: Packet | bytes) -> None:
        if isinstance(packet, ChainAlive) and to in ("s4", "s5"):
            late.append((to, packet))
        else:
            send(source, to, packet)

    stage.network.send = hold_claims  # type: ignore[method-assign]
    few, many = ("s4", "s5"), ("s1", "s2", "s3")
    cut = stage.network.cut(*[(a, b) for a in few for b in many], *[(b, a) for a in few for b in many])
    stage.run(5 * SECOND)
    stage.network.mend(cut)
    stage.until(lambda: {to for to, _ in late} == {"s4", "s5"}, "claims are on their way")
    for address in many:
        stage.cluster.crash(address)
    stage.run(10 * SECOND)
    for to, packet in late:
        stage.cluster.handle(stage.process(to), PacketsReceived((packet,)))
    stage.run(SECOND)
    assert [stage.process(address).ended for address in few] == [None, None]
    stage.finish()


def test_when_the_majority_was_back_in_between_then_its_loss_is_counted_anew() -> None:
    stage = Stage.born(3)
    process = stage.process("s1")
    stage.isolate("s1")
    stage.run(3 * SECOND)
    assert claim(stage, process, chain=5, depth=1) == []
    stage.network.mend_all()
    stage.run(60 * SECOND)
    stage.isolate("s1")
    stage.run(1600 * MS)
    assert claim(stage, process, chain=5, depth=1) == []
