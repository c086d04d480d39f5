"""Long gaps: who was away catches up at the pace of the answers, not of the back-off."""

import pytest

from ordering.config import MS
from ordering.packets import Nack
from ordering.simulator.stage import Stage
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
