"""The checkers themselves: against brute force on tiny histories, and against histories known to be bad."""

from itertools import combinations, permutations
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ordering.config import MS
from rsm import envelope
from rsm.errors import Rejected
from rsm.linearizability import (
    NEVER,
    Executed,
    Installed,
    Judgement,
    Model,
    Operation,
    Outcome,
    Passed,
    Slot,
    black_box,
    outcome_of,
    same_reply,
    witness,
)
from rsm.state_machine import GroupView, StateMachine, command, query
from tests.rsm.machines import Counter, Echo, Ledger, Timers


class Registers(StateMachine):
    """A few registers; enough for every anomaly."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}

    @command
    def put(self, name: str, value: int) -> None:
        self.values[name] = value

    @command
    def swap(self, name: str, value: int) -> int:
        old = self.values.get(name, 0)
        self.values[name] = value
        return old

    @command(atomic=True)
    def replace(self, name: str, old: int, value: int) -> None:
        found = self.values.get(name, 0)
        self.values[name] = value
        if found != old:
            raise Rejected("another value is there", found)

    @query
    def get(self, name: str) -> int:
        return self.values.get(name, 0)


class Dice(StateMachine):
    @command
    def roll(self) -> int:
        return self.context.random.randrange(1000)


def encoded(machine: type[StateMachine], method: str, *args: Any) -> bytes:
    if method == "apply":
        return msgspec.msgpack.encode(args[0])
    catalogue = Model(machine).catalogue
    found = catalogue.queries.get(method) or catalogue.command(method)
    return msgspec.msgpack.encode(found.bind(args, {}))


def ok(value: object) -> bytes:
    return envelope.encode_reply(envelope.OkEncoded(value))


class Book:
    """Writes histories: ``book("put", "x", 1, at=(0, 5), gives=None, ts=3)``."""

    def __init__(self, machine: type[StateMachine] = Registers) -> None:
        self.machine = machine
        self.operations: list[Operation] = []

    def __call__(
        self, method: str, *args: Any, at: tuple[int, int], gives: object = None, ts: int = 0, client: int = 0
    ) -> Operation:
        reply = gives if isinstance(gives, bytes) else ok(gives)
        number = len(self.operations) + 1
        self.operations.append(
            Operation(
                client=client or number,
                request=number,
                method=method,
                arguments=encoded(self.machine, method, *args),
                call_ns=at[0],
                return_ns=at[1],
                outcome=outcome_of(reply) or Outcome.UNKNOWN,
                ts=ts,
                reply=reply,
            )
        )
        return self.operations[-1]

    def lost(self, method: str, *args: Any, at: int) -> Operation:
        number = len(self.operations) + 1
        arguments = encoded(self.machine, method, *args)
        self.operations.append(
            Operation(client=number, request=number, method=method, arguments=arguments, call_ns=at)
        )
        return self.operations[-1]

    def search(self, **options: Any) -> Judgement:
        return black_box(self.operations, self.machine, **options).judgement

    def executed(self, operation: Operation, ts: int) -> Executed:
        return Executed(ts, operation.client, operation.request, operation.method, operation.arguments)


# -- brute force ---------------------------------------------------------------------------------


def explained(operations: list[Operation], machine: type[StateMachine]) -> bool:
    """Try every subset of the unknown ones, and every order."""
    unknown = [each for each in operations if each.outcome is Outcome.UNKNOWN]
    known = [each for each in operations if each.outcome is not Outcome.UNKNOWN]
    return any(
        _fits(order, machine)
        for count in range(len(unknown) + 1)
        for chosen in combinations(unknown, count)
        for order in permutations((*known, *chosen))
    )


def _fits(order: tuple[Operation, ...], machine_type: type[StateMachine]) -> bool:
    for place, each in enumerate(order):
        if any(later.return_ns < each.call_ns for later in order[place + 1 :]):
            return False
    model, machine = Model(machine_type), machine_type()
    for each in order:
        before = b"".join(machine.snapshot())
        reply = model.call(machine, each.method, model.bind(each.method, each.arguments))
        if each.reply and not same_reply(each.reply, reply):
            return False
        if model.is_atomic(each.method) and outcome_of(reply) is not Outcome.OK:
            machine = machine_type()
            machine.restore([before])
    return True


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    book = Book()
    value = st.integers(0, 2)
    for _ in range(draw(st.integers(1, 5))):
        call = draw(st.integers(0, 8))
        back = call + draw(st.integers(0, 6))
        method = draw(st.sampled_from(("put", "swap", "replace", "get")))
        name = draw(st.sampled_from("xy"))
        count = {"put": 1, "swap": 1, "replace": 2, "get": 0}[method]
        args = (name, *(draw(value) for _ in range(count)))
        if draw(st.integers(0, 4)) == 0:
            book.lost(method, *args, at=call)
            continue
        gives: object = draw(value) if method in {"swap", "get"} else None
        if method == "replace" and draw(st.booleans()):
            refused = envelope.RejectedReply("another value is there", draw(value))
            gives = envelope.encode_reply(refused)
        book(method, *args, at=(call, back), gives=gives)
    return book.operations


@given(histories())
@settings(max_examples=300, deadline=None)
def test_when_a_tiny_history_is_searched_then_the_verdict_is_that_of_all_permutations(
    history: list[Operation],
) -> None:
    expected = Judgement.LINEARIZABLE if explained(history, Registers) else Judgement.VIOLATION
    assert black_box(history, Registers).judgement is expected
    by_key = black_box(history, Registers, key=lambda _, arguments: arguments[0])
    assert by_key.judgement is expected


@given(st.integers(0, 1 << 30))
@settings(max_examples=60, deadline=None)
def test_when_a_history_was_made_by_one_machine_then_both_checks_accept_it(seed: int) -> None:
    operations, executed = made(Random(seed), 60)
    assert witness(operations, Registers, executed=executed) == []
    assert black_box(operations, Registers).judgement is Judgement.LINEARIZABLE


@given(st.integers(0, 1 << 30))
@settings(max_examples=60, deadline=None)
def test_when_the_search_finds_a_tampered_history_then_so_does_the_witness(seed: int) -> None:
    rng = Random(seed)
    operations, executed = made(rng, 30)
    known = [each for each in operations if each.method in {"get", "swap"} and each.reply]
    victim = rng.choice(known or operations)
    place = operations.index(victim)
    operations[place] = msgspec.structs.replace(victim, reply=ok(99), outcome=Outcome.OK)
    assert black_box(operations, Registers).judgement is Judgement.VIOLATION
    assert witness(operations, Registers, executed=executed)


def made(rng: Random, count: int) -> tuple[list[Operation], list[Executed]]:
    """What callers of a perfect service see: each takes effect at a moment within its interval."""
    model, machine = Model(Registers), Registers()
    operations: list[Operation] = []
    executed: list[Executed] = []
    for moment in range(1, count + 1):
        method = rng.choice(("put", "swap", "get", "get"))
        args: tuple[Any, ...] = (rng.choice("xyz"), *((rng.randrange(4),) if method != "get" else ()))
        arguments = encoded(Registers, method, *args)
        reply = model.call(machine, method, model.bind(method, arguments))
        call, back = 10 * moment - rng.randrange(40), 10 * moment + rng.randrange(40)
        unknown = rng.random() < 0.1
        if method != "get":
            executed.append(Executed(moment, 1, moment, method, arguments))
        operations.append(
            Operation(
                client=1,
                request=moment,
                method=method,
                arguments=arguments,
                call_ns=call,
                return_ns=NEVER if unknown else back,
                outcome=Outcome.UNKNOWN if unknown else Outcome.OK,
                ts=0 if unknown else moment,
                reply=b"" if unknown else reply,
            )
        )
    return operations, executed


# -- known to be bad -----------------------------------------------------------------------------


def test_when_a_read_is_stale_then_both_checks_say_so() -> None:
    book = Book()
    book("put", "x", 1, at=(0, 10), ts=1)
    book("put", "x", 2, at=(20, 30), ts=2)
    book("get", "x", at=(40, 50), gives=1, ts=1)
    assert book.search() is Judgement.VIOLATION
    (problem,) = witness(book.operations, Registers)
    assert "get('x') → 1" in problem
    assert "had returned" in problem


def test_when_an_update_is_lost_then_both_checks_say_so() -> None:
    book = Book(Counter)
    book("add", 1, at=(0, 10), gives=1, ts=1)
    book("add", 1, at=(5, 15), gives=1, ts=2)
    assert book.search() is Judgement.VIOLATION
    assert any("one machine gives 2" in problem for problem in witness(book.operations, Counter))


def test_when_a_request_is_executed_twice_then_both_checks_say_so() -> None:
    book = Book(Counter)
    add = book("add", 5, at=(0, 10), gives=5, ts=1)
    book("get", at=(20, 30), gives=10, ts=2)
    assert book.search() is Judgement.VIOLATION
    problems = witness(book.operations, Counter, executed=[book.executed(add, 1), book.executed(add, 2)])
    assert any("executed twice: at 1 and at 2" in problem for problem in problems)


def test_when_an_effect_is_seen_before_its_call_then_both_checks_say_so() -> None:
    book = Book()
    book("get", "x", at=(0, 10), gives=7, ts=5)
    book("put", "x", 7, at=(20, 30), ts=4)
    assert book.search() is Judgement.VIOLATION
    assert any("had returned" in problem for problem in witness(book.operations, Registers))


def test_when_two_readers_disagree_on_the_order_of_writes_then_the_search_says_so() -> None:
    book = Book()
    book("put", "x", 1, at=(0, 100))
    book("put", "x", 2, at=(0, 100))
    book("get", "x", at=(10, 20), gives=1, client=1)
    book("get", "x", at=(30, 40), gives=2, client=1)
    assert book.search() is Judgement.LINEARIZABLE
    book("get", "x", at=(50, 60), gives=1, client=2)
    assert book.search() is Judgement.VIOLATION


def test_when_an_answered_command_was_nowhere_executed_then_the_witness_says_so() -> None:
    book = Book(Counter)
    book("add", 1, at=(0, 10), gives=1, ts=1)
    assert any("nowhere executed" in problem for problem in witness(book.operations, Counter, executed=[]))


def test_when_a_command_was_executed_with_other_arguments_then_the_witness_says_so() -> None:
    book = Book(Counter)
    add = book("add", 1, at=(0, 10), gives=1, ts=1)
    other = book.executed(add, 1)._replace(arguments=encoded(Counter, "add", 2))
    assert any("as add(2)" in problem for problem in witness(book.operations, Counter, executed=[other]))


def test_when_there_is_a_violation_then_the_explanation_names_the_first_answer_that_does_not_fit() -> None:
    book = Book()
    book("put", "x", 1, at=(0, 10))
    book("put", "y", 3, at=(15, 45))
    book("get", "x", at=(20, 30), gives=9)
    book("get", "x", at=(40, 50), gives=8)
    verdict = black_box(book.operations, Registers)
    assert verdict.explanation.startswith("no order explains get('x') → 9")
    assert "the answer would be 1." in verdict.explanation
    assert "put('y', 3)" in verdict.explanation


# -- what is unknown -----------------------------------------------------------------------------


def test_when_the_outcome_is_unknown_then_it_may_take_effect_much_later_or_never() -> None:
    book = Book()
    book.lost("put", "x", 1, at=0)
    book("get", "x", at=(10, 20), gives=0)
    assert book.search() is Judgement.LINEARIZABLE
    book("get", "x", at=(1000, 1010), gives=1)
    assert book.search() is Judgement.LINEARIZABLE
    book("get", "x", at=(2000, 2010), gives=0)
    assert book.search() is Judgement.VIOLATION


def test_when_the_outcome_is_unknown_then_it_cannot_take_effect_before_its_call() -> None:
    book = Book()
    book("get", "x", at=(0, 10), gives=1)
    book.lost("put", "x", 1, at=20)
    assert book.search() is Judgement.VIOLATION


def test_when_an_unknown_command_was_executed_then_the_witness_replays_it_in_its_place() -> None:
    book = Book(Counter)
    lost = book.lost("add", 5, at=0)
    add = book("add", 1, at=(10, 20), gives=6, ts=2)
    assert witness(book.operations, Counter)
    assert witness(book.operations, Counter, executed=[book.executed(lost, 1), book.executed(add, 2)]) == []


def test_when_an_unknown_command_stands_before_what_had_returned_then_the_witness_says_so() -> None:
    book = Book(Counter)
    add = book("add", 1, at=(0, 10), gives=6, ts=2)
    lost = book.lost("add", 5, at=20)
    problems = witness(book.operations, Counter, executed=[book.executed(lost, 1), book.executed(add, 2)])
    assert any("had returned" in problem for problem in problems)


def test_when_much_is_unknown_and_explains_nothing_then_the_search_stays_small() -> None:
    book = Book()
    for number in range(40):
        book.lost("put", f"n{number}", 1, at=number)
    for number in range(200):
        book("swap", "x", number + 1, at=(100 + 10 * number, 105 + 10 * number), gives=number)
    verdict = black_box(book.operations, Registers, states_max=1000)
    assert verdict.judgement is Judgement.LINEARIZABLE
    assert verdict.states <= 200


def test_when_there_are_too_many_states_then_the_search_gives_up_and_says_so() -> None:
    book = Book()
    for number in range(20):
        book("put", f"n{number}", 1, at=(0, 100))
    book("get", "x", at=(50, 60), gives=1)
    verdict = black_box(book.operations, Registers, states_max=500)
    assert verdict.judgement is Judgement.GAVE_UP
    assert verdict.explanation == "more than 500 states"
    by_key = black_box(book.operations, Registers, states_max=500, key=lambda _, arguments: arguments[0])
    assert by_key.judgement is Judgement.VIOLATION


# -- machines of all kinds -----------------------------------------------------------------------


def test_when_commands_are_rejected_or_fail_then_their_effects_are_judged_too() -> None:
    book = Book(Counter)
    rejected = envelope.encode_reply(envelope.RejectedReply("too little is there", {"there": 0}))
    failed = envelope.encode_reply(envelope.FailedReply("KeyError", "<object object at 0x…> 3"))
    book("subtract", 1, at=(0, 10), gives=rejected, ts=1)
    book("break_down", 3, at=(20, 30), gives=failed, ts=2)
    book("get", at=(40, 50), gives=3, ts=2)
    assert book.search() is Judgement.LINEARIZABLE
    assert witness(book.operations, Counter) == []


def test_when_an_atomic_command_is_rejected_then_it_has_changed_nothing() -> None:
    book = Book()
    rejected = envelope.encode_reply(envelope.RejectedReply("another value is there", 0))
    book("replace", "x", 5, 6, at=(0, 10), gives=rejected, ts=1)
    book("get", "x", at=(20, 30), gives=0, ts=1)
    book("put", "x", 5, at=(40, 50), ts=2)
    book("replace", "x", 5, 6, at=(60, 70), ts=3)
    book("get", "x", at=(80, 90), gives=6, ts=3)
    assert book.search() is Judgement.LINEARIZABLE
    assert witness(book.operations, Registers) == []


def test_when_a_machine_takes_raw_bytes_then_they_are_judged_too() -> None:
    book = Book(Echo)
    book("apply", b"ab", at=(0, 10), gives=ok(b"ba"), ts=1)
    assert book.search() is Judgement.LINEARIZABLE
    assert witness(book.operations, Echo) == []


def test_when_a_machine_uses_its_context_then_the_witness_has_it_and_the_search_gives_up() -> None:
    view = GroupView(1, 77, 1, 0, (), (), (), {})
    rolled = Random("77 2").randrange(1000)
    book = Book(Dice)
    roll = book("roll", at=(0, 10), gives=rolled, ts=2)
    order: list[Executed | Installed] = [Installed(1, view), book.executed(roll, 2)]
    assert witness(book.operations, Dice, executed=order) == []
    verdict = black_box(book.operations, Dice)
    assert (verdict.judgement, verdict.explanation) == (Judgement.GAVE_UP, "the machine uses context.random")


def test_when_a_machine_looks_at_views_then_the_witness_shows_them_in_their_place() -> None:
    view = GroupView(1, 77, 1, 0, (), (), (), {})
    book = Book(Ledger)
    note = book("note", at=(0, 10), gives=2, ts=2)
    order: list[Executed | Installed] = [Installed(1, view, 5), book.executed(note, 2)._replace(time_ns=9)]
    assert witness(book.operations, Ledger, executed=order) == []


@pytest.mark.parametrize(("time_ns", "gone"), [(9 * MS, []), (10 * MS, [("a", 2)])])
def test_when_time_alone_changes_a_machine_then_the_witness_wakes_it_in_its_place(
    time_ns: int, gone: list[tuple[str, int]]
) -> None:
    book = Book(Timers)
    sets = book("set", "a", 10, at=(0, 10), gives=1, ts=1)
    book("went_off", at=(20, 30), gives=gone, ts=2)
    order: list[Slot] = [Passed(2, time_ns), book.executed(sets, 1)]
    assert witness(book.operations, Timers, executed=order) == []
    assert witness(book.operations, Timers, executed=[Passed(2, 19 * MS - time_ns), order[1]]) != []


@pytest.mark.parametrize("count", [0, 1])
def test_when_there_is_hardly_a_history_then_it_is_linearizable(count: int) -> None:
    book = Book()
    for _ in range(count):
        book.lost("put", "x", 1, at=0)
    assert book.search() is Judgement.LINEARIZABLE
    assert witness(book.operations, Registers) == []
