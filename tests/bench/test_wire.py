"""Hashing of what applications receive."""

import pytest

from bench.errors import BenchError
from bench.wire import Content, same


def digest(*batches: list[bytes]) -> str:
    content = Content()
    for batch in batches:
        content.add(batch)
    return content.digest


@pytest.mark.parametrize("size", [16, 10_000])
def test_when_the_same_messages_come_in_other_batches_then_the_digest_is_the_same(size: int) -> None:
    a, b, c = (letter * size for letter in (b"a", b"b", b"c"))
    assert digest([a, b, c]) == digest([a], [b, c]) == digest([a, b], [], [c])


def test_when_two_messages_change_places_then_the_digest_differs() -> None:
    assert digest([b"one", b"two"]) != digest([b"two", b"one"])


def test_when_a_message_is_cut_in_two_then_the_digest_differs() -> None:
    assert digest([b"onetwo"]) != digest([b"one", b"two"])


def test_when_members_differ_then_there_is_no_result() -> None:
    assert same(["x", "x"], "ring") == "x"
    with pytest.raises(BenchError, match="ring: members received different content"):
        same(["x", "x", "y"], "ring")
