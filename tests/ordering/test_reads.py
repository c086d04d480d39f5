"""Reads that see everything answered before them, without a slot (R11)."""

import msgspec
import pytest

from ordering.config import MS
from ordering.effects import Effect, ReadReady, Unicast
from ordering.errors import NotMember
from ordering.events import PacketsReceived, ReadRequested
from ordering.packets import Ack, Ballot, Data, Packet, ReadProbe, ReadReply, RecoveryStart
from ordering.simulator.stage import Stage


def ask(stage: Stage, address: str, number: int) -> None:
    stage.cluster.handle(stage.process(address), ReadRequested(number))


def ready(stage: Stage, address: str) -> list[int]:
    """Numbers of reads that were answered at a site, in their order."""
    site = stage.process(address).member.site
    return [
        n for who, e in stage.journal.effects if who == site and isinstance(e, ReadReady) for n in e.numbers
    ]


def bring(stage: Stage, address: str, packet: Packet) -> list[Effect]:
    """What a member is asked to do by one packet."""
    process = stage.process(address)
    since = len(stage.journal.effects)
    stage.cluster.handle(process, PacketsReceived((packet,)))
    return [effect for site, effect in stage.journal.effects[since:] if site == process.member.site]


def texts(stage: Stage, address: str) -> list[str]:
    return [text for _, text in stage.journal.delivered[stage.process(address).member.site]]


def replies(effects: list[Effect]) -> list[ReadReply]:
    return [e.packet for e in effects if isinstance(e, Unicast) and isinstance(e.packet, ReadReply)]


@pytest.fixture
def quiet() -> Stage:
    stage = Stage.born(3)
    stage.submit("s1", "first")
    stage.run(100 * MS)
    return stage


def test_when_a_quiet_group_is_read_then_it_takes_a_round_trip_and_no_slot(quiet: Stage) -> None:
    before = quiet.process("s2").engine.site.queue.frontier
    ask(quiet, "s2", 7)
    assert ready(quiet, "s2") == []
    quiet.run(3 * MS)
    assert ready(quiet, "s2") == [7]
    assert quiet.process("s2").engine.site.queue.frontier == before
    quiet.finish()


def test_when_a_message_was_delivered_elsewhere_then_a_read_waits_for_it(quiet: Stage) -> None:
    quiet.drop("s1", "s3", Ack, 100)
    quiet.drop("s2", "s3", Ack, 100)
    quiet.drop("s1", "s3", Data, 100)
    quiet.submit("s1", "second")
    quiet.until(lambda: "second" in texts(quiet, "s1"), "delivered elsewhere")
    ask(quiet, "s3", 1)
    quiet.run(4 * MS)
    assert ready(quiet, "s3") == []
    quiet.cluster.network.mend_all()
    quiet.until(lambda: ready(quiet, "s3") == [1], "the read is answered")
    assert texts(quiet, "s3")[-1] == "second"
    quiet.finish()


def test_when_a_site_is_cut_off_then_its_read_waits_until_it_is_back(quiet: Stage) -> None:
    quiet.isolate("s3")
    ask(quiet, "s3", 1)
    quiet.submit("s1", "behind its back")
    quiet.run(2000 * MS)
    assert ready(quiet, "s3") == []
    quiet.cluster.network.mend_all()
    quiet.until(lambda: ready(quiet, "s3") == [1], "the read is answered")
    assert texts(quiet, "s3")[-1] == "behind its back"
    quiet.finish()


def test_when_probe_or_answer_is_lost_then_it_is_asked_again(quiet: Stage) -> None:
    for other in ("s1", "s3"):
        quiet.drop("s2", other, ReadProbe, 1)
        quiet.drop(other, "s2", ReadReply, 1)
    ask(quiet, "s2", 1)
    quiet.until(lambda: ready(quiet, "s2") == [1], "the read is answered")
    quiet.finish()


def test_when_reads_come_during_a_round_then_they_share_the_next(quiet: Stage) -> None:
    probes = quiet.cluster.network.counts
    before = probes.get(("s2", "ReadProbe"), 0)
    ask(quiet, "s2", 1)
    quiet.run(MS // 2)
    for number in range(2, 50):
        ask(quiet, "s2", number)
    quiet.run(10 * MS)
    assert ready(quiet, "s2") == list(range(1, 50))
    assert probes["s2", "ReadProbe"] - before == 4, "two rounds to two others"
    quiet.finish()


def test_when_a_voter_has_promised_then_it_answers_no_read(quiet: Stage) -> None:
    reader, voter = quiet.process("s2"), quiet.process("s1")
    probe = ReadProbe(reader.engine.site.head(), 9)
    assert len(replies(bring(quiet, "s1", probe))) == 1
    start = RecoveryStart(reader.engine.site.head(), Ballot(99, reader.member.site), voter.engine.site.view)
    bring(quiet, "s1", start)
    assert voter.engine.site.fenced
    assert replies(bring(quiet, "s1", probe)) == []


def test_when_an_answer_is_of_another_round_or_for_another_process_then_it_proves_nothing(
    quiet: Stage,
) -> None:
    quiet.isolate("s2")
    ask(quiet, "s2", 1)
    reader = quiet.process("s2")
    answer = ReadReply(quiet.process("s1").engine.site.head(), reader.member.boot, 1)
    for false in (
        msgspec.structs.replace(answer, round=0),
        msgspec.structs.replace(answer, round=2),
        msgspec.structs.replace(answer, boot=reader.member.boot + 1),
        msgspec.structs.replace(answer, head=msgspec.structs.replace(answer.head, epoch=0)),
        msgspec.structs.replace(answer, head=msgspec.structs.replace(answer.head, boot=5)),
    ):
        effects = bring(quiet, "s2", false)
        assert not any(isinstance(effect, ReadReady) for effect in effects)
    effects = bring(quiet, "s2", answer)
    assert ReadReady((1,)) in effects


def test_when_the_epoch_ends_during_a_round_then_it_begins_anew(quiet: Stage) -> None:
    quiet.drop("s1", "s2", ReadReply, 1000)
    quiet.drop("s3", "s2", ReadReply, 1000)
    ask(quiet, "s2", 1)
    quiet.run(2 * MS)
    epoch = quiet.process("s2").engine.site.epoch
    quiet.cluster.crash("s1")
    quiet.until(lambda: quiet.process("s2").engine.site.epoch > epoch, "a view change")
    assert ready(quiet, "s2") == []
    quiet.cluster.network.mend_all()
    quiet.until(lambda: ready(quiet, "s2") == [1], "the read is answered")


def test_when_a_site_is_alone_then_it_answers_itself() -> None:
    stage = Stage.born(1)
    ask(stage, "s1", 1)
    assert ready(stage, "s1") == [1]


def test_when_a_site_is_in_no_group_then_it_cannot_read() -> None:
    stage = Stage.born(3)
    stage.cluster.start("s9", founder=False)
    with pytest.raises(NotMember):
        ask(stage, "s9", 1)
