"""Calls that are sent again: sessions that end, states that are taken over, and what is acknowledged."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ordering.errors import Overloaded
from rsm import envelope
from rsm.errors import OutcomeUnknown, Refusal
from rsm.sessions import SessionLimits
from tests.rsm.machines import Counter
from tests.rsm.test_calls import Ring, add, play, turn
from tests.rsm.test_executor import Bench

SESSION_UNKNOWN = envelope.REFUSED[Refusal.SESSION_UNKNOWN]
SESSION_900 = envelope.encode_reply(envelope.OkEncoded(900))


class ToldRing(Ring):
    """Says when it has taken something."""

    def __init__(self) -> None:
        super().__init__()
        self.told = asyncio.Event()

    def submit(self, messages: Sequence[bytes]) -> int:
        first = super().submit(messages)
        self.told.set()
        return first


async def ring_with_a_session() -> Ring:
    """Session 500, whose first call was answered."""
    ring = Ring()
    ring.calls.begin()
    ring.calls.execute(add())
    await turn()
    ring.apply()
    await turn()
    ring.apply()
    return ring


def test_when_the_session_of_a_call_that_was_sent_has_ended_then_another_session_does_not_send_it() -> None:
    async def main() -> None:
        ring = Ring()
        ring.calls.begin(b"announcement")
        first = ring.calls.execute(add())
        await turn()
        ring.apply()
        await turn()
        second = ring.calls.execute(add())
        await turn()
        # Both were ordered and executed, but the membership ends before this replica hears of it; the
        # session is evicted. As a new member it sends both again.
        ring.calls.pause()
        ring.calls.begin(b"again")
        assert ring.requests == [(500, 1, 0), (500, 2, 0)] * 2
        ring.calls.take(len(ring.taken) - 1, 2000, [SESSION_UNKNOWN], {})
        with pytest.raises(OutcomeUnknown):
            first.result()
        ring.calls.pause()  # this membership ends too, before it hears of the second
        ring.calls.begin(b"third")
        assert ring.taken[-1] == envelope.OPEN
        ring.calls.take(len(ring.taken), 3000, [SESSION_900], {})
        await turn()
        await turn()
        assert (900, 1) not in [request[:2] for request in ring.requests], "it was executed as (500, 2)"
        with pytest.raises(OutcomeUnknown):
            second.result()

    play(main())


def test_when_a_session_follows_another_then_its_first_call_acknowledges_nothing_of_that() -> None:
    async def main() -> None:
        ring = await ring_with_a_session()
        for _ in range(5):
            ring.calls.execute(add())
        await turn()
        assert [request[:2] for request in ring.requests[-5:]] == [(500, number) for number in range(2, 7)]
        # A client's answers come in any order. Here the last one's is first: the session has ended.
        ring.calls.take(len(ring.taken), 2000, [SESSION_UNKNOWN], {})
        await turn()
        assert ring.taken[-1] == envelope.OPEN
        ring.calls.take(len(ring.taken), 2001, [SESSION_900], {})
        await turn()
        await turn()
        session, number, acknowledged = ring.requests[-1]
        assert (session, number) == (900, 1)
        assert acknowledged == 0, "every replica would refuse it as old"

    play(main())


@pytest.mark.parametrize("how", ["not_ready", "unanswered"])
def test_when_a_session_could_not_be_opened_then_it_is_tried_again(how: str) -> None:
    async def main() -> None:
        ring = ToldRing()
        ring.calls.begin()
        future = ring.calls.execute(add())
        await turn()
        assert ring.taken == [envelope.OPEN]
        ring.told.clear()
        if how == "not_ready":
            ring.calls.take(1, 5, [envelope.REFUSED[Refusal.NOT_READY]], {})
        else:
            ring.calls.lose(1, OutcomeUnknown("UNANSWERED"))
        ring.calls.unblock()  # as a client does whenever it has heard something
        told = asyncio.ensure_future(ring.told.wait())
        either: list[asyncio.Future[Any]] = [told, future]
        await asyncio.wait(either, timeout=2, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        assert len(ring.taken) > 1 or future.done(), "nothing will ever send the call, or fail it"

    play(main())


def test_when_a_state_that_is_taken_over_has_no_reply_to_a_call_then_the_call_ends() -> None:
    async def main() -> None:
        ring = await ring_with_a_session()
        future = ring.calls.execute(add())
        await turn()
        assert ring.requests[-1][:2] == (500, 2)
        # This replica leaps over the slot of the call. It was refused there, or executed in a session that
        # was evicted before the donor's snapshot: no reply is kept, and none will be delivered here.
        ring.first = len(ring.taken)
        ring.calls.reconcile(lambda session, number: None)
        await turn()
        ring.apply(lambda read: SESSION_UNKNOWN)  # whatever is sent again finds no session
        await turn()
        assert future.done(), "it was never delivered here, and never sent again"
        with pytest.raises(OutcomeUnknown):
            future.result()

    play(main())


def test_when_a_call_was_given_up_before_another_membership_then_acknowledgements_go_on() -> None:
    async def main() -> None:
        ring = await ring_with_a_session()
        given_up = ring.calls.execute(add())
        await turn()
        assert ring.requests[-1][:2] == (500, 2)
        given_up.cancel()  # as its caller's timeout does
        ring.calls.pause()
        ring.calls.begin(b"again")
        ring.first = len(ring.taken)
        for _ in range(5):
            ring.calls.execute(add())
            await turn()
            ring.apply()
        await turn()
        _, number, acknowledged = ring.requests[-1]
        assert acknowledged >= number - 2, ring.requests[-1]

    play(main())


def test_when_a_call_was_given_up_before_there_was_room_then_acknowledgements_go_on() -> None:
    async def main() -> None:
        ring = await ring_with_a_session()
        ring.error = Overloaded("the window is full")
        late = ring.calls.execute(add())
        await turn()  # it has its number, and no room
        late.cancel()
        ring.error = None
        ring.calls.unblock()
        for _ in range(2):
            ring.calls.execute(add())
            await turn()
            ring.apply()
        assert ring.requests[1:] == [(500, 3, 2), (500, 4, 3)]

    play(main())


def test_when_a_clients_call_was_ordered_twice_then_no_other_session_executes_it() -> None:
    """The answer was lost with its member, the session is evicted, and a member that has joined since then,
    with an empty call table, orders the copy: that the session is unknown proves nothing."""

    async def main() -> None:
        ring, bench = Ring(), Bench(Counter)
        # Set by hand, so that another session evicts the one that is there.
        bench.executor.sessions.limits = SessionLimits(sessions_max=1)
        ring.calls.begin()
        future = ring.calls.execute(add(1))
        await turn()
        ring.calls.take(1, 9, bench.give([ring.taken[0]]), {})
        await turn()
        await turn()
        (lost,) = bench.give([ring.taken[1]])
        assert msgspec.msgpack.decode(envelope.value_of(lost)) == 1
        bench.give([envelope.OPEN])  # another client's
        (again,) = bench.give([ring.taken[1]], source=2)
        ring.calls.take(2, 20, [again], {}, once=False)
        await turn()
        await turn()
        for seq in (3, 4):  # a session and the call in it, if they are sent
            if len(ring.taken) >= seq:
                ring.calls.take(seq, 30, bench.give([ring.taken[seq - 1]]), {})
                await turn()
                await turn()
        machine = bench.executor.machine
        assert isinstance(machine, Counter)
        assert machine.value == 1, "executed twice"
        with pytest.raises(OutcomeUnknown):
            future.result()

    play(main())
