"""Calls of a replica's own process: batches, sessions, and what becomes of them when a membership ends."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
import pytest

from ordering.errors import MessageTooLarge, NoPrimary, NotMember, Overloaded, SubmitError
from rsm import envelope
from rsm.calls import RETRY_SECONDS, Calls
from rsm.errors import OutcomeUnknown, Refusal
from rsm.methods import Catalogue
from rsm.sessions import Answer, Session, SessionLimits, Sessions
from tests.rsm.machines import Counter

CATALOGUE = Catalogue(Counter)
LANGUAGE = envelope.Language(CATALOGUE)


class Ring:
    """Takes messages, and gives them back when told to."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.batches: list[int] = []
        self.first = 0
        self.error: SubmitError | None = None
        self.calls = Calls(
            LANGUAGE, self.submit, asyncio.get_running_loop(), outstanding_max=100, bytes_max=200
        )

    def submit(self, messages: Sequence[bytes]) -> int:
        if self.error is not None:
            raise self.error
        self.batches.append(len(messages))
        first = len(self.taken) + 1
        self.taken += messages
        return first

    def apply(self, reply: Callable[[Any], bytes] | None = None) -> None:
        """Everything that was taken is executed."""
        for seq in range(self.first + 1, len(self.taken) + 1):
            self.first = seq
            read = LANGUAGE.decode(self.taken[seq - 1])
            self.calls.take(seq, 1000 + seq, [(reply or answer)(read)], {})

    @property
    def requests(self) -> list[tuple[int, int, int]]:
        """(session, number, acknowledged) of all commands taken."""
        read = [LANGUAGE.decode(message) for message in self.taken]
        return [(each.session, each.number, each.acknowledged) for each in read if hasattr(each, "number")]


def answer(read: Any) -> bytes:
    value = 500 if isinstance(read, envelope.Open) else getattr(read, "number", None)
    return envelope.encode_reply(envelope.OkEncoded(value))


def add(number: int = 1) -> msgspec.Struct:
    return CATALOGUE.command("add").bind((number,), {})


def state_with(session: int, replies: dict[int, Answer]) -> Sessions:
    sessions = Sessions(SessionLimits())
    sessions.load([Session(session, 0, replies=replies)])
    return sessions


