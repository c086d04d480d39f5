"""The application's door: what is refused, in which words, and how messages are packed."""

import pytest

from ordering.config import MS
from ordering.effects import Abandoned, Accepted
from ordering.errors import (
    KTooLarge,
    MessageTooLarge,
    NoPrimary,
    NotMember,
    Overloaded,
    SubmitError,
    UnknownQos,
)
from ordering.events import SubmitRequested
from ordering.packets import Ack, Data
from ordering.qos import MAJORITY, TOTAL, UNORDERED, Level, Qos, k_resilient, parse_qos
from ordering.simulator.stage import Stage


def submit(stage: Stage, address: str, *messages: bytes, qos: Qos = MAJORITY) -> SubmitError | None:
    return stage.cluster.submit(stage.process(address), messages, qos)


def batches(stage: Stage, address: str) -> list[tuple[bytes, ...]]:
    pending = stage.process(address).engine.submission.outbox.pending
    return [flight.batch.messages for flight in pending.values()]


# -- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "strong", "k=", "k=-1", "k=two", "k_resilient", "majority!"])
def test_when_the_quality_is_unknown_then_the_error_lists_the_known_ones(text: str) -> None:
    with pytest.raises(UnknownQos) as refusal:
        parse_qos(text)
    assert str(refusal.value).startswith("qos:")
    for name in ("majority", "total", "source_ordered", "k=N"):
        assert name in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("majority", MAJORITY),
        (" TOTAL ", TOTAL),
        ("source-ordered", Qos(Level.SOURCE_ORDERED)),
        ("k=2", k_resilient(2)),
    ],
)
def test_when_the_quality_is_known_then_it_is_read(text: str, expected: Qos) -> None:
    assert parse_qos(text) == expected


@pytest.mark.parametrize("k", [-1, 3, 4])
def test_when_k_is_not_below_the_number_of_voters_then_it_is_refused(k: int) -> None:
    stage = Stage.born(3)
    refusal = submit(stage, "s1", b"x", qos=k_resilient(k))
    assert isinstance(refusal, KTooLarge)
    assert str(refusal).startswith("qos.k:")
    assert "below the number of voters (3)" in str(refusal)


@pytest.mark.parametrize("k", [0, 1, 2])
def test_when_k_is_below_the_number_of_voters_then_it_is_accepted(k: int) -> None:
    assert submit(Stage.born(3), "s1", b"x", qos=k_resilient(k)) is None


def test_when_a_message_is_too_large_then_the_error_names_it_and_the_setting() -> None:
    stage = Stage.born(3, message_bytes_max=100)
    refusal = submit(stage, "s1", b"fits", b"x" * 101)
    assert isinstance(refusal, MessageTooLarge)
    assert str(refusal).startswith("messages[1]:")
    for words in ("101 bytes", "message_bytes_max (100)", "split it"):
        assert words in str(refusal)
    assert submit(stage, "s1", b"x" * 100) is None


def test_when_one_message_is_refused_then_nothing_of_the_submission_is_sent() -> None:
    stage = Stage.born(3, message_bytes_max=100)
    submit(stage, "s1", b"fits", b"x" * 101)
    stage.run(100 * MS)
    assert not stage.journal.delivered
    stage.finish()


def test_when_the_site_is_not_a_member_yet_then_it_is_refused() -> None:
    stage = Stage(Stage.born(3).cluster.config)
    stage.cluster.start("s1", founder=True)
    refusal = submit(stage, "s1", b"x")
    assert isinstance(refusal, NotMember)
    for words in ("group 'scenario'", "founding", "after the first InstallView", "join"):
        assert words in str(refusal)


def test_when_the_membership_is_over_then_nothing_is_accepted() -> None:
    stage = Stage.born(3)
    leaver = stage.process("s3")
    stage.leave("s3")
    stage.run(200 * MS)
    assert leaver.ended is not None
    with pytest.raises(NotMember, match="join"):
        leaver.engine.handle(SubmitRequested((b"x",)), leaver.engine.site.now)


def test_when_a_majority_is_out_of_reach_then_it_is_refused() -> None:
    stage = Stage.born(3)
    stage.isolate("s1")
    stage.run(stage.cluster.config.minority_ms * MS + 300 * MS)
    refusal = submit(stage, "s1", b"x")
    assert isinstance(refusal, NoPrimary)
    for words in ("group 'scenario'", "majority of 3 voters", "retry when the partition heals"):
        assert words in str(refusal)
    stage.finish()


@pytest.mark.parametrize("window", [{"window_messages": 3}, {"window_bytes": 3}])
def test_when_the_window_is_full_then_it_is_refused_until_messages_are_ordered(
    window: dict[str, int],
) -> None:
    stage = Stage.born(3, **window)
    source = next(a for a in stage.addresses if a != stage.token_site().address)
    assert submit(stage, source, b"1", b"2", b"3") is None
    refusal = submit(stage, source, b"4")
    assert isinstance(refusal, Overloaded)
    for words in (
        "3 messages (3 bytes)",
        "the next WindowOpened",
        "window_messages / window_bytes",
    ):
        assert words in str(refusal)
    stage.run(50 * MS)
    assert submit(stage, source, b"4") is None
    stage.finish()


def test_when_unordered_messages_wait_for_confirmation_then_their_buffer_is_bounded_too() -> None:
    stage = Stage.born(3, window_messages=5)
    stage.cut("s1", "*")
    refusals = [submit(stage, "s1", b"x", qos=UNORDERED) for _ in range(20)]
    assert any(isinstance(refusal, Overloaded) for refusal in refusals)
    assert len(stage.process("s1").engine.lanes.outbox.pending) <= 5


