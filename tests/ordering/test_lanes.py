"""Messages without a slot are settled by confirmations alone, so these must not be taken for others'."""

from ordering.config import MS
from ordering.events import PacketsReceived
from ordering.packets import Data, DataConfirm
from ordering.qos import UNORDERED
from ordering.simulator.stage import Stage
from tests.paper.watching import sent, texts


def test_when_a_confirmation_is_brought_to_another_source_then_its_message_is_still_sent_again() -> None:
    """Both sources are at their first message; s2 has only that of s3, and says so to s3."""
    stage = Stage.born(3)
    one, two = stage.process("s1"), stage.process("s2")
    stage.drop("s1", "s2", Data)
    stage.submit("s1", "lost on the way", qos=UNORDERED)
    stage.submit("s3", "arrived", qos=UNORDERED)
    stage.run(2 * MS)
    assert texts(stage, "s2") == ["arrived"]
    (stray,) = [packet for site, packet in sent(stage, DataConfirm) if site == two.member.site]
    one.engine.handle(PacketsReceived((stray,)), one.engine.site.now)
    assert one.engine.site.counters["confirmation for another process"] == 1
    stage.run(500 * MS)
    assert sorted(texts(stage, "s2")) == ["arrived", "lost on the way"]
    stage.finish()
