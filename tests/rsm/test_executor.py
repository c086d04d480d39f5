"""What a delivered message does, the same at every replica."""

from collections.abc import Sequence

import msgspec
import pytest

from ordering.effects import Delivery
from ordering.qos import MAJORITY, Level
from ordering.views import Member, SiteId, View, ViewId
from rsm import envelope
from rsm.envelope import Activate, Announce, Checkpoint, Close
from rsm.errors import CommandFailed, Diverged, MismatchedMachine, Refusal, Refused, Rejected, StateLost
from rsm.executor import CHECKPOINT_SLOTS, Executor
from rsm.methods import Catalogue
from rsm.sessions import SessionLimits
from rsm.state_machine import StateMachine, command, query
from tests.rsm.machines import Counter, Echo, Ledger, New, Old

SITES = (SiteId(1), SiteId(2), SiteId(3))
VIEW = View(
    ViewId(1, 0), tuple(Member(site, site, f"s{site}") for site in SITES), ring=SITES, electorate=SITES
)
MS = 1_000_000


class Bench:
    """One executor and the order it is given."""

    def __init__(self, machine: type[StateMachine], *, announced: bool = True) -> None:
        self.catalogue = Catalogue(machine)
        self.language = envelope.Language(self.catalogue)
        self.executor = Executor(machine(), self.catalogue, self.language)
        self.ts = 0
        self.time = 1_000 * MS
        self.session = 0
        self.number = 0
        self.view()
        if announced:
            for site in SITES:
                self.give([self.executor.announcement(site, SessionLimits(session_ms=1000))], site)
            self.session = envelope.session_of(self.give([envelope.OPEN])[0])

    def view(self, view: View = VIEW) -> None:
        self.ts += 1
        self.executor.install(self.ts, 77, view, self.time, locks_only=False)

    def give(self, messages: Sequence[bytes], source: int = 1) -> list[bytes]:
        delivery = Delivery(
            self.ts + 1, SiteId(source), self.ts + 1, MAJORITY, Level.MAJORITY, tuple(messages), self.time
        )
        self.ts += len(messages)
        return self.executor.deliver(delivery)

    def message(self, name: str, *args: object, number: int = 0, acknowledged: int = 0) -> bytes:
        if not number:
            self.number += 1
        command = self.catalogue.command(name).bind(args, {})
        return self.language.encode(self.session, number or self.number, acknowledged, command)

    def call(self, name: str, *args: object) -> object:
        (reply,) = self.give([self.message(name, *args)])
        return self.catalogue.command(name).decode_result(envelope.value_of(reply))


def refusal_of(reply: bytes) -> Refusal:
    with pytest.raises(Refused) as refused:
        envelope.value_of(reply)
    return refused.value.refusal


def test_when_commands_are_delivered_then_they_are_executed_in_their_order() -> None:
    bench = Bench(Counter)
    replies = bench.give([bench.message("add", 5), bench.message("add", 7), bench.message("subtract", 2)])
    assert [msgspec.msgpack.decode(envelope.value_of(reply)) for reply in replies] == [5, 12, 10]
    assert bench.executor.applied == bench.ts


def test_when_a_request_is_delivered_twice_then_it_is_executed_once_and_answered_alike() -> None:
    bench = Bench(Counter)
    message = bench.message("add", 5)
    (first,) = bench.give([message])
    at = bench.ts
    assert bench.give([message], source=2) == [first]
    assert bench.executor.repeats == {bench.ts: at}
    assert bench.call("add", 0) == 5
    assert not bench.executor.repeats


def test_when_a_command_rejects_then_the_caller_gets_its_words() -> None:
    bench = Bench(Counter)
    with pytest.raises(Rejected) as rejected:
        bench.call("subtract", 1)
    assert (rejected.value.message, rejected.value.detail) == ("too little is there", {"there": 0})


def test_when_a_command_raises_then_its_effects_stay_and_the_words_are_the_same_everywhere() -> None:
    one, other = Bench(Counter), Bench(Counter)
    with pytest.raises(CommandFailed) as failed:
        one.call("break_down", 3)
    assert failed.value.kind == "KeyError"
    assert "0x…" in failed.value.message
    with pytest.raises(CommandFailed):
        other.call("break_down", 3)
    assert one.call("add", 0) == other.call("add", 0) == 3
    assert one.executor.group.digest == other.executor.group.digest
    assert one.executor.defects == {"break_down: KeyError": 1}


def test_when_an_atomic_command_rejects_then_it_has_changed_nothing() -> None:
    bench = Bench(Ledger)
    machine = bench.executor.machine
    assert isinstance(machine, Ledger)
    assert bench.call("move", "a", "b", 4) == 6
    with pytest.raises(Rejected):
        bench.call("move", "a", "c", 7)
    assert dict(machine.accounts) == {"a": 6, "b": 4}
    with pytest.raises(CommandFailed, match="KeyError"):
        bench.call("move", "nobody", "d", 1)
    assert list(machine.accounts) == ["a", "b"]