def play(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await main

    asyncio.run(bounded())


async def turn() -> None:
    await asyncio.sleep(0)


async def with_one_sent() -> "tuple[Ring, asyncio.Future[Answer]]":
    """Calls that have a session, and have sent one command in it."""
    ring = Ring()
    ring.calls.begin(b"announcement")
    first = ring.calls.execute(add())
    await turn()
    ring.apply()
    await turn()
    return ring, first


def value(future: "asyncio.Future[Answer]") -> int:
    decoded: int = msgspec.msgpack.decode(envelope.value_of(future.result().reply))
    return decoded


def test_when_calls_are_made_in_one_turn_then_they_travel_together_in_one_session() -> None:
    async def main() -> None:
        ring = Ring()
        futures = [ring.calls.execute(add()) for _ in range(5)]
        ring.calls.begin(b"announcement")
        assert ring.batches == [1, 1]  # who we are, and a session
        ring.apply()
        await turn()
        assert ring.batches == [1, 1, 5]
        ring.apply()
        assert [value(future) for future in futures] == [1, 2, 3, 4, 5]
        assert ring.requests == [(500, number, 0) for number in range(1, 6)]
        assert ring.calls.outstanding == 0

    play(main())


def test_when_answers_have_come_then_the_next_call_acknowledges_them() -> None:
    async def main() -> None:
        ring, _ = await with_one_sent()
        ring.apply()
        ring.calls.execute(add())
        ring.calls.execute(add())
        await turn()
        assert ring.requests == [(500, 1, 0), (500, 2, 1), (500, 3, 1)]

    play(main())


def test_when_a_membership_ends_then_calls_without_answer_go_out_again_as_they_were() -> None:
    async def main() -> None:
        ring, _ = await with_one_sent()
        second = ring.calls.execute(add())
        await turn()
        ring.calls.pause()
        waiting = ring.calls.execute(add())
        await turn()
        ring.calls.begin(b"again")
        assert ring.requests == [(500, 1, 0), (500, 2, 0), (500, 1, 0), (500, 2, 0), (500, 3, 0)]
        ring.apply()
        assert value(second) == 2
        assert value(waiting) == 3

    play(main())


def test_when_a_state_is_taken_over_then_what_it_contains_is_answered_from_it() -> None:
    async def main() -> None:
        ring, opening = await with_one_sent()
        later, barrier = ring.calls.execute(add()), ring.calls.barrier()
        await turn()
        before = len(ring.taken)
        ring.calls.reconcile(state_with(500, {1: Answer(77, answer(None))}).reply_to)
        assert opening.result().ts == 77
        await turn()
        assert ring.taken[before + 1 :] == [envelope.BARRIER], "behind the call, which may have been refused"
        assert ring.requests[-1][:2] == (500, 2)
        assert not later.done()
        ring.first = before
        ring.apply()
        assert value(later) == 2
        assert barrier.done()

    play(main())


def test_when_the_session_has_ended_then_a_call_that_was_sent_once_opens_another() -> None:
    async def main() -> None:
        ring, future = await with_one_sent()
        ring.apply(lambda read: envelope.REFUSED[Refusal.SESSION_UNKNOWN])
        await turn()
        ring.apply(lambda read: envelope.encode_reply(envelope.OkEncoded(900)))
        await turn()
        ring.apply()
        assert ring.requests == [(500, 1, 0), (900, 1, 0)]
        assert value(future) == 1

    play(main())


def test_when_the_session_of_a_call_that_was_sent_twice_has_ended_then_nothing_is_tried_again() -> None:
    async def main() -> None:
        ring, future = await with_one_sent()
        ring.calls.begin(b"again")
        ring.apply(lambda read: envelope.REFUSED[Refusal.SESSION_UNKNOWN])
        with pytest.raises(OutcomeUnknown):
            future.result()

    play(main())


def test_when_the_window_is_full_then_calls_wait_in_order() -> None:
    async def main() -> None:
        ring, first = await with_one_sent()
        ring.apply()
        ring.error = Overloaded("full")
        futures = [ring.calls.execute(add()) for _ in range(3)]
        await turn()
        assert not any(future.done() for future in futures)
        ring.error = None
        ring.calls.unblock()
        ring.apply()
        assert [value(future) for future in (first, *futures)] == [1, 2, 3, 4]

    play(main())


def test_when_there_is_no_primary_then_what_was_never_sent_is_refused_and_the_rest_unknown() -> None:
    async def main() -> None:
        ring, sent = await with_one_sent()
        ring.error = NoPrimary("no majority")
        fresh = ring.calls.execute(add())
        await turn()
        assert isinstance(fresh.exception(), NoPrimary)
        ring.calls.begin(b"again")
        assert isinstance(sent.exception(), OutcomeUnknown)
        ring.error = None
        again = ring.calls.execute(add())
        while not again.done():
            await asyncio.sleep(0.01)
            ring.apply()
        assert value(again) == 3
        assert ring.taken.count(b"again") == 1, "who we are is said as soon as somebody takes it"

    play(main())


def test_when_a_call_is_too_large_then_it_alone_is_refused() -> None:
    async def main() -> None:
        ring = Ring()
        ring.calls.begin(b"announcement")
        small, large = ring.calls.execute(add()), ring.calls.execute(b"x" * 300)
        await turn()
        ring.apply()
        await turn()
        ring.apply()
        assert value(small) == 1
        assert isinstance(large.exception(), MessageTooLarge)

    play(main())


def test_when_the_replica_is_over_then_every_call_has_an_end() -> None:
    async def main() -> None:
        ring, sent = await with_one_sent()
        ring.calls.pause()
        waiting = ring.calls.execute(add())
        ring.calls.fail(NotMember("stopped"))
        assert isinstance(sent.exception(), OutcomeUnknown)
        assert isinstance(waiting.exception(), NotMember)
        with pytest.raises(NotMember, match="takes no calls any more"):
            ring.calls.execute(add())

    play(main())


def test_when_reads_are_asked_for_in_one_turn_then_they_share_a_barrier() -> None:
    async def main() -> None:
        ring = Ring()
        ring.calls.begin(b"announcement")
        ring.apply()
        first, second = ring.calls.barrier(), ring.calls.barrier()
        await turn()
        third = ring.calls.barrier()
        await turn()
        assert first is second
        assert ring.taken[1:] == [envelope.BARRIER] * 2
        ring.apply()
        assert first.done()
        assert third.done()

    play(main())


def test_when_the_session_has_ended_in_a_state_that_is_taken_over_then_the_outcome_is_unknown() -> None:
    async def main() -> None:
        ring, leapt = await with_one_sent()
        ring.calls.reconcile(state_with(900, {}).reply_to)
        await turn()
        ring.apply(lambda read: envelope.REFUSED[Refusal.SESSION_UNKNOWN])
        assert isinstance(leapt.exception(), OutcomeUnknown)

    play(main())


def test_when_a_call_was_given_up_then_later_ones_acknowledge_it() -> None:
    async def main() -> None:
        ring, given_up = await with_one_sent()
        given_up.cancel()
        ring.calls.begin(b"again")
        ring.calls.execute(add())
        unsent = ring.calls.execute(add())
        unsent.cancel()
        await turn()
        assert ring.requests == [(500, 1, 0), (500, 2, 1)]

    play(main())


@pytest.mark.parametrize("error", [NoPrimary("no majority"), NotMember("not any more")])
def test_when_the_membership_ends_while_something_is_to_be_tried_again_then_nothing_is_lost(
    error: SubmitError,
) -> None:
    async def main() -> None:
        ring, first = await with_one_sent()
        ring.error = error
        ring.calls.begin(b"again")  # refused, and due again soon
        ring.calls.pause()
        waiting = ring.calls.execute(add())
        ring.error = NotMember("the membership is over")
        await asyncio.sleep(2 * RETRY_SECONDS)
        assert not waiting.done()
        ring.error = None
        ring.calls.begin(b"once more")
        ring.apply()
        assert value(waiting) == 2
        assert isinstance(error, NoPrimary) == isinstance(first.exception(), OutcomeUnknown)

    play(main())


def test_when_the_engine_says_first_that_this_is_no_member_then_calls_wait_for_the_next_membership() -> None:
    async def main() -> None:
        ring, first = await with_one_sent()
        ring.error = NotMember("not any more")
        second = ring.calls.execute(add())
        await turn()
        assert not second.done()
        ring.calls.pause()
        ring.error = None
        ring.calls.begin(b"again")
        ring.apply()
        assert (value(first), value(second)) == (1, 2)

    play(main())
