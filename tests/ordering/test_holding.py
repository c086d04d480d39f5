"""How many voters hold a slot: told when it is enough, or all that the ring can give (R10)."""

import pytest

from ordering.config import MS
from ordering.effects import HoldersKnown
from ordering.errors import NotMember, Overloaded
from ordering.events import HoldersRequested, TimerFired
from ordering.holding import WAITING_MAX
from ordering.packets import Data
from ordering.simulator.stage import Stage
from ordering.views import View


def ask(stage: Stage, address: str, number: int, ts: int, voters: int) -> None:
    stage.cluster.handle(stage.process(address), HoldersRequested(number, ts, voters))


def known(stage: Stage, address: str) -> dict[int, tuple[int, int]]:
    """By number: holders, and of how many voters."""
    site = stage.process(address).member.site
    told = [e for who, e in stage.journal.effects if who == site and isinstance(e, HoldersKnown)]
    assert len({each.number for each in told}) == len(told)
    return {each.number: (each.holders, each.voters) for each in told}


def texts(stage: Stage, address: str) -> dict[str, int]:
    """What was delivered at a site, and where."""
    delivered = stage.journal.delivered.get(stage.process(address).member.site, [])
    return {text: ts for ts, text in delivered}


def true_holders(stage: Stage, sites: int, ts: int) -> int:
    """Who has the slot, whatever anybody knows."""
    return sum(stage.process(f"s{n}").engine.site.held >= ts for n in range(1, sites + 1))


@pytest.mark.parametrize("voters", [0, 1, 2, 3, 4, 5, 9])
def test_when_all_are_well_then_any_number_is_reached(voters: int) -> None:
    stage = Stage.born(5)
    stage.submit("s1", "first")
    stage.until(lambda: "first" in texts(stage, "s1"), "delivered")
    ts = texts(stage, "s1")["first"]
    ask(stage, "s1", 7, ts, voters)
    stage.until(lambda: 7 in known(stage, "s1"), "told")
    holders, electorate = known(stage, "s1")[7]
    assert electorate == 5
    assert min(voters or 5, 5) <= holders <= true_holders(stage, 5, ts)
    stage.finish()


def test_when_one_cannot_be_reached_then_all_there_are_is_told_once_it_is_out_of_the_ring() -> None:
    stage = Stage.born(5)
    stage.isolate("s5")
    stage.submit("s1", "first")
    stage.until(lambda: "first" in texts(stage, "s1"), "delivered by a majority")
    ts = texts(stage, "s1")["first"]
    ask(stage, "s1", 1, ts, 4)
    ask(stage, "s1", 2, ts, 0)
    stage.submit("s2", "second")
    stage.until(lambda: "second" in texts(stage, "s1"), "the group goes on meanwhile")
    stage.until(lambda: 2 in known(stage, "s1"), "as many as there are")
    assert known(stage, "s1") == {1: (4, 5), 2: (4, 5)}
    assert len(stage.process("s1").engine.site.view.ring) == 4
    assert true_holders(stage, 5, ts) == 4
    stage.cluster.network.mend_all()
    stage.finish()


def test_when_one_lags_then_fewer_are_told_before_it_has_caught_up() -> None:
    stage = Stage.born(5, discipline="sequencer")  # whose token does not wait for it
    stage.run(100 * MS)
    for address in ("s1", "s2", "s3", "s4"):
        stage.drop(address, "s5", Data, 1000)
    stage.submit("s1", "first")
    stage.until(lambda: "first" in texts(stage, "s1"), "delivered by a majority")
    ts = texts(stage, "s1")["first"]
    ask(stage, "s1", 1, ts, 4)
    ask(stage, "s1", 2, ts, 0)
    stage.until(lambda: 1 in known(stage, "s1"), "four hold it")
    assert known(stage, "s1") == {1: (4, 5)}
    assert len(stage.process("s1").engine.site.view.ring) == 5, "nobody had to be suspected for that"
    stage.cluster.network.mend_all()
    stage.until(lambda: 2 in known(stage, "s1"), "all hold it")
    assert known(stage, "s1")[2] == (5, 5)
    stage.finish()


def test_when_the_slot_is_not_final_then_nothing_is_told_until_it_is() -> None:
    stage = Stage.born(3)
    stage.submit("s1", "first")
    stage.run(100 * MS)
    frontier = stage.process("s1").engine.site.queue.frontier
    ask(stage, "s1", 1, frontier + 1, 1)
    stage.run(50 * MS)
    assert known(stage, "s1") == {}
    stage.submit("s2", "second")
    stage.until(lambda: 1 in known(stage, "s1"), "told")
    assert true_holders(stage, 3, frontier + 1) >= known(stage, "s1")[1][0] >= 2
    stage.finish()


def test_when_it_was_held_long_ago_then_it_is_told_at_once() -> None:
    stage = Stage.born(3)
    stage.submit("s1", "first")
    stage.run(500 * MS)
    ts = texts(stage, "s3")["first"]
    ask(stage, "s3", 1, ts, 0)
    assert known(stage, "s3") == {1: (3, 3)}
    stage.finish()


def test_when_many_wait_for_one_that_lags_then_an_event_looks_at_the_first_of_them_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage.born(5, discipline="sequencer")
    stage.run(100 * MS)
    for address in ("s1", "s2", "s3", "s4"):
        stage.drop(address, "s5", Data, 1000)
    stage.submit("s1", "first")
    stage.submit("s2", "second")
    stage.until(lambda: {"first", "second"} <= set(texts(stage, "s1")), "delivered by a majority")
    engine, slots = stage.process("s1").engine, texts(stage, "s1")
    for number in range(0, 1000, 2):
        ask(stage, "s1", number, slots["second"], 0)
        ask(stage, "s1", number + 1, slots["first"], 0)
    looked_at: list[int] = []
    holders = engine.site.stability.holders

    def look(view: View, ts: int) -> int:
        looked_at.append(ts)
        return holders(view, ts)

    monkeypatch.setattr(engine.site.stability, "holders", look)
    stage.cluster.handle(stage.process("s1"), TimerFired())
    assert looked_at == [min(slots["first"], slots["second"])]
    assert known(stage, "s1") == {}
    stage.cluster.network.mend_all()
    stage.until(lambda: len(known(stage, "s1")) == 1000, "all are told")
    assert set(known(stage, "s1").values()) == {(5, 5)}
    stage.finish()


def test_when_too_many_wait_then_the_next_is_refused() -> None:
    stage = Stage.born(3)
    engine = stage.process("s1").engine
    for number in range(WAITING_MAX):
        engine.holding.request(HoldersRequested(number, 1 << 40, 0))
    with pytest.raises(Overloaded, match="wait for more holders already"):
        ask(stage, "s1", WAITING_MAX, 1, 0)


def test_when_a_site_is_in_no_group_then_it_cannot_ask() -> None:
    stage = Stage.born(3)
    stage.cluster.start("s9", founder=False)
    with pytest.raises(NotMember):
        ask(stage, "s9", 1, 1, 0)