def test_when_a_result_cannot_be_encoded_then_the_command_has_failed() -> None:
    with pytest.raises(CommandFailed, match="TypeError"):
        Bench(Ledger).call("give")


def test_when_memory_runs_out_then_the_replica_stops_instead_of_answering() -> None:
    bench = Bench(Counter)
    bench.executor.machine.value = _Exhausted()  # type: ignore[attr-defined]
    with pytest.raises(MemoryError):
        bench.call("add", 1)


class _Exhausted(int):
    def __add__(self, other: int) -> int:
        raise MemoryError


def test_when_a_command_looks_at_its_context_then_all_replicas_see_the_same() -> None:
    one, other = Bench(Ledger), Bench(Ledger)
    assert one.call("note") == one.ts
    assert other.call("note") == other.ts
    assert one.call("draw") == other.call("draw")
    machine = one.executor.machine
    assert isinstance(machine, Ledger)
    assert machine.entries == [(one.ts - 1, one.time, one.session)]
    assert machine.views == [1]


def test_when_only_locks_change_then_the_machine_sees_no_view() -> None:
    bench = Bench(Ledger)
    bench.ts += 1
    bench.executor.install(bench.ts, 77, VIEW, bench.time, locks_only=True)
    machine = bench.executor.machine
    assert isinstance(machine, Ledger)
    assert machine.views == [1]


def test_when_bytes_are_sent_raw_then_apply_takes_them() -> None:
    bench = Bench(Echo)
    (reply,) = bench.give([bench.language.encode(bench.session, 1, 0, b"abc")])
    assert msgspec.msgpack.decode(envelope.value_of(reply)) == b"cba"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xc1",
        b"\xff" * 40,
        msgspec.msgpack.encode([9, 1]),
        msgspec.msgpack.encode([1, -5, 0, 0, ["add", 1]]),
        msgspec.msgpack.encode({"x": 1}),
        b"\x91" * 100_000,
    ],
)
def test_when_a_message_is_nobodys_then_it_is_refused_and_the_order_goes_on(message: bytes) -> None:
    bench = Bench(Counter)
    assert refusal_of(bench.give([message])[0]) is Refusal.UNREADABLE
    assert bench.call("add", 1) == 1


def test_when_a_command_is_unknown_then_its_refusal_is_kept_like_a_reply() -> None:
    bench = Bench(Counter)
    unknown = msgspec.msgpack.encode([1, bench.session, 1, 0, ["multiply", 5]])
    wrong = msgspec.msgpack.encode([1, bench.session, 2, 0, ["add", "five"]])
    replies = bench.give([unknown, wrong, unknown])
    assert [refusal_of(reply) for reply in replies] == [Refusal.UNREADABLE] * 3
    assert list(bench.executor.repeats.values()) == [bench.ts - 2]


# -- sessions ------------------------------------------------------------------------------------


def test_when_a_session_is_closed_or_idle_then_its_requests_are_not_executed() -> None:
    bench = Bench(Counter)
    assert bench.call("add", 1) == 1
    bench.time += 1001 * MS
    assert refusal_of(bench.give([bench.message("add", 1)])[0]) is Refusal.SESSION_UNKNOWN
    bench.session = envelope.session_of(bench.give([envelope.OPEN])[0])
    bench.give([envelope.encode(Close(bench.session))])
    assert refusal_of(bench.give([bench.message("add", 1)])[0]) is Refusal.SESSION_UNKNOWN


def test_when_slot_time_goes_back_then_the_groups_does_not() -> None:
    bench = Bench(Ledger)
    before = bench.time
    bench.time -= 500 * MS
    bench.call("note")
    machine = bench.executor.machine
    assert isinstance(machine, Ledger)
    assert machine.entries[0][1] == before


# -- machines and versions -----------------------------------------------------------------------


def test_when_nobody_has_announced_then_nothing_is_executed() -> None:
    bench = Bench(Counter, announced=False)
    assert refusal_of(bench.give([envelope.OPEN])[0]) is Refusal.NOT_READY
    assert refusal_of(bench.give([bench.message("add", 1)])[0]) is Refusal.NOT_READY
    unknown = msgspec.msgpack.encode([1, 1, 1, 0, ["multiply", 5]])
    assert refusal_of(bench.give([unknown])[0]) is Refusal.NOT_READY


