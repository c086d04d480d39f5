"""Operations: what may be registered, how a call becomes bytes, and what becomes of it at a site."""

from typing import Annotated, Any, Final

import msgspec
import pytest

from apps.actions.errors import OperationDefect, OperationFailed, ResultChanged
from apps.actions.operations import Operations, seen_of, shown, values_of
from apps.actions.types import Operation
from rsm.errors import InvalidCall, Rejected

Positive = Annotated[int, msgspec.Meta(gt=0)]
Accounts = dict[str, int]

bank: Final = Operations()


@bank.operation(keys=("account",))
def debit(accounts: Accounts, account: str, amount: Positive) -> int:
    if accounts[account] < amount:
        raise Rejected("too little is there", {"there": accounts[account]})
    accounts[account] -= amount
    return accounts[account]


@bank.operation(keys=("source", "targets"))
def spread(accounts: Accounts, source: int, *, targets: list[str] = []) -> set[str]:  # noqa: B006 - empty
    return {str(source), *targets}


@bank.operation
def audit(accounts: Accounts) -> int:
    return sum(accounts.values())


@bank.operation(keys=())
def note(accounts: Accounts) -> int:
    return "x"  # type: ignore[return-value]


call: Any = debit  # for calls that mypy would not have


def test_when_an_operation_is_called_then_it_is_bound_and_nothing_is_carried_out() -> None:
    bound = debit("alice", amount=10)
    assert bound.at("site-a") == Operation("site-a", "debit", bound.arguments, ("alice",))
    assert msgspec.msgpack.decode(bound.arguments) == ["debit", "alice", 10]
    assert repr(bound) == "<operation debit('alice', 10)>"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: call("alice", "ten"), r"debit: Expected `int`, got `str` - at `amount`"),
        (lambda: call("alice", 0), r"debit: Expected `int` >= 1 - at `amount`"),
        (lambda: call("alice"), "debit: missing argument 'amount'"),
        (lambda: call("alice", 1, 2), "debit: takes 2 arguments, was given 3"),
        (lambda: call("alice", 1, fee=2), "debit: .*'fee'"),
    ],
)
def test_when_arguments_are_wrong_then_the_message_names_them(wrong: Any, words: str) -> None:
    with pytest.raises(InvalidCall, match=words):
        wrong()


def test_when_keys_are_taken_from_arguments_then_each_is_there_once_and_as_text() -> None:
    assert spread(7, targets=["b", "c", "b", "7"]).keys == ("7", "b", "c")
    assert spread(7).keys == ("7",)
    assert audit().keys is None
    assert note().keys == ()


def test_when_a_key_is_of_another_kind_then_it_is_text_or_refused() -> None:
    more = Operations()

    @more.operation(keys=("key",))
    def touch(subject: None, key: bytes | float | bool | None) -> None: ...

    assert touch(b"\x01\xff").keys == ("01ff",)
    assert touch(None).keys == ()
    for value in (1.5, True):
        with pytest.raises(InvalidCall, match=r"touch: key: \w+ is no key; a key is a str, an int"):
            touch(value)


def test_when_operations_are_carried_out_then_results_come_encoded_and_as_their_types() -> None:
    accounts = {"alice": 15}
    calls = [debit("alice", 10), spread(1, targets=["2"]), audit()]
    results = bank.carry_out(accounts, [call.at("a") for call in calls])
    assert [call.result(each) for call, each in zip(calls, results, strict=True)] == [5, {"1", "2"}, 5]
    assert results[1] == bank.carry_out(accounts, [spread(2, targets=["1"]).at("a")])[0]  # whatever order


def test_when_an_operation_refuses_then_that_comes_as_it_was_raised() -> None:
    with pytest.raises(Rejected, match="too little") as told:
        bank.carry_out({"alice": 5}, [debit("alice", 10).at("a")])
    assert told.value.detail == {"there": 5}


@pytest.mark.parametrize(
    ("operation", "kind", "words"),
    [
        (debit("nobody", 1).at("a"), "KeyError", "'nobody'"),
        (
            note().at("a"),
            "OperationDefect",
            "note: its result is not what its annotation says: Expected `int`",
        ),
        (Operation("a", "credit", b"\x91\xa6credit"), "InvalidCall", "credit: is no operation of this site"),
        (Operation("a", "debit", b"\x93\xa5debit\x01\x01"), "InvalidCall", "at `account`"),
        (Operation("a", "debit", b"\xc1"), "InvalidCall", "debit: "),
        (Operation("a", "audit", debit("a", 1).arguments), "InvalidCall", "audit: Invalid value 'debit'"),
    ],
)
def test_when_an_operation_fails_then_the_kind_is_told(operation: Operation, kind: str, words: str) -> None:
    with pytest.raises(OperationFailed, match=words) as told:
        bank.carry_out({}, [operation])
    assert told.value.kind == kind


def test_when_a_result_is_not_what_was_seen_then_it_is_said_that_it_changed() -> None:
    (five,) = bank.carry_out({"alice": 15}, [debit("alice", 10).at("a")])
    again = debit("alice", 10).at("a", seen_of(five))
    assert bank.carry_out({"alice": 15}, [again]) == [five]
    with pytest.raises(ResultChanged, match="somebody else was faster"):
        bank.carry_out({"alice": 16}, [again])


def test_when_a_site_answers_what_is_not_the_result_then_it_is_said() -> None:
    with pytest.raises(OperationFailed, match="not what is expected here"):
        audit().result(msgspec.msgpack.encode("five"))


# -- what may be registered ----------------------------------------------------------------------


def unannotated(subject: None, key) -> None: ...  # type: ignore[no-untyped-def]


def resultless(subject: None, key: str): ...  # type: ignore[no-untyped-def]


def variadic(subject: None, *keys: str) -> None: ...


def plain(subject: None, key: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "keys", "words"),
    [
        (unannotated, None, "unannotated: argument key has no annotation"),
        (resultless, None, "resultless: has no result annotation"),
        (variadic, None, r"variadic: \*keys: pass a list"),
        (plain, ("keys",), "plain: keys: keys is no argument; there are: key"),
        (plain, "key", r"keys: 'key' is one name; write \('key',\)"),
    ],
)
def test_when_a_function_cannot_be_an_operation_then_it_is_refused(
    function: Any, keys: Any, words: str
) -> None:
    with pytest.raises(OperationDefect, match=words):
        Operations().operation(keys=keys)(function)


def test_when_a_name_is_taken_then_the_second_is_refused() -> None:
    with pytest.raises(OperationDefect, match="debit: there is an operation of this name"):
        bank.operation(debit.function)


def test_when_arguments_are_shown_then_those_of_another_encoding_stay_as_they_are() -> None:
    bound = debit("alice", 10)
    assert values_of(bound.arguments) == ["alice", 10]
    assert shown("debit", bound.arguments) == "debit('alice', 10)"
    assert values_of(b"\xc1not ours") == [b"\xc1not ours"]
    assert values_of(b"\x90") == [b"\x90"]
