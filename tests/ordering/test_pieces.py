"""Messages above one packet: cut, carried, put together, within bounds, and never mixed."""

from itertools import pairwise
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.codec import encode
from ordering.config import MS
from ordering.effects import Abandoned, Multicast, Unicast
from ordering.errors import MessageTooLarge, SubmitError
from ordering.packets import Ack, Batch, Data, Nack, Part, Piece
from ordering.pieces import PACKET_OVERHEAD, Assemblies, cut, is_cut
from ordering.qos import MAJORITY, SOURCE_ORDERED, TOTAL, UNORDERED, UNRELIABLE, Qos
from ordering.simulator.stage import Stage
from ordering.views import Member, SiteId, View, ViewId

ONE, TWO = SiteId(1), SiteId(2)
CONTENT = Random(1).randbytes(200)


def part(first: int, end: int, *, seq: int = 1, boot: int = 11, content: bytes = CONTENT) -> Part:
    return Part(ONE, boot, seq, MAJORITY, first, len(content), content[first:end])


def submit(stage: Stage, address: str, *messages: bytes, qos: Qos = MAJORITY) -> SubmitError | None:
    return stage.cluster.submit(stage.process(address), messages, qos)


def other_than_token_site(stage: Stage) -> str:
    return next(a for a in stage.addresses if a != stage.token_site().address)


def sent(stage: Stage, kind: type) -> list[object]:
    return [
        effect.packet
        for _, effect in stage.journal.effects
        if isinstance(effect, Multicast | Unicast) and isinstance(effect.packet, kind)
    ]


def delivered(stage: Stage, site: int = 1) -> list[bytes]:
    """What the application got; the journal keeps it as text."""
    return [
        message
        for at, effect in stage.journal.effects
        if at == site and hasattr(effect, "deliveries")
        for delivery in effect.deliveries
        for message in delivery.messages
    ]


# -- cutting and assembling --------------------------------------------------------------------------


@st.composite
def cuts(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, int]]]:
    """A message, and ranges that cover it: cut at will, overlapping, repeated, in any order."""
    content = draw(st.binary(min_size=1, max_size=300))
    size = len(content)
    edges = sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=12))})
    again = draw(st.lists(st.integers(0, size - 1), max_size=12))
    ranges = [*pairwise(edges), *((first, draw(st.integers(first + 1, size))) for first in again)]
    return content, draw(st.permutations(ranges))


@given(cuts())
def test_when_pieces_come_in_any_cut_and_order_then_the_message_is_exactly_what_was_sent(
    case: tuple[bytes, list[tuple[int, int]]],
) -> None:
    content, ranges = case
    assemblies = Assemblies(1_000)
    wholes = []
    for first, end in ranges:
        result = assemblies.add(part(first, end, content=content), ordered=True)
        if isinstance(result, Batch):
            wholes.append(result)
            break
        assert assemblies.bytes == len(content)
        (assembly,) = assemblies.of(ONE, 11, ordered=True).values()
        held = [n for start, stop in assembly.ranges for n in range(start, stop)]
        missing = [n for start, stop in assembly.missing(len(content)) for n in range(start, stop)]
        assert sorted(held + missing) == list(range(len(content)))
    assert [whole.messages for whole in wholes] == [(content,)]
    assert assemblies.bytes == 0
    assert not assemblies.lanes


@given(st.integers(PACKET_OVERHEAD + 1, PACKET_OVERHEAD + 90), st.integers(0, 199), st.integers(1, 200))
def test_when_a_range_is_cut_then_the_pieces_are_that_range_and_fit_a_packet(
    packet_bytes: int, first: int, end: int
) -> None:
    batch = Batch(ONE, 11, 1, MAJORITY, (CONTENT,))
    parts = list(cut(batch, first, end, packet_bytes))
    assert b"".join(p.data for p in parts) == CONTENT[first:end]
    assert all(len(p.data) <= packet_bytes - PACKET_OVERHEAD for p in parts)
    assert [p.offset for p in parts] == sorted(p.offset for p in parts)