def test_when_the_group_runs_another_machine_then_this_replica_halts_before_it_applies() -> None:
    bench = Bench(Counter, announced=False)
    other = Executor(Ledger(), Catalogue(Ledger), envelope.Language(Catalogue(Ledger)))
    with pytest.raises(MismatchedMachine, match="runs Ledger, this replica has Counter"):
        bench.give([other.announcement(9, SessionLimits())])


def test_when_the_code_differs_within_a_version_then_this_replica_halts() -> None:
    class Altered(StateMachine):
        @command
        def add(self, n: str) -> int:
            return 0

    Altered.__name__ = "Counter"
    bench = Bench(Altered, announced=False)
    catalogue = Catalogue(Counter)
    other = Executor(catalogue.machine(), catalogue, envelope.Language(catalogue))
    with pytest.raises(MismatchedMachine, match="has other commands"):
        bench.give([other.announcement(9, SessionLimits())])


def mixed() -> tuple[Bench, Bench]:
    """An upgraded replica and one that is not, in a group that runs version 1."""
    old, new = Bench(Old, announced=False), Bench(New, announced=False)
    for site in SITES:
        for bench in (old, new):
            bench.give([old.executor.announcement(site, SessionLimits())], site)
    for bench in (old, new):
        bench.session = envelope.session_of(bench.give([envelope.OPEN])[0])
    return old, new


def test_when_versions_are_mixed_then_both_do_the_same_until_the_new_one_is_active() -> None:
    old, new = mixed()
    sent = [new.message("add", 5, 3), new.message("reset"), new.message("add", 1)]
    replies = old.give(sent)
    assert replies == new.give(sent)
    assert refusal_of(replies[1]) is Refusal.UNREADABLE
    assert old.executor.machine.value == new.executor.machine.value == 6  # type: ignore[attr-defined]
    assert old.executor.group.digest == new.executor.group.digest


def test_when_a_voter_cannot_run_a_version_then_it_is_not_activated() -> None:
    old, new = mixed()
    activate = envelope.encode(Activate(2))
    assert old.give([activate]) == new.give([activate])
    assert new.executor.group.version == 1
    for site in SITES:
        said = new.executor.announcement(site, SessionLimits())
        old.give([said], site)
        new.give([said], site)
    new.give([activate])
    assert new.executor.group.version == 2
    assert new.call("add", 5, 3) == 15
    assert new.call("reset") is None
    with pytest.raises(MismatchedMachine, match="upgrade it"):
        old.give([activate])


def test_when_a_voter_leaves_then_its_announcement_counts_no_more() -> None:
    _, new = mixed()
    for site in SITES[:2]:
        new.give([new.executor.announcement(site, SessionLimits())], site)
    new.give([envelope.encode(Activate(2))])
    assert new.executor.group.version == 1
    smaller = View(ViewId(1, 1), VIEW.members[:2], ring=SITES[:2], electorate=SITES[:2])
    new.view(smaller)
    new.give([envelope.encode(Activate(2))])
    assert new.executor.group.version == 2


def test_when_an_announcement_contradicts_itself_then_it_decides_nothing() -> None:
    bench = Bench(Counter, announced=False)
    said = Announce(bytes(16), "Counter", {1: bytes(16)}, 2, SessionLimits())
    assert refusal_of(bench.give([envelope.encode(said)])[0]) is Refusal.UNREADABLE
    assert bench.executor.group.version == 0


# -- queries -------------------------------------------------------------------------------------


class Clock(StateMachine):
    @command
    def tick(self) -> None:
        pass

    @query
    def now(self) -> tuple[int, int]:
        return self.context.timestamp, self.context.time_ns


def test_when_a_query_asks_where_it_is_then_it_is_at_the_last_slot_of_the_state() -> None:
    bench = Bench(Clock)
    now = bench.catalogue.query("now")

    def ask(executor: Executor) -> object:
        return now.decode_result(envelope.value_of(executor.query(now.bind((), {}))))

    bench.call("tick")
    assert ask(bench.executor) == (bench.ts, bench.time)
    bench.executor.pass_slot(bench.ts + 5, bench.time + 7)
    assert ask(bench.executor) == (bench.ts + 5, bench.time + 7)
    copy = Executor(Clock(), bench.catalogue, bench.language)
    copy.restore(bench.executor.snapshot())
    assert ask(copy) == (bench.ts + 5, bench.time + 7)


# -- snapshots -----------------------------------------------------------------------------------


