"""What a boot may and may not take over from the one before it at the same voter (R6)."""

import msgspec

from ordering.config import MS
from ordering.effects import CallAnswered, Persist
from ordering.errors import NotMember
from ordering.events import PacketsReceived, Reply, ReplyRequested
from ordering.membership import Request
from ordering.packets import Call, Change, ChangeKind, Data
from ordering.qos import MAJORITY, SOURCE_ORDERED, UNORDERED
from ordering.simulator.process import Process
from ordering.simulator.stage import Stage
from ordering.views import Member, SiteId
from tests.paper.watching import mark, sent, texts

SECOND = 1000 * MS


def hang_disk(stage: Stage, address: str) -> None:
    """No sync of this site comes to an end any more."""
    sync = stage.cluster._sync

    def some(process: Process, persist: Persist) -> None:
        if process.address != address:
            sync(process, persist)

    stage.cluster._sync = some  # type: ignore[method-assign]


def crash_losing_what_is_written(stage: Stage, address: str) -> None:
    stage.process(address).disk.writing = None
    stage.cluster.crash(address)


def test_when_a_site_lost_its_own_large_message_then_it_gets_it_back_in_pieces() -> None:
    """The others have synced it, so it is delivered; only the disk of its source was too slow."""
    stage = Stage.born(3, durable=1, packet_bytes=700)
    hang_disk(stage, "s2")
    stage.submit("s2", "x" * 5000)
    stage.until(lambda: bool(texts(stage, "s1")), "s1 delivers it")
    crash_losing_what_is_written(stage, "s2")
    del stage.cluster._sync  # its new disk is sound
    stage.cluster.restart("s2")
    assert stage.process("s2").engine.site.queue.sources[stage.process("s2").member.site].ordered == 0
    stage.until(lambda: stage.process("s2").replica.ts > 0, "s2 has it again")
    stage.finish()


def test_when_a_boot_that_is_named_later_is_fenced_then_it_is_not_taken_for_a_disk_that_went_back() -> None:
    """It states nothing while it is fenced, and has what we lack: to drop its packets would be for ever."""
    stage = Stage.born(3, durable=1)
    stage.submit("s2", "held by s2 under its first boot")
    engine, back = stage.process("s3").engine, stage.process("s2").member
    stage.until(lambda: engine.claims.heard[back.site].held > 2, "s3 hears what s2 holds")
    head = msgspec.structs.replace(engine.site.head(), sender=back.site, boot=back.boot + 1)
    assert engine.claims.on_other_boot(msgspec.structs.replace(head, held=0))
    assert not engine.claims.on_other_boot(msgspec.structs.replace(head, held=2))
    assert not engine.claims.on_other_boot(msgspec.structs.replace(head, epoch=0, held=0))


def test_when_the_asker_has_restarted_then_its_next_question_gets_no_old_answer() -> None:
    """Both have number 1, and the site holds the lock itself: it executes the old one again, later."""
    stage = Stage.born(3, durable=1)
    stage.cluster.request(stage.process("s1"), (b"old",), MAJORITY, handler=1)
    stage.run(100 * MS)
    before = stage.process("s1").member
    stage.cluster.crash("s1")
    stage.cluster.restart("s1")
    stage.run(SECOND)
    process = stage.process("s1")
    stage.isolate("s1")  # the new one waits
    assert stage.cluster.request(process, (b"new",), MAJORITY, handler=1) is None
    old = Call(before.site, before.boot, 1, before.address, 1, 0)
    since = mark(stage)
    stage.cluster.handle(process, ReplyRequested((Reply(old, 5, b"answer to old"),)))
    assert list(process.engine.submission.requests.waiting) == [1]
    assert not any(isinstance(effect, CallAnswered) for _, effect in stage.journal.effects[since:])
    stage.finish()


def test_when_a_holder_is_not_named_yet_then_it_replies_nothing_to_the_group() -> None:
    """It hears the others and delivers the request again, but cannot be heard, so no view names it."""
    stage = Stage.born(3, durable=1)
    stage.cluster.request(stage.process("s1"), (b"question",), MAJORITY, handler=1, to_group=True)
    stage.run(100 * MS)
    stage.cluster.crash("s1")
    stage.cut("s1", "*")
    stage.cluster.restart("s1")
    process = stage.process("s1")
    stage.until(lambda: process.replica.ts > 0, "s1 has executed it again")
    assert process.engine.site.unnamed
    assert process.engine.submission.next_seq == 1
    stage.finish()


