"""Durable mode: what waits for the disk, what comes back from it, and what is refused (R6, R8)."""

from random import Random

import pytest

from ordering.config import MS, Config
from ordering.effects import Effect, Ending, EndMembership, Multicast, Persist, RequestState, Unicast
from ordering.engine import Engine
from ordering.errors import InvariantViolation, MembershipError, NotMember
from ordering.events import (
    Persisted,
    PersistFailed,
    Restarted,
    SnapshotSaved,
    Started,
    SubmitRequested,
    TimerFired,
)
from ordering.packets import Confirm, Descent, Order, RecoveryAckNewList, RecoveryStart, RecoveryVote
from ordering.records import Began, Entries, Entry, Installed, Ledger, Record
from ordering.simulator.stage import Stage
from ordering.site import Timer
from ordering.state import State
from ordering.views import Member, SiteId, View, ViewId

SECOND = 1000 * MS


def alone(*, durable: bool = True) -> Engine:
    return Engine(Config(group="g", founders=("a",), durable=durable), Member(SiteId(7), 99, "a"), Random(1))


def persist_of(effects: list[Effect]) -> Persist:
    (found,) = [effect for effect in effects if isinstance(effect, Persist)]
    return found


def block(ts: int, epoch: int = 1) -> Entry:
    return Entry(Order(epoch, ts, SiteId(1), SiteId(1)), ())


def ledger_of(*records: Record) -> Ledger:
    view = View(ViewId(0, 0), (Member(SiteId(1), 1, "a"),), (SiteId(1),), ())
    ledger = Ledger()
    ledger.apply((Began(SiteId(1), 5, Descent(5, 0), view, 0, 0, ()), *records))
    return ledger


# -- the ledger ------------------------------------------------------------------------------------


def test_when_an_epoch_is_installed_then_everything_from_its_slot_on_is_erased() -> None:
    install = Order(2, 3, SiteId(1), SiteId(1))
    ledger = ledger_of(
        Entries((block(1), block(2), block(3), block(4))), Installed(install, 5, Descent(5, 0), ())
    )
    assert [entry.order.ts for entry in ledger.entries.values()] == [1, 2, 3]
    assert (ledger.epoch, ledger.end) == (2, 3)


def test_when_an_entry_does_not_follow_the_end_then_it_is_refused() -> None:
    with pytest.raises(InvariantViolation, match="ends at 1, the next entry begins at 3"):
        ledger_of(Entries((block(1), block(3))))


def test_when_the_log_is_trimmed_then_its_end_stays() -> None:
    stage = Stage.born(3, durable=1, retain_slots=16)
    for number in range(40):
        stage.submit("s1", f"{number}")
        stage.run(50 * MS)
    process = stage.process("s2")
    stage.cluster.handle(process, SnapshotSaved(process.replica.ts))
    stage.run(50 * MS)
    ledger = process.disk.ledger
    assert ledger.base is not None
    assert ledger.end == process.engine.site.queue.frontier
    assert min(ledger.entries) == ledger.base.ts + 1


def test_when_a_copy_is_taken_then_it_does_not_change_any_more() -> None:
    ledger = ledger_of(Entries((block(1),)))
    copy = ledger.copy()
    ledger.apply((Entries((block(2),)),))
    assert (copy.end, list(copy.entries)) == (1, [1])


# -- what waits ------------------------------------------------------------------------------------


def test_when_nothing_is_synced_then_no_vote_and_no_acceptance_leaves() -> None:
    stage = Stage.born(3, durable=1)
    stage.cluster.sync_us = (10_000_000,)
    stage.cluster.crash("s3")
    stage.run(3 * SECOND)
    said = [e.packet for _, e in stage.journal.effects if isinstance(e, Multicast | Unicast)]
    since = len([e for e in said if isinstance(e, RecoveryVote | RecoveryAckNewList)])
    asked = len([e for e in said if isinstance(e, RecoveryStart)])
    assert stage.process("s1").engine.site.fenced
    births = 2  # votes of the birth, by the two that did not initiate it; their acceptances beside them
    assert since == 2 * births
    assert asked == 1


def test_when_a_persist_is_under_way_then_the_next_waits_for_it() -> None:
    engine = alone()
    promise = persist_of(engine.handle(Started(founder=True), 0))
    assert engine.site.epoch == 0
    acceptance = persist_of(engine.handle(Persisted(promise.seq), 1))
    install = persist_of(engine.handle(Persisted(acceptance.seq), 2))
    assert engine.site.epoch == 1
    effects = engine.handle(SubmitRequested((b"x",)), 3)
    assert not any(isinstance(effect, Persist) for effect in effects)
    entries = persist_of(engine.handle(Persisted(install.seq), 4))
    assert [type(record) for record in entries.records] == [Entries]
    with pytest.raises(InvariantViolation, match="no Persist that is under way"):
        engine.handle(Persisted(install.seq), 5)


def test_when_disks_take_longer_than_a_null_waits_then_no_null_is_written_for_them() -> None:
    """Each disk speaks up when it has synced; a NULL block would be one more for it."""
    stage = Stage.born(3, durable=1)
    stage.cluster.sync_us = (10_000,)
    for number in range(5):
        stage.submit("s1", f"{number}")
        stage.run(SECOND)
    learnt = [stage.process(name).engine.site.queue.frontier for name in ("s1", "s2", "s3")]
    for number in range(10):
        stage.submit("s1", f"later {number}")
        stage.run(SECOND)
    for name, before in zip(("s1", "s2", "s3"), learnt, strict=True):
        entries = stage.process(name).disk.ledger.entries
        written = [entry for ts, entry in entries.items() if ts > before]
        assert sum(len(entry.batches) for entry in written) == 10
        assert not [entry for entry in written if entry.order.is_null]