def test_when_messages_share_a_packet_then_they_are_never_cut() -> None:
    assert is_cut(Batch(ONE, 11, 1, MAJORITY, (b"x" * 2_000,)), 1_400)
    assert not is_cut(Batch(ONE, 11, 1, MAJORITY, (b"x" * 1_000, b"x" * 1_000)), 1_400)
    assert not is_cut(Batch(ONE, 11, 1, MAJORITY, (b"x" * (1_400 - PACKET_OVERHEAD),)), 1_400)


def test_when_a_piece_is_of_another_size_or_quality_then_it_is_no_part_of_the_message() -> None:
    assemblies = Assemblies(10_000)
    assert assemblies.add(part(0, 100), ordered=True) == ""
    assert assemblies.add(part(100, 150, content=CONTENT[:150]), ordered=True) == "piece of another message"
    other = Part(ONE, 11, 1, TOTAL, 100, 200, CONTENT[100:])
    assert assemblies.add(other, ordered=True) == "piece of another message"
    whole = assemblies.add(part(100, 200), ordered=True)
    assert isinstance(whole, Batch)
    assert whole.messages == (CONTENT,)


def test_when_another_boot_sends_the_same_number_then_its_bytes_complete_nothing() -> None:
    assemblies = Assemblies(10_000)
    assemblies.add(part(0, 100), ordered=True)
    assert assemblies.add(part(100, 200, boot=12), ordered=True) == ""
    assert assemblies.add(part(100, 200), ordered=False) == ""
    assert [a.held for lane in assemblies.lanes.values() for a in lane.values()] == [100, 100, 100]


def test_when_a_source_is_removed_then_its_unfinished_messages_vanish() -> None:
    assemblies = Assemblies(10_000)
    assemblies.add(part(0, 100), ordered=True)
    assemblies.add(part(0, 100, seq=2), ordered=False)
    stays = View(ViewId(1, 0), (Member(ONE, 11, "s1"),), (ONE,), (ONE,))
    reborn = View(ViewId(1, 1), (Member(ONE, 12, "s1"),), (ONE,), (ONE,))
    assemblies.keep(stays)
    assert assemblies.bytes == 400
    assemblies.keep(reborn)
    assert assemblies.bytes == 0
    assert not assemblies.lanes


# -- bounds ------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4), st.booleans()), max_size=60))
def test_when_pieces_of_many_messages_come_then_memory_stays_within_the_bound(
    arrivals: list[tuple[int, int, bool]],
) -> None:
    assemblies = Assemblies(500)
    for seq, source, ordered in arrivals:
        assemblies.add(Part(SiteId(source), 11, seq, MAJORITY, 0, 200, CONTENT[:9]), ordered=ordered)
        assert assemblies.bytes == sum(a.total for lane in assemblies.lanes.values() for a in lane.values())
        assert assemblies.bytes <= 500 + 2 * 4 * 200


def test_when_there_is_no_room_then_the_message_the_order_waits_for_has_precedence() -> None:
    assemblies = Assemblies(400)
    for seq in (5, 6):
        assert assemblies.add(part(0, 9, seq=seq), ordered=True) == ""
    assert assemblies.add(part(0, 9, seq=7), ordered=True) == "assembly buffers full"
    assert assemblies.add(part(0, 9, seq=4), ordered=True) == ""
    assert sorted(assemblies.of(ONE, 11, ordered=True)) == [4, 5]


def test_when_there_is_no_room_for_unordered_messages_then_the_stalest_gives_way() -> None:
    assemblies = Assemblies(400)
    for seq, first in ((5, 0), (6, 0), (5, 20)):
        assemblies.add(part(first, first + 9, seq=seq), ordered=False)
    assert assemblies.add(part(0, 9, seq=7), ordered=False) == ""
    assert sorted(assemblies.of(ONE, 11, ordered=False)) == [5, 7]


# -- in a group --------------------------------------------------------------------------------------

