"""Exactly once, whatever is repeated, late or out of order (R12)."""

from hypothesis import given
from hypothesis import strategies as st

from rsm.errors import Refusal
from rsm.sessions import MS, Answer, Session, SessionLimits, Sessions

LIMITS = SessionLimits(session_ms=1000, sessions_max=3, requests_max=4, reply_bytes_max=100)


def opened(at: int = 0) -> tuple[Sessions, int]:
    sessions = Sessions(LIMITS)
    return sessions, sessions.open(10, at)


def executed(
    sessions: Sessions, session: int, number: int, reply: bytes = b"r", acknowledged: int = 0
) -> None:
    found = sessions.use(session, number, acknowledged, 0)
    assert isinstance(found, Session)
    found.keep(number, number, reply)


def test_when_a_request_comes_again_then_its_reply_comes_from_memory() -> None:
    sessions, session = opened()
    executed(sessions, session, 1, b"one")
    assert sessions.use(session, 1, 0, 0) == Answer(1, b"one")


def test_when_requests_come_out_of_order_then_each_is_executed_once() -> None:
    sessions, session = opened()
    executed(sessions, session, 3, b"three")
    executed(sessions, session, 1, b"one")
    assert sessions.use(session, 3, 0, 0) == Answer(3, b"three")
    assert sessions.use(session, 1, 0, 0) == Answer(1, b"one")


def test_when_a_late_copy_comes_after_the_acknowledgement_then_it_is_not_executed() -> None:
    sessions, session = opened()
    executed(sessions, session, 1)
    executed(sessions, session, 2, acknowledged=1)
    assert sessions.use(session, 1, 0, 0) is Refusal.OLD
    assert sessions.use(session, 1, 1, 0) is Refusal.OLD


def test_when_a_session_was_never_opened_then_nothing_is_executed() -> None:
    sessions, session = opened()
    assert sessions.use(session + 1, 1, 0, 0) is Refusal.SESSION_UNKNOWN
    assert sessions.close(session)
    assert not sessions.close(session)
    assert sessions.use(session, 1, 0, 0) is Refusal.SESSION_UNKNOWN


def test_when_a_session_is_idle_for_too_long_then_it_has_ended() -> None:
    sessions, session = opened()
    assert isinstance(sessions.use(session, 1, 0, 999 * MS), Session)
    assert isinstance(sessions.use(session, 1, 0, 1998 * MS), Session)
    assert sessions.use(session, 1, 0, 2998 * MS) is Refusal.SESSION_UNKNOWN
    assert len(sessions) == 0


def test_when_there_are_too_many_then_the_least_recently_used_goes() -> None:
    sessions = Sessions(LIMITS)
    for ts in (1, 2, 3):
        sessions.open(ts, 0)
    executed(sessions, 1, 1)
    sessions.open(4, 0)
    assert sessions.use(2, 1, 0, 0) is Refusal.SESSION_UNKNOWN
    assert sessions.use(1, 1, 0, 0) == Answer(1, b"r")


def test_when_a_client_acknowledges_nothing_then_it_is_held_back() -> None:
    sessions, session = opened()
    for number in range(1, 5):
        executed(sessions, session, number)
    assert sessions.use(session, 5, 0, 0) is Refusal.SESSION_FULL
    assert sessions.use(session, 4, 0, 0) == Answer(4, b"r")
    executed(sessions, session, 5, b"x" * 200, acknowledged=4)
    assert sessions.use(session, 6, 0, 0) is Refusal.SESSION_FULL
    executed(sessions, session, 6, acknowledged=5)


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), max_size=60))
def test_whatever_order_requests_come_in_then_none_is_executed_twice(arrivals: list[tuple[int, int]]) -> None:
    sessions = Sessions(SessionLimits())
    session = sessions.open(1, 0)
    runs: dict[int, int] = {}
    acknowledged = 0
    for number, known in arrivals:
        found = sessions.use(session, number, known, 0)
        acknowledged = max(acknowledged, known)
        if isinstance(found, Session):
            assert number > acknowledged
            runs[number] = runs.get(number, 0) + 1
            found.keep(number, 100 + number, b"%d" % number)
        elif isinstance(found, Answer):
            assert found == Answer(100 + number, b"%d" % number)
            assert runs[number] == 1
        else:
            assert found is Refusal.OLD
            assert number <= acknowledged
    assert set(runs.values()) <= {1}
    (kept,) = sessions.dump()
    assert kept.reply_bytes == sum(len(each.reply) for each in kept.replies.values())


def test_when_sessions_are_put_into_a_snapshot_then_they_go_on_alike() -> None:
    sessions, session = opened()
    executed(sessions, session, 1, b"one")
    sessions.open(20, 5)
    copy = Sessions(LIMITS)
    copy.load(sessions.dump())
    assert copy.use(session, 1, 0, 6) == Answer(1, b"one")
    assert [each.id for each in copy.dump()] == [20, session]