def test_when_the_sync_fails_then_the_site_stops_and_says_nothing_more() -> None:
    engine = alone()
    first = persist_of(engine.handle(Started(founder=True), 0))
    effects = engine.handle(PersistFailed(first.seq), 1)
    assert effects == [EndMembership(Ending.STOPPED)]
    assert engine.state is State.GONE
    with pytest.raises(NotMember):
        engine.handle(SubmitRequested((b"x",)), 2)


def test_when_a_group_is_in_memory_then_nothing_is_ever_persisted() -> None:
    stage = Stage.born(3)
    stage.submit("s1", "hello")
    stage.run(SECOND)
    assert not any(isinstance(effect, Persist) for _, effect in stage.journal.effects)


# -- coming back -----------------------------------------------------------------------------------


def test_when_a_site_is_back_and_not_named_then_it_takes_no_message() -> None:
    stage = Stage.born(3, durable=1)
    stage.cluster.crash("s2")
    stage.isolate("s2")
    stage.cluster.restart("s2")
    refusal = stage.submit("s2", "too early")
    assert isinstance(refusal, NotMember)
    stage.network.mend_all()
    stage.run(SECOND)
    assert stage.submit("s2", "now") is None
    stage.finish()


def test_when_the_token_site_is_back_then_it_orders_nothing_until_it_is_named() -> None:
    stage = Stage.born(3, durable=1)
    holder = stage.token_site().address
    others = [address for address in stage.addresses if address != holder]
    stage.cluster.crash(holder)
    for other in others:
        stage.cut(holder, other)
    stage.cluster.restart(holder)
    process = stage.process(holder)
    assert process.engine.site.queue.tail is not None
    assert process.engine.site.queue.tail.next_site == process.member.site
    assert process.engine.state is not State.TOKEN_SITE
    stage.finish()


def test_when_a_voter_is_back_then_it_numbers_its_messages_on_from_the_order() -> None:
    stage = Stage.born(3, durable=1)
    stage.submit("s2", "one", "two")
    stage.run(100 * MS)
    stage.cluster.crash("s2")
    stage.cluster.restart("s2")
    stage.run(SECOND)
    stage.submit("s2", "three")
    assert stage.process("s2").engine.submission.next_seq == 4
    stage.finish()


def test_when_a_learner_is_back_without_the_state_then_it_asks_for_it_again() -> None:
    stage = Stage.born(3, durable=1)
    stage.network.connected = lambda one, other: False  # type: ignore[method-assign]  # no state arrives
    stage.cluster.start("s4", founder=False)
    stage.run(200 * MS)
    stage.cluster.crash("s4")
    before = len(stage.journal.effects)
    stage.cluster.restart("s4")
    again = [effect for _, effect in stage.journal.effects[before:] if isinstance(effect, RequestState)]
    assert len(again) == 1


def test_when_all_die_in_the_birth_then_the_group_is_born_all_the_same() -> None:
    stage = Stage(Stage.born(3, durable=1).cluster.config)
    for address in ("s1", "s2", "s3"):
        stage.cluster.start(address, founder=True)
    stage.until(lambda: any(p.disk.has_member for p in stage.cluster.live()), "one has promised")
    for address in ("s1", "s2", "s3"):
        stage.cluster.crash(address)
    for address in ("s3", "s1", "s2"):
        stage.cluster.restart(address)
    stage.until(lambda: all(p.view is not None for p in stage.cluster.live()), "everyone has a view")
    stage.finish()


def test_when_the_log_is_of_another_site_then_it_is_refused() -> None:
    with pytest.raises(MembershipError, match="log of site 1, this is 7"):
        alone().handle(Restarted(ledger_of()), 0)


def test_when_there_is_no_log_or_no_disk_then_a_restart_is_refused() -> None:
    with pytest.raises(MembershipError, match="start with Started"):
        alone().handle(Restarted(Ledger()), 0)
    with pytest.raises(MembershipError, match="memory mode"):
        alone(durable=False).handle(Restarted(ledger_of()), 0)


# -- saying what the disk has ----------------------------------------------------------------------


def synced(engine: Engine, *, awaited: bool) -> list[Effect]:
    """A sync has come to an end; what the site says of it."""
    engine.site.out = []
    engine.discipline.notify(
        frontier_moved=False, held_moved=True, awaited=awaited, level_moved=False, sent_order=False
    )
    return engine.site.out


def confirms(effects: list[Effect]) -> int:
    return sum(isinstance(each, Multicast) and isinstance(each.packet, Confirm) for each in effects)


def resting() -> Engine:
    stage = Stage.born(3, durable=1)
    stage.run(SECOND)
    return stage.process("s1").engine


def test_when_others_may_wait_for_what_the_disk_has_then_it_is_said_at_once() -> None:
    engine = resting()
    assert confirms(synced(engine, awaited=True)) == 1
    assert Timer.CONFIRM not in engine.site.deadlines


def test_when_nobody_waits_for_what_the_disk_has_then_it_is_said_a_little_later() -> None:
    engine = resting()
    assert synced(engine, awaited=False) == []
    due = engine.site.deadlines[Timer.CONFIRM]
    assert due == engine.site.now + engine.site.config.confirm_ms * MS
    assert confirms(engine.handle(TimerFired(), due)) == 1
    assert Timer.CONFIRM not in engine.site.deadlines


def test_when_another_packet_has_told_everybody_then_a_confirm_that_was_put_off_is_not_sent() -> None:
    engine = resting()
    synced(engine, awaited=False)
    due = engine.site.deadlines[Timer.CONFIRM]
    assert not confirms(engine.handle(SubmitRequested((b"its head tells",)), engine.site.now))
    assert Timer.CONFIRM not in engine.site.deadlines
    assert not confirms(engine.handle(TimerFired(), due))
