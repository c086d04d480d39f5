"""Long gaps: who was away catches up at the pace of the answers, not of the back-off."""

import msgspec
import pytest

from ordering.config import MS
from ordering.effects import Multicast, Unicast
from ordering.events import PacketsReceived
from ordering.packets import Ack, Data, Nack
from ordering.retransmission import BLOCKS
from ordering.simulator.stage import Stage
from ordering.site import Timer
from tests.paper.watching import mark, sent, texts

BEATS = 500


@pytest.mark.parametrize("discipline", ["rotating", "sequencer"])
def test_when_a_site_missed_much_of_several_sources_then_no_answered_nack_makes_it_wait(
    discipline: str,
) -> None:
    stage = Stage.born(3, discipline=discipline)
    away = next(address for address in stage.addresses if address != stage.token_site().address)
    others = [address for address in stage.addresses if address != away]
    for address in others:
        stage.cut(address, away)
        stage.cut(away, address)
    stage.run(1000 * MS)
    for number in range(BEATS):
        for address in others:
            stage.submit(address, f"{address}.{number}")
        stage.run(2 * MS)
    start = mark(stage)
    stage.network.mend_all()
    waited_ms = 0
    while len(texts(stage, away)) < BEATS * len(others) and waited_ms < 10_000:
        stage.run(10 * MS)
        waited_ms += 10
    asked = [nack for site, nack in sent(stage, Nack, start) if site == stage.process(away).member.site]
    # Each NACK brings a burst: with the longest back-off between them this would take seconds.
    assert len(asked) >= BEATS * len(others) // stage.process(away).engine.site.config.retransmit_burst
    assert waited_ms < 1000
    assert sorted(texts(stage, away)) == sorted(texts(stage, others[0]))
    stage.finish()


def test_when_blocks_and_their_data_are_missing_then_each_block_comes_with_its_data() -> None:
    """All orders first would leave a site that was away with nothing but orders that wait."""
    stage = Stage.born(3, discipline="sequencer")
    one, asker = stage.process("s1"), stage.process("s3")
    stage.isolate("s3")  # so that nothing is collected
    for number in range(5):
        stage.submit("s2", f"{number}")
        stage.run(20 * MS)
    queue = one.engine.site.queue
    me = one.member.site
    blocks = [order for order in queue.blocks.values() if order.runs]
    missing = tuple(run for order in blocks for run in order.runs)
    first = min(order.ts for order in blocks)
    head = msgspec.structs.replace(asker.engine.site.head(), received=first - 1, held=first - 1)
    nack = Nack(head, me, first, max(order.last_ts for order in blocks), missing, None)
    start = mark(stage)
    stage.cluster.handle(one, PacketsReceived((nack,)))
    answers = [
        effect.packet
        for site, effect in stage.journal.effects[start:]
        if site == me and isinstance(effect, Multicast | Unicast)
    ]
    kinds = [type(packet) for packet in answers if isinstance(packet, Ack | Data)]
    assert len(blocks) > 1
    assert kinds == [Ack, Data] * len(blocks)


def test_when_the_estimate_of_a_round_trip_is_long_then_nacks_repeat_well_before_a_suspicion() -> None:
    stage = Stage.born(3)
    engine = stage.process("s1").engine
    site = engine.site
    for _ in range(20):
        engine.rtt.sample(150 * MS)
    site.queue.known_end = site.queue.frontier + 5
    for _ in range(8):
        engine.retransmission.fire()
        wait = site.deadlines[Timer.NACK] - site.now
        assert wait <= (site.config.suspect_ms // 4 + site.config.rto_min_ms) * MS
    assert engine.rtt.rto > site.config.suspect_ms // 4 * MS


def test_when_a_fenced_site_lacks_the_end_of_a_long_log_then_the_end_is_what_it_gets() -> None:
    """It does not say how far it is: the search for what it lacks must not begin with the log."""
    stage = Stage.born(3, retransmit_burst=2)
    one, asker = stage.process("s1"), stage.process("s3")
    stage.isolate("s3")  # so that nothing is collected
    stage.run(1000 * MS)
    for number in range(BLOCKS * 2 + 10):
        stage.submit("s2", f"{number}")
        stage.run(20 * MS)
    queue, me = one.engine.site.queue, one.member.site
    last = list(queue.blocks.values())[-1]
    assert len(queue.blocks) > BLOCKS * 2
    head = msgspec.structs.replace(asker.engine.site.head(), epoch=one.engine.site.epoch, received=0, held=0)
    start = mark(stage)
    stage.cluster.handle(one, PacketsReceived((Nack(head, me, last.ts, last.last_ts, (), None),)))
    acks = [packet for site, packet in sent(stage, Ack, start) if site == me]
    assert [ack.order.ts for ack in acks] == [last.ts]