# -- acceptance --------------------------------------------------------------------------------------


def test_when_nothing_is_submitted_then_nothing_happens() -> None:
    stage = Stage.born(3)
    process = stage.process("s1")
    effects = process.engine.handle(SubmitRequested(()), stage.cluster.clock.now)
    assert not [effect for effect in effects if isinstance(effect, Accepted)]


def test_when_messages_are_accepted_then_they_get_consecutive_numbers_per_lane() -> None:
    stage = Stage.born(3)
    for qos, count in ((MAJORITY, 2), (UNORDERED, 3), (MAJORITY, 1), (UNORDERED, 1)):
        submit(stage, "s1", *[b"x"] * count, qos=qos)
    accepted = [effect for _, effect in stage.journal.effects if isinstance(effect, Accepted)]
    assert [(a.first_seq, a.count) for a in accepted] == [(1, 2), (1, 3), (3, 1), (4, 1)]


def test_when_messages_are_small_then_they_share_a_packet() -> None:
    stage = Stage.born(3)
    source = next(a for a in stage.addresses if a != stage.token_site().address)
    messages = tuple(b"%d" % number for number in range(100))
    submit(stage, source, *messages)
    assert batches(stage, source) == [messages]


def test_when_messages_fill_a_packet_then_the_next_one_is_begun() -> None:
    stage = Stage.born(3, packet_bytes=1256)
    source = next(a for a in stage.addresses if a != stage.token_site().address)
    submit(stage, source, *[b"x" * 495] * 5)
    assert [len(messages) for messages in batches(stage, source)] == [2, 2, 1]


def test_when_a_message_exceeds_a_packet_then_it_travels_alone() -> None:
    stage = Stage.born(3, packet_bytes=1256)
    source = next(a for a in stage.addresses if a != stage.token_site().address)
    submit(stage, source, b"small", b"x" * 3000, b"small")
    assert [len(messages) for messages in batches(stage, source)] == [1, 1, 1]
    stage.run(50 * MS)
    stage.finish()


def test_when_a_block_is_full_then_the_rest_goes_into_the_next_one() -> None:
    stage = Stage.born(3, block_messages=4)
    source = next(a for a in stage.addresses if a != stage.token_site().address)
    submit(stage, source, *[b"%d" % number for number in range(10)])
    assert [len(messages) for messages in batches(stage, source)] == [4, 4, 2]
    stage.run(50 * MS)
    sizes = [
        sum(run.count for run in packet.order.runs)
        for _, effect in stage.journal.effects
        if isinstance(packet := getattr(effect, "packet", None), Ack) and packet.order.runs
    ]
    assert max(sizes) <= 4
    assert [text for _, text in stage.journal.delivered[1]] == [str(number) for number in range(10)]
    stage.finish()


def test_when_data_gets_no_slot_then_it_is_sent_again() -> None:
    stage = Stage.born(3)
    source = next(a for a in stage.addresses if a != stage.token_site().address)
    stage.drop(source, "*", Data, 1)
    submit(stage, source, b"again")
    stage.run(100 * MS)
    assert [text for _, text in stage.journal.delivered[1]] == ["again"]
    stage.finish()


@pytest.mark.parametrize("has_token", [False, True], ids=["unordered", "ordered by itself alone"])
def test_when_the_membership_ends_then_messages_of_unknown_outcome_are_abandoned_aloud(
    has_token: bool,
) -> None:
    """R15: nothing accepted is silently dropped. A slot that no majority is known to hold is no outcome."""
    stage = Stage.born(4)
    holder = stage.token_site().address
    lost = holder if has_token else next(a for a in stage.addresses if a != holder)
    site = stage.process(lost).member.site
    stage.isolate(lost)
    assert submit(stage, lost, b"unheard") is None
    stage.run(2000 * MS)
    stage.remove(lost, at=next(a for a in stage.addresses if a != lost))
    stage.run(200 * MS)
    stage.network.mend_all()
    stage.until(lambda: site in stage.journal.ended, "the removed site learns it")
    assert [
        effect for at, effect in stage.journal.effects if at == site and isinstance(effect, Abandoned)
    ] == [Abandoned(1, 1, ordered=True)]
    stage.finish()


def test_when_a_site_is_alone_then_it_orders_and_delivers_at_once() -> None:
    stage = Stage.born(1)
    assert submit(stage, "s1", b"alone") is None
    assert [text for _, text in stage.journal.delivered[1]] == ["alone"]


@pytest.mark.parametrize(
    ("qos", "words"),
    [
        (Qos(Level.MAJORITY, 7), "qos.k: 7 means nothing at MAJORITY"),
        (Qos(9), "qos.level: 9 is unknown"),  # type: ignore[arg-type]
    ],
)
def test_when_a_quality_makes_no_sense_then_it_is_refused(qos: Qos, words: str) -> None:
    """Nobody could decode it: it would stop the order behind it at every site."""
    stage = Stage.born(3)
    with pytest.raises(UnknownQos, match=words):
        stage.process("s1").engine.handle(SubmitRequested((b"x",), qos), stage.cluster.clock.now)
    stage.finish()


def test_when_a_message_is_no_bytes_then_it_is_refused() -> None:
    stage = Stage.born(3)
    with pytest.raises(SubmitError, match="must be bytes, is str; encode it"):
        stage.process("s1").engine.handle(SubmitRequested(("x",)), stage.cluster.clock.now)  # type: ignore[arg-type]
    stage.finish()