def test_when_a_snapshot_is_restored_then_everything_goes_on_alike() -> None:
    bench = Bench(Ledger)
    bench.call("move", "a", "b", 4)
    repeated = bench.message("draw")
    bench.give([repeated])
    copy = Executor(Ledger(), bench.catalogue, bench.language)
    copy.restore(bench.executor.snapshot())
    assert vars(copy.machine) == vars(bench.executor.machine)
    assert b"".join(copy.snapshot()) == b"".join(bench.executor.snapshot())
    for executor in (copy, bench.executor):
        delivery = Delivery(
            bench.ts + 1,
            SITES[0],
            bench.ts + 1,
            MAJORITY,
            Level.MAJORITY,
            (repeated, bench.message("move", "b", "a", 1, number=90)),
            bench.time,
        )
        assert len(executor.deliver(delivery)) == 2
    assert b"".join(copy.snapshot()) == b"".join(bench.executor.snapshot())


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_when_a_snapshot_comes_in_other_pieces_then_it_is_the_same(size: int) -> None:
    bench = Bench(Ledger)
    bench.call("note")
    whole = b"".join(bench.executor.snapshot())
    copy = Executor(Ledger(), bench.catalogue, bench.language)
    copy.restore(whole[start : start + size] for start in range(0, len(whole), size))
    assert vars(copy.machine) == vars(bench.executor.machine)


def test_when_what_was_delivered_comes_again_then_it_is_passed_over() -> None:
    bench = Bench(Counter)
    messages = [bench.message("add", 1), bench.message("add", 2)]
    bench.give(messages)
    bench.ts -= 2
    assert bench.give(messages) == [b"", b""]
    bench.ts -= 1
    replies = bench.give([messages[1], bench.message("add", 4)])
    assert replies[0] == b""
    assert msgspec.msgpack.decode(envelope.value_of(replies[1])) == 7
    bench.executor.install(1, 77, VIEW, bench.time, locks_only=False)
    assert bench.executor.applied == bench.ts


def test_when_a_snapshot_is_cut_or_altered_then_it_is_not_taken() -> None:
    bench = Bench(Counter)
    whole = b"".join(bench.executor.snapshot())
    for broken in (b"", whole[:3], whole[:20], whole[:-1], whole[:10] + b"\xff" + whole[11:]):
        with pytest.raises(StateLost):
            Executor(Counter(), bench.catalogue, bench.language).restore([broken])


# -- divergence ----------------------------------------------------------------------------------


def at_a_checkpoint() -> tuple[Bench, int, int]:
    """A replica that has passed one; where that is, and its digest there."""
    bench = Bench(Counter)
    while bench.ts < CHECKPOINT_SLOTS:
        bench.give([bench.message("add", 1, acknowledged=bench.number) for _ in range(500)])
    ((slot, digest),) = bench.executor.own_checkpoints.items()
    assert slot == CHECKPOINT_SLOTS
    return bench, slot, digest


def test_when_deliveries_are_cut_differently_then_digests_at_checkpoints_are_the_same() -> None:
    one, slot, digest = at_a_checkpoint()
    other = Bench(Counter)
    while other.ts < one.ts:
        other.give([other.message("add", 1, acknowledged=other.number)])
    assert other.executor.own_checkpoints == {slot: digest}
    assert other.executor.group.digest == one.executor.group.digest
    assert other.executor.results() == one.executor.results()


def test_when_a_majority_has_another_digest_then_this_replica_halts() -> None:
    bench, slot, digest = at_a_checkpoint()
    bench.give([envelope.encode(Checkpoint(slot, digest))], 1)
    bench.give([envelope.encode(Checkpoint(slot, digest + 1))], 2)
    with pytest.raises(Diverged, match="a majority has another digest") as diverged:
        bench.give([envelope.encode(Checkpoint(slot, digest + 1))], 3)
    assert diverged.value.checkpoint == slot


def test_when_one_differs_from_a_majority_then_the_majority_goes_on() -> None:
    bench, slot, digest = at_a_checkpoint()
    bench.give([envelope.encode(Checkpoint(slot, digest + 1))], 3)
    bench.give([envelope.encode(Checkpoint(slot, digest))], 1)
    bench.give([envelope.encode(Checkpoint(slot, digest))], 2)
    assert bench.call("add", 0)


def test_when_no_majority_agrees_then_everybody_halts() -> None:
    bench, slot, digest = at_a_checkpoint()
    for site in (1, 2):
        bench.give([envelope.encode(Checkpoint(slot, digest + site))], site)
    with pytest.raises(Diverged, match="no two of a majority"):
        bench.give([envelope.encode(Checkpoint(slot, digest))], 3)


def test_when_the_state_was_taken_over_after_a_checkpoint_then_it_says_nothing_here() -> None:
    bench, slot, digest = at_a_checkpoint()
    copy = Executor(Counter(), bench.catalogue, bench.language)
    copy.restore(bench.executor.snapshot())
    bench.executor = copy
    for site in SITES:
        bench.give([envelope.encode(Checkpoint(slot, digest + 1))], site)
    assert len(copy.group.checkpoints) == 1
