"""One test for each way in which a site's silence, deafness or late word once cost the group something."""

from ordering.config import MS
from ordering.events import PacketsReceived, TimerFired
from ordering.packets import Change, ChangeKind, ListChangeRequest
from ordering.simulator.stage import Stage

SECOND = 1000 * MS


def test_when_only_data_is_missing_and_collected_then_the_asker_is_refused_and_leaps() -> None:
    """The orders came, the messages did not, and nobody has them any more."""
    stage = Stage.born(3, retain_slots=4)
    orderer = stage.token_site().address
    other, away = (address for address in stage.addresses if address != orderer)
    late = stage.process(away)
    for source in (orderer, other):
        stage.drop(source, away, "Data", 10_000)
    for number in range(20):
        stage.submit(orderer, f"{number}")
        stage.run(100 * MS)
    assert late.engine.site.queue.missing_slots() is None
    assert late.engine.site.queue.missing_data(1)
    for source in (orderer, other):
        stage.drop(source, away, "Data", 0)
    stage.until(lambda: late.engine.site.counters.get("leaps", 0) > 0, "it leaps")
    stage.run(SECOND)
    assert late.replica.digest == stage.process(orderer).replica.digest
    stage.finish()


def test_when_a_learner_died_then_its_late_request_does_not_make_it_a_voter() -> None:
    stage = Stage.born(3)
    stage.network.connected = lambda one, other: False  # type: ignore[method-assign]  # no state arrives
    learner = stage.cluster.start("s4", founder=False)
    stage.until(lambda: stage.process("s1").engine.site.view.has(learner.member.site), "s4 has a seat")
    stage.run(20 * MS)
    change = Change(ChangeKind.PROMOTE, learner.member)
    word = ListChangeRequest(learner.engine.site.head(), change, forwarded=False)
    stage.cluster.crash("s4")
    for address in ("s1", "s2", "s3"):
        stage.cluster.handle(stage.process(address), PacketsReceived((word,)))
    stage.run(2 * SECOND)
    assert learner.member.site not in stage.process("s1").engine.site.view.electorate


def test_when_a_site_wakes_from_a_pause_then_it_takes_nobody_for_lost() -> None:
    """It heard nothing for long because it slept, not because they were silent."""
    stage = Stage.born(5, remove_ms=2000)
    stage.isolate("s5")
    stage.run(900 * MS)
    first = next(p for p in stage.cluster.live() if p.engine.site.view.ring[0] == p.member.site)
    absent = stage.process("s5").member.site
    assert absent in first.engine.site.view.external
    first.engine.handle(TimerFired(), first.local_time(stage.cluster.clock.now) + 5 * SECOND)
    assert (ChangeKind.REMOVE, absent) not in first.engine.membership.wanted


def test_when_round_trips_are_long_then_a_dead_site_is_still_left_behind() -> None:
    """A hundred milliseconds there and back, with settings made for a local network."""
    stage = Stage.born(3)
    stage.network.weather.latency_us = 50_000
    stage.run(5 * SECOND)
    stage.cluster.crash("s3")
    stage.submit("s1", "hello")
    stage.until(lambda: stage.process("s1").replica.ts > 0, "the message is applied")
    assert stage.process("s1").engine.site.epoch > 1


def test_when_a_dead_voter_is_out_of_the_ring_then_the_others_probe_it_no_faster_than_each_other() -> None:
    stage = Stage.born(3)
    stage.cluster.crash("s3")
    stage.until(lambda: len(stage.process("s1").engine.site.view.ring) == 2, "s3 is out of the ring")
    stage.run(SECOND)
    before = sum(stage.network.counts.get((address, "Probe"), 0) for address in ("s1", "s2"))
    stage.run(10 * SECOND)
    probes = sum(stage.network.counts.get((address, "Probe"), 0) for address in ("s1", "s2")) - before
    ticks = 10 * 1000 // stage.cluster.config.probe_ms
    assert 2 * (ticks - 2) <= probes <= 2 * (ticks + 2), "to two members, each time"
