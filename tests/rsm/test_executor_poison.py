"""Messages and exceptions that must neither halt the replicas nor make them differ."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import google_crc32c
import msgspec
import pytest

from ordering.effects import Delivery
from ordering.packets import Call
from ordering.qos import MAJORITY, Level
from ordering.views import SiteId
from rsm import envelope
from rsm.envelope import Checkpoint
from rsm.errors import CommandFailed, Refusal, Rejected
from rsm.executor import DEFECTS_KEPT
from rsm.sessions import SessionLimits
from rsm.state_machine import StateMachine, command
from tests.rsm.machines import Counter
from tests.rsm.test_executor import SITES, VIEW, Bench, at_a_checkpoint, mixed, refusal_of
from tests.rsm.test_methods import said_under_seeds


class Mute(Exception):
    def __str__(self) -> str:
        raise KeyError("no words")


@dataclass
class Amount:
    n: int

    def __post_init__(self) -> None:
        assert self.n > 0


class Odd(StateMachine):
    def __init__(self) -> None:
        self.n = 0

    @command
    def surrogate(self, code: int) -> int:
        raise ValueError(f"no such letter: {chr(code)}")

    @command
    def mute(self) -> int:
        raise Mute

    @command
    def deep(self) -> int:
        detail: list[Any] = []
        for _ in range(100_000):
            detail = [detail]
        raise Rejected("no", detail)

    @command
    def pay(self, amount: Amount) -> int:
        self.n += amount.n
        return self.n

    @command
    def keep(self, value: Any) -> int:
        self.n += 1
        return self.n

    @command
    def names(self) -> set[str]:
        return {f"name {n}" for n in range(20)}

    @command
    def large(self, size: int) -> bytes:
        return bytes(size)

    @command
    def make_up(self, n: int) -> int:
        raise type(f"Error{n}", (Exception,), {})


@pytest.mark.parametrize(
    ("name", "args"),
    [("surrogate", (0xD800,)), ("mute", ()), ("deep", ())],
    ids=["surrogate", "mute", "deep"],
)
def test_when_a_command_raises_what_cannot_be_said_then_it_has_failed_and_the_order_goes_on(
    name: str, args: tuple[object, ...]
) -> None:
    bench = Bench(Odd)
    with pytest.raises(CommandFailed):
        bench.call(name, *args)
    assert bench.call("keep", 0) == 1


def test_when_an_arguments_class_refuses_it_then_the_message_is_unreadable_and_no_more() -> None:
    bench = Bench(Odd)
    poison = msgspec.msgpack.decode(bench.message("pay", Amount(5)))
    poison[4][1]["n"] = -5
    assert refusal_of(bench.give([msgspec.msgpack.encode(poison)])[0]) is Refusal.UNREADABLE
    assert bench.call("pay", Amount(5)) == 5


def test_when_only_one_version_knows_an_argument_then_both_do_the_same_with_it() -> None:
    old, new = mixed()
    message = msgspec.msgpack.encode([1, old.session, 1, 0, ["add", 5, "five times"]])
    assert old.give([message]) == new.give([message])
    assert old.executor.group.digest == new.executor.group.digest


def test_when_slots_have_nothing_to_execute_then_they_cost_no_memory() -> None:
    bench = Bench(Counter)
    for _ in range(50_000):
        bench.give([envelope.BARRIER])
    assert len(bench.executor._recent) < 20_000


def test_when_results_are_large_then_those_that_were_acknowledged_cost_no_memory() -> None:
    bench = Bench(Odd)
    expected = []
    for size in (10, 1_000_000, 10, 1_000_000):
        (reply,) = bench.give([bench.message("large", size, acknowledged=bench.number)])
        expected.append((bench.ts, google_crc32c.value(reply)))
    assert bench.executor.results() == expected
    results = [each for _, kept in bench.executor._recent for each in kept]
    assert sum(len(each) for each in results if isinstance(each, bytes)) < 1000


def test_when_a_machine_makes_up_errors_then_counting_them_takes_little_memory() -> None:
    bench = Bench(Odd)
    for number in range(2 * DEFECTS_KEPT):
        with pytest.raises(CommandFailed):
            bench.call("make_up", number)
    assert len(bench.executor.defects) == DEFECTS_KEPT + 1
    assert bench.executor.defects["others: others"] == DEFECTS_KEPT


def below(frames: int, call: Callable[[], list[bytes]]) -> list[bytes]:
    return below(frames - 1, call) if frames else call()


@pytest.mark.parametrize("nested", [50, 90, 98, 700, 860, 900, 940, 960])
def test_when_replicas_have_stacks_of_other_depth_then_both_read_a_nested_message_alike(nested: int) -> None:
    """A replica that was started from a shell, and one within a web server: so many frames are soon between
    them."""
    one, other = Bench(Odd), Bench(Odd)
    # By hand: no encoder nests so deeply.
    session = msgspec.msgpack.encode(one.session)
    message = b"\x95\x01" + session + b"\x01\x00\x92\xa4keep" + b"\x91" * nested + b"\x00"
    assert below(0, lambda: one.give([message])) == below(80, lambda: other.give([message]))


def test_when_hash_seeds_differ_then_results_with_sets_have_the_same_digest() -> None:
    code = (
        "from tests.rsm.test_executor_poison import Bench, Odd;"
        "bench = Bench(Odd); bench.call('names'); print(bench.executor.group.digest)"
    )
    said = said_under_seeds(code, "1", "2", "3")
    assert len(said) == 1, said


def test_when_clients_say_that_digests_differ_then_they_are_refused_and_nobody_halts() -> None:
    bench, slot, digest = at_a_checkpoint()
    message = envelope.encode(Checkpoint(slot, digest + 1))
    for source in SITES[:2]:  # a majority, that has ordered what clients sent
        bench.ts += 1
        delivery = Delivery(
            bench.ts,
            source,
            bench.ts,
            MAJORITY,
            Level.MAJORITY,
            (message,),
            bench.time,
            (Call(SiteId(999), 1, source, "c:1", 1, 0),),
        )
        (reply,) = bench.executor.deliver(delivery)
        assert refusal_of(reply) is Refusal.UNREADABLE
    assert bench.call("add", 0)


def founded_anew() -> Bench:
    """Like a new ``Bench`` slot by slot, in another chain than all of them have."""
    bench = Bench(Counter, announced=False)
    # The first view is taken back by hand: the other must have its slot, so that session ids could be equal.
    bench.executor.group.view = None
    bench.executor.group.applied = 0
    bench.ts = 1
    bench.executor.install(bench.ts, 78, VIEW, bench.time, locks_only=False)
    for site in SITES:
        bench.give([bench.executor.announcement(site, SessionLimits())], site)
    bench.session = envelope.session_of(bench.give([envelope.OPEN])[0])
    return bench


def test_when_a_client_outlives_its_group_then_the_next_group_does_not_know_its_session() -> None:
    old, new = Bench(Counter), founded_anew()
    assert old.ts == new.ts
    stranger = old.message("add", 1000)
    (reply,) = new.give([stranger])
    assert refusal_of(reply) is Refusal.SESSION_UNKNOWN
    assert new.call("add", 1) == 1, "the answer to the stranger's call, and this one is lost"
