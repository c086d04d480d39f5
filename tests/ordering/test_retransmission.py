"""Long gaps: who was away catches up at the pace of the answers, not of the back-off."""

import pytest

from ordering.config import MS
from ordering.packets import Data, Nack
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


def test_when_the_estimate_is_long_then_nacks_still_repeat_several_times_before_a_suspicion() -> None:
    stage = Stage.born(3)
    site = stage.process("s3").engine.site
    stage.process("s3").engine.retransmission.rtt.srtt = 150 * MS
    stage.drop("s2", "s3", Data)
    stage.drop("s3", "*", Nack, 4)
    start = mark(stage)
    stage.submit("s2", "hello")
    for _ in range(20):
        stage.run(1 * MS)
        if any(sender == site.me for sender, _ in sent(stage, Nack, start)):
            break
    wait = site.deadlines[Timer.NACK] - site.now
    assert wait <= (site.config.suspect_ms // 4 + site.config.rto_min_ms) * MS
    stage.run(200 * MS)
    assert texts(stage, "s3") == ["hello"]
    stage.finish()