LARGE = Random(2).randbytes(5_000)


@pytest.mark.parametrize("discipline", ["rotating", "sequencer"])
@pytest.mark.parametrize("qos", [SOURCE_ORDERED, MAJORITY, TOTAL, UNORDERED], ids=lambda qos: qos.level.name)
def test_when_a_message_exceeds_a_packet_then_everyone_gets_it_whole(qos: Qos, discipline: str) -> None:
    stage = Stage.born(3, packet_bytes=700, discipline=discipline)
    source = other_than_token_site(stage)
    assert submit(stage, source, b"before", LARGE, b"after", qos=qos) is None
    stage.run(100 * MS)
    for site in (1, 2, 3):
        assert delivered(stage, site) == [b"before", LARGE, b"after"]
    pieces = sent(stage, Piece)
    assert len(pieces) > 5
    assert all(len(encode(piece, 1)) <= 700 for piece in pieces)  # type: ignore[arg-type]
    assert not any(p.engine.site.assemblies.lanes for p in stage.cluster.live())
    stage.finish()


def test_when_the_largest_message_is_sent_in_network_packets_then_it_arrives() -> None:
    stage = Stage.born(3, packet_bytes=1_400)
    message = Random(3).randbytes(1 << 20)
    assert submit(stage, other_than_token_site(stage), message) is None
    stage.until(lambda: len(delivered(stage, 1)) == 1, "the message is delivered")
    assert delivered(stage, 1) == [message]
    stage.finish()