def test_when_a_sites_own_packet_comes_back_to_it_then_it_is_dropped() -> None:
    """From a mirror, or an attacker who needs no key for that."""
    stage = Stage.born(3)
    stage.submit("s1", "once", qos=UNORDERED)
    ((_, packet),) = sent(stage, Data)
    process = stage.process("s1")
    stage.cluster.handle(process, PacketsReceived((packet,)))
    assert texts(stage, "s1") == ["once"]
    assert process.engine.site.counters["dropped: own packet"] == 1


def test_when_a_message_of_an_earlier_boot_lost_its_slot_then_the_new_boot_does_not_send_it() -> None:
    """Its number is given out again once the new boot is named: two messages would have one number."""
    stage = Stage.born(3, durable=1)
    source = stage.token_site().address
    stage.isolate(source)
    assert stage.submit(source, "ordered by nobody else", qos=SOURCE_ORDERED) is None
    process = stage.process(source)
    stage.until(lambda: process.engine.site.synced == process.engine.site.queue.frontier, "it is on the disk")
    assert process.engine.site.queue.sources[process.member.site].ordered == 1
    stage.cluster.crash(source)
    stage.run(SECOND)  # the others go on without it
    stage.network.mend_all()
    since, boot = mark(stage), process.member.boot
    stage.cluster.restart(source)
    process = stage.process(source)
    stage.until(lambda: process.engine.site.epoch > 1, "it follows the others")
    stage.until(lambda: not process.engine.site.unnamed, "it is named")
    assert not [packet for _, packet in sent(stage, Data, since) if packet.batch.boot == boot]
    stage.finish()


def test_when_a_boot_is_named_but_not_for_good_then_it_numbers_nothing() -> None:
    """A view change could take the name out of the order, and the numbers would be given out anew."""
    stage = Stage.born(3, durable=1)
    stage.submit("s1", "before")
    stage.run(100 * MS)
    stage.cluster.crash("s1")
    stage.run(SECOND)
    stage.cluster.restart("s1")
    process = stage.process("s1")
    site = process.engine.site
    stage.until(lambda: site.epoch > 1 and not site.unnamed, "s1 has the block that names it")
    assert site.stability.majority < site.queue.views[-1][0]
    assert isinstance(stage.submit("s1", "too early"), NotMember)
    stage.until(lambda: site.may_number, "a majority has it")
    assert stage.submit("s1", "after") is None
    stage.finish()
    assert texts(stage, "s2") == ["before", "after"]


def test_when_a_request_of_an_earlier_boot_was_kept_then_it_does_not_rename_the_later_one() -> None:
    """RETURN of the boot before, kept by a site without the token, which gets the token only when the later
    boot is named and has sent a message."""
    stage = Stage.born(3, durable=1, request_ms=300)
    assert stage.submit("s1", "with it goes the token") is None
    stage.run(50 * MS)
    assert stage.token_site().address != "s1"
    stage.isolate("s1")
    stage.until(
        lambda: all(sorted(stage.process(a).engine.site.view.ring) == [2, 3] for a in ("s2", "s3")),
        "s1 is out",
    )
    stage.run(50 * MS)
    resting = stage.token_site().address
    (keeper,) = {"s2", "s3"} - {resting}
    stage.network.mend_all()
    stage.drop("s1", resting, "ListChangeRequest", 10_000)
    stage.drop(keeper, resting, "ListChangeRequest", 10_000)
    requests = stage.process(keeper).engine.membership.requests
    stage.until(lambda: (ChangeKind.RETURN, 1) in requests, "the request of the earlier boot is kept")
    stage.cluster.crash("s1")
    stage.run(MS)
    stage.cluster.restart("s1")
    stage.drop("s1", "*", "ListChangeRequest", 10_000)
    site = stage.process("s1").engine.site
    stage.process("s1").engine.recovery.initiate()  # nothing else can name it
    stage.until(lambda: site.may_number, "the later boot is named")
    stage.drop("s1", "*", Data, 10_000)
    assert stage.submit("s1", "nobody has it yet") is None
    stage.drop("s1", "*", "RecoveryVote", 10_000)  # so that it is out of the ring, and is to return
    stage.cluster.crash(resting)
    stage.run(MS)
    stage.cluster.restart(resting)
    assert (ChangeKind.RETURN, 1) in requests
    epoch = site.epoch
    stage.until(lambda: site.epoch > epoch, "the next view change")
    stage.until(lambda: (ChangeKind.RETURN, 1) not in requests, "the request is granted, or forgotten")
    stage.run(SECOND)
    assert not site.unnamed
    stage.finish()
    assert texts(stage, "s2")[-1] == "nobody has it yet"


