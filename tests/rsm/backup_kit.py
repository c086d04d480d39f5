"""A state that has lived in an old chain, with a session in it."""

import msgspec

from ordering.effects import Delivery
from ordering.qos import MAJORITY, Level
from ordering.views import Member, SiteId, View, ViewId
from rsm.envelope import OPEN, Language, session_of, value_of
from rsm.executor import Executor
from rsm.methods import Catalogue
from rsm.sessions import SessionLimits
from tests.rsm.machines import Counter

FOUNDERS = ("127.0.0.1:7401", "127.0.0.1:7402", "127.0.0.1:7403")
ME = SiteId(11)
CATALOGUE = Catalogue(Counter)
LANGUAGE = Language(CATALOGUE)


def executor() -> Executor:
    return Executor(Counter(), CATALOGUE, LANGUAGE)


def deliver(target: Executor, message: bytes, source: SiteId = ME) -> bytes:
    ts = target.applied + 1
    return target.deliver(Delivery(ts, source, ts, MAJORITY, Level.MAJORITY, (message,), time=ts))[0]


def lived() -> tuple[Executor, int]:
    """A state of an old chain, and a session with one call in it."""
    old = executor()
    view = View(ViewId(3, 0), (Member(ME, 1, FOUNDERS[0]),), (ME,), (ME,))
    old.install(1, 77, view, 1, locks_only=False)
    deliver(old, old.announcement(1, SessionLimits()))
    session = session_of(deliver(old, OPEN))
    reply = deliver(old, LANGUAGE.encode(session, 1, 0, CATALOGUE.command("add").bind((5,), {})))
    assert int(msgspec.msgpack.decode(value_of(reply))) == 5
    return old, session
