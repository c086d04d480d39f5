"""Was this request executed before? (R12)

Sessions are part of the replicated state: they begin, answer and end at the same slots everywhere. Time is
slot time, and passes only where something is applied.
"""

from itertools import takewhile
from typing import Final, NamedTuple

import msgspec

from rsm.errors import Refusal

MS: Final = 1_000_000


class SessionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Part of the group's state: those of the first announcement hold."""

    session_ms: int = 10 * 60 * 1000
    sessions_max: int = 10_000
    requests_max: int = 65_536  # of one session, that its client has not acknowledged
    reply_bytes_max: int = 16 * 1024 * 1024


class Answer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A reply, and where the request was executed."""

    ts: int
    reply: bytes


class Origin(NamedTuple):
    """Which replica has answered, by its address, and in which view."""

    replica: str
    view: str


class Told(Answer, frozen=True, array_like=True, gc=False):
    """An answer that has come from a replica; ``site`` is its id."""

    site: int
    view: str


class Session(msgspec.Struct):
    """``replies`` are those above ``acknowledged``, by request number, in the order of execution."""

    id: int
    used_at: int
    acknowledged: int = 0
    reply_bytes: int = 0
    replies: dict[int, Answer] = {}

    def acknowledge(self, number: int) -> None:
        """Forget the oldest replies up to ``number``. One that was executed out of turn may stay behind a
        younger one for a while: it is not given out any more."""
        self.acknowledged = number
        take = self.replies.pop
        gone = [len(take(each).reply) for each in list(takewhile(number.__ge__, self.replies))]
        self.reply_bytes -= sum(gone)

    def keep(self, number: int, ts: int, reply: bytes) -> None:
        self.replies[number] = Answer(ts, reply)
        self.reply_bytes += len(reply)


class Sessions:
    """All open ones, the least recently used first."""

    def __init__(self, limits: SessionLimits) -> None:
        self.limits = limits
        self._open: dict[int, Session] = {}
        self._latest: Session | None = None

    def __len__(self) -> int:
        return len(self._open)

    def has(self, session: int) -> bool:
        return session in self._open

    def open(self, ts: int, time: int) -> int:
        self.expire(time)
        if len(self._open) >= self.limits.sessions_max:
            del self._open[next(iter(self._open))]
        self._latest = self._open[ts] = Session(ts, time)
        return ts

    def close(self, session: int) -> bool:
        closed = self._open.pop(session, None)
        if closed is self._latest:
            self._latest = None
        return closed is not None

    def expire(self, time: int) -> None:
        """End those that were idle for too long."""
        limit = time - self.limits.session_ms * MS
        while self._open:
            oldest = next(iter(self._open.values()))
            if oldest.used_at > limit:
                return
            self.close(oldest.id)

    def use(self, session: int, number: int, acknowledged: int, time: int) -> Session | Answer | Refusal:
        """The session, if the request is new and may be executed; else its reply, or why there is none."""
        found = self._latest
        if found is None or found.id != session or found.used_at != time:
            self.expire(time)
            found = self._open.pop(session, None)
            if found is None:
                return Refusal.SESSION_UNKNOWN
            self._open[session] = self._latest = found  # the most recently used is the last
            found.used_at = time
        if acknowledged > found.acknowledged:
            found.acknowledge(acknowledged)
        if number <= found.acknowledged:
            return Refusal.OLD
        known = found.replies.get(number)
        if known is not None:
            return known
        limits = self.limits
        if len(found.replies) >= limits.requests_max or found.reply_bytes >= limits.reply_bytes_max:
            return Refusal.SESSION_FULL
        return found

    def reply_to(self, session: int, number: int) -> Answer | None:
        """What was answered, without touching anything."""
        found = self._open.get(session)
        return None if found is None else found.replies.get(number)

    # -- as part of a snapshot -------------------------------------------------------------------

    def dump(self) -> list[Session]:
        return list(self._open.values())

    def load(self, sessions: list[Session]) -> None:
        self._open = {session.id: session for session in sessions}
        self._latest = None
