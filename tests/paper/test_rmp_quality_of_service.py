"""RMP §3.2: atomicity, reliability and ordering guarantees, and when each level delivers."""

from itertools import pairwise

import pytest

from ordering.packets import Data
from ordering.qos import (
    MAJORITY,
    SOURCE_ORDERED,
    TOTAL,
    TOTALLY_ORDERED,
    UNORDERED,
    UNRELIABLE,
    Level,
    Qos,
    k_resilient,
)
from ordering.simulator.stage import Stage
from tests.paper.watching import delivered_after_ms, deliveries, history, log, ms, texts

LADDER = (
    UNRELIABLE,
    UNORDERED,
    SOURCE_ORDERED,
    TOTALLY_ORDERED,
    k_resilient(1),
    k_resilient(2),
    MAJORITY,
    TOTAL,
)


def latency_ms(discipline: str, qos: Qos, sites: int = 5) -> int:
    """From submission at one site to delivery at the last one, with hops of one millisecond."""
    stage = Stage.born(sites, discipline=discipline)
    stage.submit("s2", "hello", qos=qos)
    stage.run(ms(100))
    times = [delivered_after_ms(stage, address, "hello") for address in stage.addresses]
    stage.finish()
    return max(time for time in times if time is not None)


@pytest.mark.parametrize("qos", [UNRELIABLE, UNORDERED, SOURCE_ORDERED], ids=lambda q: q.level.name)
def test_what_needs_no_order_is_delivered_upon_receipt(discipline: str, qos: Qos) -> None:
    """RMP figure 3.2: "immediately upon receipt of a data packet"."""
    assert latency_ms(discipline, qos) == 1


@pytest.mark.parametrize("qos", [TOTALLY_ORDERED, k_resilient(0)], ids=["ordered", "k=0"])
def test_a_totally_ordered_message_takes_one_hop_more_than_an_unordered_one(
    discipline: str, qos: Qos
) -> None:
    """RMP §3.2: "totally ordered packets have about twice the latency"."""
    assert latency_ms(discipline, qos) == 2


def test_each_level_waits_at_least_as_long_as_the_one_below(discipline: str) -> None:
    """RMP §3.2: "higher QoS levels increase the latency of packet delivery"."""
    times = [latency_ms(discipline, qos) for qos in LADDER]
    assert times == sorted(times)
    assert times[-1] > times[0]


def test_k_resilient_waits_for_one_token_pass_more_per_k() -> None:
    """RMP figure 3.2: delivered after further token transfers, one more for each K."""
    times = [latency_ms("rotating", k_resilient(k)) for k in range(5)]
    assert times == sorted(times)
    assert all(later - earlier <= 1 for earlier, later in pairwise(times))
    assert times[-1] > times[0]


def test_in_a_group_of_three_the_ack_proves_a_majority(discipline: str) -> None:
    """R2: the orderer and the receiver are two of three, so a receiver delivers on the second hop."""
    stage = Stage.born(3, discipline=discipline)
    holder = stage.token_site().address
    source, other = [a for a in stage.addresses if a != holder]
    stage.submit(source, "hello")
    stage.run(ms(50))
    assert delivered_after_ms(stage, source, "hello") == 2
    assert delivered_after_ms(stage, other, "hello") == 2
    stage.finish()


def test_a_lost_unreliable_packet_is_not_repeated(discipline: str) -> None:
    """RMP §3.2: "delivered 0, 1, or more times"."""
    stage = Stage.born(3, discipline=discipline)
    stage.drop("s1", "s2", Data)
    stage.submit("s1", "maybe", qos=UNRELIABLE)
    stage.run(ms(500))
    assert texts(stage, "s2") == []
    assert texts(stage, "s3") == ["maybe"]
    stage.finish()


def test_a_lost_unordered_packet_is_repeated(discipline: str) -> None:
    """RMP figure 3.2: at least once, missing packets are found."""
    stage = Stage.born(3, discipline=discipline)
    stage.drop("s1", "s2", Data)
    stage.submit("s1", "surely", qos=UNORDERED)
    stage.run(ms(500))
    assert [texts(stage, a) for a in stage.addresses] == [["surely"]] * 3
    stage.finish()