def test_when_a_kept_request_is_of_an_earlier_epoch_then_it_is_forgotten() -> None:
    """Slots of another epoch say nothing about which boot is the later one."""
    stage = Stage.born(3, durable=1)
    engine = stage.token_site().engine
    other = next(member for member in engine.site.view.members if member.site != engine.site.me)
    dead = Member(other.site, other.boot + 1, other.address)
    key = (ChangeKind.RETURN, other.site)
    now = engine.site.now
    for epoch, kept in ((engine.site.epoch - 1, False), (engine.site.epoch, True)):
        engine.membership.requests[key] = Request(Change(ChangeKind.RETURN, dead), now, now, epoch, 1 << 40)
        assert engine.membership.next_view(engine.site.queue.frontier + 1, 0) is None  # it is in the ring
        assert (key in engine.membership.requests) is kept


def test_when_a_fork_names_an_earlier_boot_then_the_later_one_takes_part_with_its_messages() -> None:
    """The leader has missed the block that names it. Until the fork is decided, the order says who is who."""
    stage = Stage.born(7, durable=1, minimum_size=3, orphan_ms=2000)
    forking, dying = ("s1", "s2", "s3"), ("s4", "s5", "s6", "s7")
    sites = {address: stage.process(address).engine.site for address in stage.addresses}
    stage.isolate("s1")
    stage.isolate("s2")
    stage.until(
        lambda: all(set(sites[a].view.ring) == {3, 4, 5, 6, 7} for a in ("s3", *dying)), "two are out"
    )
    stage.network.mend_all()
    for address in ("s1", "s2"):
        stage.drop(address, "*", "ListChangeRequest", 10_000)
    stage.until(lambda: sites["s1"].queue.frontier == sites["s3"].queue.frontier > 1, "s1 follows")
    for kind in ("Ack", "NewList"):
        stage.drop("*", "s1", kind, 10_000)
    stage.cluster.crash("s2")
    stage.run(5 * MS)
    stage.drop("s2", "*", "ListChangeRequest", 0)
    stage.drop("s2", "*", "Poll", 10_000)
    stage.cluster.restart("s2")
    sites["s2"] = stage.process("s2").engine.site
    stage.until(lambda: sites["s2"].may_number, "s2 is named")
    stage.run(20 * MS)
    for address in ("s3", *dying):
        for kind in ("Ack", "NewList"):
            stage.drop(address, "s2", kind, 10_000)
    assert stage.submit("s2", "of the later boot") is None
    stage.until(lambda: sites["s3"].queue.sources[SiteId(2)].ordered == 1, "s3 has it in the order")
    for address in dying:
        stage.cluster.crash(address)
    stage.until(
        lambda: sites["s2"].queue.fork is not None and sites["s2"].unnamed, "the fork names the other"
    )
    for address in forking:
        for other in forking:
            for kind in ("Ack", "NewList"):
                stage.drop(address, other, kind, 0)
    stage.until(lambda: all(sites[a].epoch > 2 for a in forking), "the fork is decided")
    stage.finish()
    assert {tuple(texts(stage, address)) for address in forking} == {("of the later boot",)}


def test_when_all_restart_in_a_removal_then_the_voter_that_goes_is_asked_as_long_as_it_is_needed() -> None:
    """Three of four voters held the removal of the fourth; one of them lost its disk. Whether that many held
    it nobody remembers, so the majority before it is needed again, and that has the fourth in it (R5)."""
    stage = Stage.born(4, durable=1)
    stage.submit("s1", "before")
    stage.run(SECOND)
    stage.cluster.crash("s4")
    stage.until(lambda: len(stage.process("s1").engine.site.view.ring) == 3, "s4 is out of the ring")
    stage.run(SECOND)
    stage.remove("s4", at="s1")
    stage.until(
        lambda: all(len(stage.process(a).engine.site.view.electorate) == 3 for a in ("s1", "s2", "s3")),
        "s4 is removed",
    )
    stage.run(20 * MS)
    for address in ("s1", "s2", "s3"):
        stage.cluster.crash(address)
    for address in ("s1", "s2", "s4"):
        stage.cluster.restart(address)
    epoch = stage.process("s1").engine.site.epoch
    stage.until(lambda: stage.process("s1").engine.site.epoch > epoch, "the others go on")
    stage.submit("s1", "after")
    stage.until(lambda: "after" in texts(stage, "s2"), "s2 delivers it")
