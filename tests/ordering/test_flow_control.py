"""RMP §4.6: the window, packing that adapts, and a token site that waits for its buffers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.accept_queue import AcceptQueue, wire_bytes
from ordering.codec import encode
from ordering.config import MS, Config
from ordering.effects import Multicast, WindowOpened
from ordering.errors import ConfigurationError, Overloaded, SubmitError
from ordering.events import BacklogReported
from ordering.flow_control import FIRST_PACKETS, MINIMUM_PACKET, FixedWindow, SlidingWindow
from ordering.packets import Batch, Data, Head, Nack, Run
from ordering.pieces import PACKET_OVERHEAD
from ordering.qos import MAJORITY, TOTAL, UNORDERED, Qos
from ordering.simulator.stage import Stage
from ordering.views import SiteId

SETTINGS = Config(group="g", founders=("s1",), packet_bytes=2_000, window_bytes=64_000)
ROUND_TRIP = 5 * MS


def submit(stage: Stage, address: str, *messages: bytes, qos: Qos = MAJORITY) -> SubmitError | None:
    return stage.cluster.submit(stage.process(address), messages, qos)


def other_than_token_site(stage: Stage) -> str:
    return next(a for a in stage.addresses if a != stage.token_site().address)


def batches_sent(stage: Stage) -> list[Batch]:
    return [
        effect.packet.batch
        for _, effect in stage.journal.effects
        if isinstance(effect, Multicast) and isinstance(effect.packet, Data)
    ]


# -- the window --------------------------------------------------------------------------------------


def test_when_everything_arrives_then_the_window_doubles_until_the_threshold() -> None:
    flow = SlidingWindow(SETTINGS)
    assert flow.window == FIRST_PACKETS * 2_000
    flow.acknowledged(8_000, 8_000)
    assert flow.window == 16_000
    flow.lost(0, ROUND_TRIP)
    assert (flow.window, flow.threshold) == (8_000, 8_000)
    flow.acknowledged(8_000, 8_000)
    assert flow.window == 10_000  # a packet for a window
    for _ in range(1_000):
        flow.acknowledged(flow.window, flow.window)
    assert flow.window == 64_000


def test_when_the_window_is_not_used_then_it_does_not_open() -> None:
    flow = SlidingWindow(SETTINGS)
    flow.acknowledged(100, 100)
    assert flow.window == FIRST_PACKETS * 2_000


def test_when_losses_come_together_then_the_window_is_cut_once_in_a_round_trip() -> None:
    flow = SlidingWindow(SETTINGS)
    for now in (0, 1, ROUND_TRIP - 1):
        flow.lost(now, ROUND_TRIP)
    assert flow.window == 4_000
    flow.lost(ROUND_TRIP, ROUND_TRIP)
    assert flow.window == 2_000


def test_when_nothing_gets_through_then_a_minimum_packet_stays_allowed() -> None:
    flow = SlidingWindow(SETTINGS)
    for count in range(20):
        flow.lost(count * ROUND_TRIP, ROUND_TRIP)
    assert flow.window == MINIMUM_PACKET
    assert flow.next_packet(0, 5_000) == MINIMUM_PACKET
    assert flow.next_packet(1, 5_000) == 0


def test_when_a_message_is_asked_for_again_and_again_then_it_counts_once() -> None:
    flow = SlidingWindow(SETTINGS)
    for count in range(5):
        flow.asked_again(7, count * ROUND_TRIP, ROUND_TRIP)
    assert flow.window == 4_000
    flow.expect_questions(8)
    flow.asked_again(8, 9 * ROUND_TRIP, ROUND_TRIP)
    assert flow.window == 4_000
    flow.asked_again(9, 9 * ROUND_TRIP, ROUND_TRIP)
    assert flow.window == 2_000


@given(
    st.integers(0, 100_000),
    st.integers(1, 100_000),
    st.lists(st.booleans(), max_size=30),
)
def test_figure_4_2_never_offers_more_than_is_free_nor_than_a_packet(
    in_transit: int, offered: int, fortune: list[bool]
) -> None:
    flow = SlidingWindow(SETTINGS)
    for now, good in enumerate(fortune):
        if good:
            flow.acknowledged(flow.window, flow.window)
        else:
            flow.lost(now * ROUND_TRIP, ROUND_TRIP)
    size = flow.next_packet(in_transit, offered)
    assert size <= min(2_000, max(flow.window - in_transit, 0))
    assert size == 0 or size >= min(MINIMUM_PACKET, flow.window - in_transit)
    assert size or in_transit


def test_when_the_policy_is_named_then_it_is_used_and_an_unknown_name_is_refused() -> None:
    stage = Stage.born(3, flow_control="fixed-window")
    assert isinstance(stage.process("s1").engine.sending.flow, FixedWindow)
    with pytest.raises(ConfigurationError, match="flow_control: 'leaky' is unknown; use one of fixed-window"):
        Stage.born(3, flow_control="leaky")


# -- the accept queue --------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 900), min_size=1, max_size=8), st.sampled_from([MAJORITY, TOTAL])),
        min_size=1,
        max_size=8,
    ),
    st.integers(PACKET_OVERHEAD + 1, 2_000),
    st.integers(1, 9),
)
def test_when_submissions_are_packed_then_nothing_is_lost_mixed_or_too_large(
    submissions: list[tuple[list[int], Qos]], limit: int, most: int
) -> None:
    queue = AcceptQueue()
    expected = []
    seq = 1
    for sizes, qos in submissions:
        messages = tuple(b"%d" % (seq + n) + b"x" * size for n, size in enumerate(sizes))
        queue.put(Batch(SiteId(1), 1, seq, qos, messages))
        expected += [(seq + n, qos, message) for n, message in enumerate(messages)]
        seq += len(messages)
    got = []
    while queue:
        first, qos = queue.first_seq, queue.qos
        messages, _ = queue.take(limit, most)
        assert 1 <= len(messages) <= most
        got += [(first + n, qos, message) for n, message in enumerate(messages)]
        head = Head(1, 1, SiteId(1), 1, 1, 1, 1, 1, 1)
        datagram = encode(Data(head, Batch(SiteId(1), 1, first, qos, messages)), 1)
        assert len(messages) == 1 or len(datagram) <= limit
        assert queue.messages == len(expected) - len(got)
        assert queue.bytes == sum(len(message) for _, _, message in expected[len(got) :])
    assert got == expected


@given(st.lists(st.sampled_from([0, 1, 255, 256, 257, 65_535, 65_536, 70_000]), min_size=1, max_size=20))
def test_when_bytes_on_the_wire_are_estimated_then_never_too_low(sizes: list[int]) -> None:
    messages = tuple(b"x" * size for size in sizes)
    head = Head(1, 1, SiteId(1), 1, 1, 1, 1, 1, 1)
    datagram = encode(Data(head, Batch(SiteId(1), 1, 1, MAJORITY, messages)), 1)
    assert len(datagram) <= wire_bytes(sum(sizes), len(sizes)) + PACKET_OVERHEAD


# -- senders -----------------------------------------------------------------------------------------


def test_when_a_sender_is_idle_then_a_message_goes_at_once() -> None:
    stage = Stage.born(3)
    submit(stage, other_than_token_site(stage), b"now")
    assert [batch.messages for batch in batches_sent(stage)] == [(b"now",)]


def test_when_messages_wait_for_the_window_then_they_share_packets() -> None:
    stage = Stage.born(3, packet_bytes=1_400)
    source = other_than_token_site(stage)
    for number in range(400):
        submit(stage, source, b"%050d" % number)
    at_once = len(batches_sent(stage))
    assert at_once < 40
    stage.run(200 * MS)
    sizes = [len(batch.messages) for batch in batches_sent(stage)[at_once:]]
    assert max(sizes) > 10
    assert [text for _, text in stage.journal.delivered[1]] == [f"{number:050d}" for number in range(400)]
    stage.finish()


def test_when_the_window_is_full_then_the_rest_waits_unsent_and_unordered() -> None:
    """Also at the token site: what has not been sent is not ordered, for nobody could ask for it."""
    stage = Stage.born(3, packet_bytes=1_400)
    source = stage.token_site().address
    stage.isolate(source)
    messages = [b"%01000d" % number for number in range(20)]
    for message in messages:
        submit(stage, source, message)
    engine = stage.process(source).engine
    known = {seq for batch in batches_sent(stage) for seq in range(batch.first_seq, batch.last_seq + 1)}
    ordered = engine.site.queue.sources[engine.site.me].contiguous
    assert known == set(range(1, ordered + 1))
    assert ordered < 20
    stage.network.mend_all()
    stage.run(3_000 * MS)
    assert sorted(text for _, text in stage.journal.delivered[2]) == sorted(m.decode() for m in messages)
    stage.finish()


def test_when_a_nack_asks_for_our_message_then_the_window_is_halved() -> None:
    stage = Stage.born(3)
    one, two = stage.process("s1"), stage.process("s2")
    before = one.engine.sending.flow.window
    data = (Run(one.member.site, 1, 1),)
    nack = Nack(two.engine.site.head(), two.member.site, 0, 0, data, None)
    for _ in range(3):
        stage.cluster._arrive("s1", nack)
    assert one.engine.sending.flow.window == before // 2


def test_when_a_timer_expires_then_the_window_is_halved() -> None:
    stage = Stage.born(3)
    source = other_than_token_site(stage)
    before = stage.process(source).engine.sending.flow.window
    stage.cut(source, "*")
    submit(stage, source, b"lost")
    stage.run(20 * MS)
    assert stage.process(source).engine.sending.flow.window < before
    stage.network.mend_all()
    stage.run(100 * MS)
    stage.finish()


@pytest.mark.parametrize("qos", [MAJORITY, UNORDERED], ids=lambda qos: qos.level.name)
def test_when_space_becomes_free_after_a_refusal_then_the_host_is_told_once(qos: Qos) -> None:
    stage = Stage.born(3, window_messages=4)
    source = other_than_token_site(stage)
    site = stage.process(source).member.site
    submit(stage, source, b"1", b"2", b"3", qos=qos)
    assert isinstance(submit(stage, source, b"4", b"5", qos=qos), Overloaded)
    assert isinstance(submit(stage, source, b"4", b"5", qos=qos), Overloaded)
    stage.run(100 * MS)
    told = [effect for at, effect in stage.journal.effects if at == site and isinstance(effect, WindowOpened)]
    assert told == [WindowOpened()]
    assert submit(stage, source, b"4", b"5", qos=qos) is None
    stage.run(100 * MS)
    told = [effect for at, effect in stage.journal.effects if at == site and isinstance(effect, WindowOpened)]
    assert len(told) == 1
    stage.finish()


# -- a token site short of buffers ---------------------------------------------------------------------


@pytest.mark.parametrize("discipline", ["rotating", "sequencer"])
def test_when_the_token_site_is_short_of_buffers_then_its_ack_waits(discipline: str) -> None:
    stage = Stage.born(3, discipline=discipline, buffer_bytes_max=10_000)
    holder = stage.token_site()
    source = other_than_token_site(stage)
    stage.cluster.handle(holder, BacklogReported(10_001))
    submit(stage, source, b"waits")
    stage.run(1_000 * MS)
    assert not stage.journal.delivered.get(1)
    assert all(p.engine.site.epoch == 1 for p in stage.cluster.live())
    stage.cluster.handle(holder, BacklogReported(0))
    stage.run(50 * MS)
    assert [text for _, text in stage.journal.delivered[1]] == ["waits"]
    stage.finish()


@pytest.mark.parametrize("discipline", ["rotating", "sequencer"])
def test_when_the_token_site_stays_short_of_buffers_then_the_ring_goes_on_without_it(discipline: str) -> None:
    """R16: slow members are throttled for, then suspected. It comes back when it has room."""
    stage = Stage.born(3, discipline=discipline, buffer_bytes_max=10_000)
    holder = stage.token_site()
    source = other_than_token_site(stage)
    stage.cluster.handle(holder, BacklogReported(10_001))
    submit(stage, source, b"waits")
    stage.until(lambda: bool(stage.journal.delivered.get(1)), "the message is delivered")
    ring = stage.process(source).engine.site.view.ring
    assert holder.member.site not in ring
    stage.run(1_000 * MS)
    assert holder.member.site not in stage.process(source).engine.site.view.ring
    stage.cluster.handle(holder, BacklogReported(0))
    stage.until(
        lambda: holder.member.site in stage.process(source).engine.site.view.ring, "it is back in the ring"
    )
    stage.finish()


def test_when_half_the_buffers_are_taken_then_the_log_is_no_longer_kept_for_the_absent() -> None:
    stage = Stage.born(4, buffer_bytes_max=20_000)
    away = other_than_token_site(stage)
    stage.isolate(away)
    stage.run(1_500 * MS)
    here = next(a for a in stage.addresses if a != away)
    for _ in range(40):
        submit(stage, here, b"x" * 1_000)
        stage.run(20 * MS)
    assert stage.process(here).engine.site.queue.ordered_bytes <= 12_000
    stage.network.mend_all()
    stage.run(2_000 * MS)
    stage.finish()