def test_unordered_messages_take_no_timestamp(discipline: str) -> None:
    """R10: unreliable and unordered ones use no ordered sequence number."""
    stage = Stage.born(3, discipline=discipline)
    before = stage.process("s1").engine.site.queue.frontier
    stage.submit("s1", "a", qos=UNRELIABLE)
    stage.submit("s1", "b", qos=UNORDERED)
    stage.run(ms(300))
    assert stage.process("s1").engine.site.queue.frontier == before
    assert {ts for ts, _ in log(stage, stage.process("s2"))} == {0}
    stage.finish()


def test_a_source_ordered_message_waits_for_earlier_ones_of_its_source(discipline: str) -> None:
    """RMP figure 3.2: after all with smaller sequence numbers of the same source."""
    stage = Stage.born(3, discipline=discipline)
    stage.drop("s1", "s2", Data)
    stage.submit("s1", "first", qos=SOURCE_ORDERED)
    stage.submit("s1", "second", qos=SOURCE_ORDERED)
    stage.run(ms(1) + 1)
    assert texts(stage, "s2") == []
    assert texts(stage, "s3") == ["first", "second"]
    stage.run(ms(100))
    assert texts(stage, "s2") == ["first", "second"]
    stage.finish()


def test_between_levels_the_lower_one_decides(discipline: str) -> None:
    """RMP §3.2: between source ordered and totally ordered sets only source order holds."""
    stage = Stage.born(3, discipline=discipline)
    holder = stage.token_site().address
    one, other = [a for a in stage.addresses if a != holder]
    stage.cluster.pause(holder)
    stage.submit(one, "ordered")
    stage.submit(other, "overtakes", qos=SOURCE_ORDERED)
    stage.submit(one, "stays behind", qos=SOURCE_ORDERED)
    stage.run(ms(20))
    assert texts(stage, one) == ["overtakes"]
    stage.cluster.resume(holder)
    stage.run(ms(100))
    for address in stage.addresses:
        told = texts(stage, address)
        assert told.index("ordered") < told.index("stays behind")
    stage.finish()


def test_a_weak_message_waits_for_a_strong_one_before_it(discipline: str) -> None:
    """RMP §3.2: all levels from totally ordered up share one total order."""
    stage = Stage.born(5, discipline=discipline)
    stage.submit("s2", "strong", qos=TOTAL)
    stage.submit("s2", "weak", qos=TOTALLY_ORDERED)
    stage.run(ms(100))
    for address in stage.addresses:
        assert texts(stage, address) == ["strong", "weak"]
    stage.finish()


def test_views_are_delivered_in_the_same_total_order_as_messages(discipline: str) -> None:
    """RMP §3.2 (virtual synchrony): a membership change parts the messages alike at all sites."""
    stage = Stage.born(3, discipline=discipline)
    for number in range(40):
        if number == 10:
            stage.cluster.start("s4", founder=True)
        if number == 30:
            stage.leave("s4")
        for address in ("s1", "s2", "s3"):
            stage.submit(address, f"{address}.{number}")
        stage.run(ms(5))
    stage.run(ms(100))
    histories = [list(history(stage, address)) for address in ("s1", "s2", "s3")]
    views = [text for _, text in histories[0] if text.startswith("view")]
    assert len(views) >= 4, "join, promote and leave each gave a view"
    assert histories[1] == histories[0]
    assert histories[2] == histories[0]
    stage.cluster.crash("s4")
    stage.finish()


def test_an_unreachable_k_is_delivered_at_what_the_ring_can_give(discipline: str) -> None:
    """R10: a K that dead sites make unreachable never blocks later slots, and the delivery says so."""
    stage = Stage.born(3, discipline=discipline)
    victim = next(a for a in stage.addresses if a != stage.token_site().address)
    source = next(a for a in stage.addresses if a != victim)
    stage.cluster.crash(victim)
    stage.run(ms(2000))
    stage.submit(source, "wants three", qos=k_resilient(2))
    stage.submit(source, "behind it")
    stage.run(ms(100))
    assert texts(stage, source) == ["wants three", "behind it"]
    assert deliveries(stage, source)[0].reached is Level.MAJORITY
    stage.finish()