def test_when_a_piece_is_lost_then_only_its_bytes_are_asked_for_and_sent_again() -> None:
    stage = Stage.born(3, packet_bytes=700)
    source = other_than_token_site(stage)
    deaf = next(a for a in stage.addresses if a not in (source, stage.token_site().address))
    submit(stage, source, b"w" * 60_000)  # the window opens
    stage.run(300 * MS)
    count = len(sent(stage, Piece))
    stage.drop(source, deaf, Piece, 1)
    submit(stage, source, LARGE)
    stage.run(100 * MS)
    spans = [span for nack in sent(stage, Nack) for span in nack.spans]  # type: ignore[attr-defined]
    assert {(span.first, span.end) for span in spans} == {(0, 700 - PACKET_OVERHEAD)}
    pieces = len(sent(stage, Piece)) - count
    assert pieces == -(-len(LARGE) // (700 - PACKET_OVERHEAD)) + 1
    assert delivered(stage, 1)[-1] == LARGE
    stage.finish()


def test_when_the_last_piece_is_lost_everywhere_then_the_source_shows_it_again() -> None:
    stage = Stage.born(3, packet_bytes=1_400)
    source = other_than_token_site(stage)
    submit(stage, source, b"x" * 2_000)
    stage.cut(source, "*")
    stage.run(2 * MS)
    stage.network.mend_all()
    submit(stage, source, LARGE)
    stage.drop(source, "*", Piece, 2)
    stage.run(200 * MS)
    assert delivered(stage, 1)[-1] == LARGE
    stage.finish()


def test_when_a_holder_has_another_packet_size_then_its_cut_completes_the_message() -> None:
    """The source dies after one site has its message whole; another has pieces by the source's cut."""
    stage = Stage.born(4, packet_bytes=900)
    token = stage.token_site().address
    source, behind = [a for a in stage.addresses if a != token][:2]
    stage.drop(source, behind, Piece, 3)
    submit(stage, source, b"y" * 3_000)
    stage.run(2 * MS)
    member = stage.process(source).member
    assemblies = stage.process(behind).engine.site.assemblies
    (assembly,) = assemblies.of(member.site, member.boot, ordered=True).values()
    assert 0 < assembly.held < 3_000
    holder = stage.process(token).engine.site
    holder.config = msgspec.structs.replace(holder.config, packet_bytes=700)
    stage.cluster.crash(source)
    stage.until(lambda: b"y" * 3_000 in delivered(stage, stage.process(behind).member.site), "it has come")
    sizes = {len(p.part.data) for p in sent(stage, Piece)}  # type: ignore[attr-defined]
    assert 900 - PACKET_OVERHEAD in sizes
    assert sizes - {900 - PACKET_OVERHEAD, 3_000 % (900 - PACKET_OVERHEAD)}
    stage.finish()


def test_when_a_view_change_comes_in_the_middle_then_the_message_is_not_sent_all_over() -> None:
    """R15: it keeps its number; who has most of it asks for the rest."""
    stage = Stage.born(3, packet_bytes=700)
    token = stage.token_site().address
    source = other_than_token_site(stage)
    submit(stage, source, b"w" * 60_000)
    stage.run(300 * MS)
    stage.cluster.crash(token)
    before = len(sent(stage, Piece))
    submit(stage, source, b"x" * 20_000)
    witness = stage.process(source).member.site
    stage.until(lambda: b"x" * 20_000 in delivered(stage, witness), "it has a slot in the next epoch")
    needed = -(-20_000 // (700 - PACKET_OVERHEAD))
    assert len(sent(stage, Piece)) - before < 2 * needed
    assert token not in [p.address for p in stage.cluster.live()]
    stage.finish()


def test_when_the_source_ends_with_a_message_half_sent_then_it_says_so_and_nothing_is_left() -> None:
    stage = Stage.born(4, packet_bytes=700)
    holder = stage.token_site().address
    lost = next(a for a in stage.addresses if a != holder)
    site = stage.process(lost).member.site
    others = [a for a in stage.addresses if a != lost]
    submit(stage, lost, b"x" * 30_000)
    stage.run(2 * MS)
    assert any(stage.process(a).engine.site.assemblies.lanes for a in others)
    stage.isolate(lost)
    stage.run(2_000 * MS)
    stage.remove(lost, at=others[0])
    stage.run(300 * MS)
    assert not any(stage.process(a).engine.site.assemblies.lanes for a in others)
    stage.network.mend_all()
    stage.until(lambda: site in stage.journal.ended, "the removed site learns it")
    assert Abandoned(1, 1, ordered=True) in [effect for at, effect in stage.journal.effects if at == site]
    stage.finish()


def test_when_an_unreliable_message_exceeds_a_packet_then_it_is_refused() -> None:
    stage = Stage.born(3, packet_bytes=700)
    refusal = submit(stage, "s1", b"fits", b"x" * 700, qos=UNRELIABLE)
    assert isinstance(refusal, MessageTooLarge)
    assert "must fit one packet" in str(refusal)
    assert submit(stage, "s1", b"x" * 400, qos=UNRELIABLE) is None
    stage.finish()


def test_when_a_piece_claims_more_than_a_message_may_have_then_no_room_is_made() -> None:
    stage = Stage.born(3, message_bytes_max=1_000)
    one, two = stage.process("s1"), stage.process("s2")
    claim = Part(two.member.site, two.member.boot, 1, MAJORITY, 0, 1_001, b"x")
    stage.cluster._arrive("s1", Piece(two.engine.site.head(), claim, one.member.site))
    assert one.engine.site.assemblies.bytes == 0
    assert one.engine.site.counters["piece of a message above message_bytes_max"] == 1


def test_when_16_members_send_then_an_order_fits_a_network_packet() -> None:
    """A block has one run of each member at most."""
    stage = Stage.born(16, packet_bytes=1_400)
    for address in stage.addresses:
        submit(stage, address, b"x")
    stage.run(200 * MS)
    acks = sent(stage, Ack)
    assert max(len(ack.order.runs) for ack in acks) > 4  # type: ignore[attr-defined]
    assert max(len(encode(ack, 1)) for ack in acks) <= 1_400  # type: ignore[arg-type]
    worst = 99 + 60 + 16 * (1 + 9 + 9 + 9)
    assert worst <= 1_400
    assert all(len(encode(data, 1)) <= 1_400 for data in sent(stage, Data))  # type: ignore[arg-type]
    stage.finish()
