"""Leaps: a member whose gap is collected takes over a state, in the middle of whatever else happens."""

from random import Random

import pytest

from ordering.config import MS, Config
from ordering.effects import Deliver
from ordering.engine import Engine
from ordering.events import PacketsReceived, Started
from ordering.naming import group_id
from ordering.packets import (
    Ack,
    Batch,
    ChangeKind,
    Collected,
    Data,
    Descent,
    Head,
    ListChangeRequest,
    NewList,
    Order,
    Packet,
    Position,
    Run,
)
from ordering.qos import MAJORITY
from ordering.simulator.stage import Stage, make_config
from ordering.site import Timer
from ordering.views import Member, SiteId, View, ViewId

SECOND = 1000 * MS


def partition(stage: Stage, side: tuple[str, ...], rest: tuple[str, ...]) -> int:
    return stage.network.cut(*[(a, b) for a in side for b in rest], *[(b, a) for a in side for b in rest])


def load(stage: Stage, address: str, count: int) -> None:
    for number in range(count):
        stage.submit(address, f"m{number}")
        stage.run(20 * MS)


def test_when_a_site_leaps_out_of_an_undecided_fork_then_it_follows_the_views_of_the_chain() -> None:
    """It had promised in the fork and slept through its decision. Its electorate is not the fork's any
    more: with the old one, three of seven could decide against the other four."""
    stage = Stage.born(7, minimum_size=2, orphan_ms=2000, retain_slots=4)
    for address in ("s1", "s2", "s3", "s4"):
        stage.cluster.crash(address)
    late = stage.process("s7")
    stage.until(lambda: late.engine.site.queue.fork is not None, "s7 is in the fork")
    stage.run(2 * MS)
    stage.isolate("s7")
    stage.run(300 * MS)
    for address in ("s1", "s2", "s3", "s4"):
        stage.cluster.start(address, founder=True)
    stage.isolate("s7")
    stage.run(SECOND)
    load(stage, "s5", 12)
    stage.network.mend_all()
    stage.until(lambda: late.engine.site.counters.get("leaps", 0) > 0, "s7 leaps")
    stage.run(100 * MS)
    assert late.engine.site.view == stage.process("s5").engine.site.view
    assert len(late.engine.site.view.electorate) == 7
    partition(stage, ("s5", "s6", "s7"), ("s1", "s2", "s3", "s4"))
    stage.run(2 * SECOND)
    stage.finish()


def test_when_a_site_wants_a_state_and_forks_then_the_state_of_the_old_chain_is_no_more_wanted() -> None:
    stage = Stage.born(7, minimum_size=2, orphan_ms=2000, retain_slots=4)
    away, rest = ("s6", "s7"), ("s1", "s2", "s3", "s4", "s5")
    cut = partition(stage, away, rest)
    stage.run(900 * MS)
    stage.cluster.crash("s5")
    stage.run(900 * MS)
    load(stage, "s1", 6)
    stage.network.connected = lambda one, other: False  # type: ignore[method-assign]  # no state arrives
    stage.network.mend(cut)
    sites = [stage.process(address).engine for address in away]
    stage.until(lambda: all(engine.transfer.wanted is not None for engine in sites), "both want a state")
    for address in rest[:4]:
        stage.cluster.crash(address)
    stage.run(5 * SECOND)
    assert [engine.site.view.electorate for engine in sites] == [(6, 7), (6, 7)]
    assert [engine.transfer.wanted for engine in sites] == [None, None]
    del stage.network.connected
    load(stage, "s6", 20)
    stage.finish()


def test_when_a_founder_leaps_out_of_its_birth_then_it_stops_asking_founders() -> None:
    stage = Stage(make_config(3, {"retain_slots": 4}))
    for address in ("s1", "s2", "s3"):
        stage.cluster.start(address, founder=True)
    late = stage.process("s3")
    stage.until(lambda: late.engine.recovery.promised.round > 0, "s3 has promised")
    stage.run(2 * MS)
    stage.isolate("s3")
    stage.run(2 * SECOND)
    load(stage, "s1", 6)
    stage.network.mend_all()
    stage.run(3 * SECOND)
    assert late.engine.site.counters.get("leaps") == 1
    assert Timer.HELLO not in late.engine.site.deadlines
    stage.finish()


# -- joiners -------------------------------------------------------------------------------------------

CHAIN = 77
GROUP = group_id("g")
MEMBERS = tuple(Member(SiteId(number), 10 + number, name) for number, name in ((1, "a"), (2, "b"), (3, "c")))
JOINER = Member(SiteId(9), 99, "x")
VOTERS = tuple(member.site for member in MEMBERS)
VECTOR = tuple((member.site, 0) for member in (*MEMBERS, JOINER))
SEAT = View(ViewId(1, 1), (*MEMBERS, JOINER), VOTERS, (SiteId(1), SiteId(9), SiteId(2), SiteId(3)))


def head(sender: int, epoch: int, frontier: int, majority: int) -> Head:
    site = SiteId(sender)
    return Head(GROUP, CHAIN, site, 10 + sender, epoch, frontier, frontier, majority, majority)


LATER = head(2, 2, 12, 12)


@pytest.mark.parametrize(
    "seat",
    [
        NewList(LATER, Order(1, 10, SiteId(1), SiteId(9), view=SEAT, vector=VECTOR), Descent(CHAIN, 0)),
        Collected(LATER, Position(1, 10, 10, SEAT, VECTOR), Descent(CHAIN, 0)),
    ],
    ids=["NewList", "Collected"],
)
def test_when_a_joiner_is_seated_by_a_site_of_a_later_epoch_then_its_levels_do_not_count(
    seat: Packet,
) -> None:
    """Slot 12 of epoch 1, which no majority ever held, must not be delivered on the word of epoch 2."""
    engine = Engine(Config(group="g", contacts=("a", "b", "c")), JOINER, Random(1))
    engine.handle(Started(founder=False), 1)
    engine.handle(PacketsReceived((seat,)), MS)
    batch = Batch(SiteId(1), 11, 1, MAJORITY, (b"never held",))
    order = Order(1, 11, SiteId(1), SiteId(2), runs=(Run(SiteId(1), 1, 1),))
    late = (Data(head(1, 1, 10, 10), batch), Ack(head(1, 1, 12, 10), order))
    effects = engine.handle(PacketsReceived(late), 2 * MS)
    assert not [effect for effect in effects if isinstance(effect, Deliver)]


def test_when_a_member_has_left_then_a_later_member_knows_it_too() -> None:
    """A late JOIN of the one that left, at a token site that never knew it, must not seat it again."""
    stage = Stage.born(3)
    kept: list[Packet] = []
    send = stage.network.send

    def keep(source: str, to: str, packet: Packet | bytes) -> None:
        if source == "s4" and isinstance(packet, ListChangeRequest) and packet.change.kind is ChangeKind.JOIN:
            kept.append(packet)
        send(source, to, packet)

    stage.network.send = keep  # type: ignore[method-assign]
    stage.cluster.start("s4", founder=False)
    stage.run(SECOND)
    left = stage.process("s4").member.site
    stage.leave("s4")
    stage.run(500 * MS)
    stage.cluster.start("s5", founder=False)
    stage.run(2 * SECOND)
    newcomer = stage.process("s5")
    assert left in newcomer.engine.site.queue.departed
    stage.cluster.handle(newcomer, PacketsReceived((kept[0],)))
    load(stage, "s5", 3)
    assert not newcomer.engine.site.view.has(left)
