"""One membership as the application sees it: submitting, waiting for room, hearing, and the end.

``Driver.join`` makes it. It holds no socket and no timer: the driver brings it what the engine asks for, and
it brings the engine what the application asks for, through the driver.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic_ns
from typing import Final, Protocol, TypeAlias

import msgspec

from ordering.config import MS
from ordering.effects import Accepted, Effect, Ending, EndMembership, RetirementRefused
from ordering.engine import Engine
from ordering.errors import ListenerHalts, NotMember, Overloaded, SubmitError
from ordering.events import ChangeRequested, SubmitRequested
from ordering.groups import LocalEvent
from ordering.logs import Throttle, logger
from ordering.packets import ChangeKind
from ordering.qos import MAJORITY, Qos
from ordering.statistics import GroupStats, Tally, group_stats
from ordering.views import SiteId, handler_holder

log = logger(__name__)

LOOK_MS: Final = 100
SAID_AGAIN_S: Final = 10.0


class Stopped(msgspec.Struct, frozen=True):
    """The group's engine is here no more, and to the others it has crashed. The outcome of accepted
    messages that were not delivered is unknown."""

    error: Exception


Notice: TypeAlias = Effect | Stopped
Listener: TypeAlias = Callable[[list[Notice]], None]


class Host(Protocol):
    """What a group needs of its driver."""

    loop: asyncio.AbstractEventLoop

    def handle(self, group: "Group", event: LocalEvent) -> None:
        """A local event of a group; its refusals are raised."""

    def forget(self, group: "Group", how: EndMembership | Stopped | None) -> None:
        """The membership is over."""

    def owes_a_turn(self) -> bool:
        """Whether the application has kept the event loop to itself for long."""


class _Waiter:
    """A submission that waits for room in the window."""

    def __init__(self, messages: tuple[bytes, ...], turn: asyncio.Future[None]) -> None:
        self.count = len(messages)
        self.size = sum(map(len, messages))
        self.turn = turn


class Group:
    """One membership of this process, from ``Driver.join`` to its end."""

    def __init__(self, driver: Host, engine: Engine, listener: Listener) -> None:
        self.name = engine.site.config.group
        self.member = engine.site.member
        self._driver = driver
        self._engine = engine
        self._listener = listener
        self._tally = Tally(engine.site.me)
        self._untold: list[Notice] = []
        self._accepted: list[Accepted] = []  # by the call under way
        self._waiters: deque[_Waiter] = deque()
        self._ended: asyncio.Future[EndMembership | Stopped] = driver.loop.create_future()
        self._refused: asyncio.Future[None] = driver.loop.create_future()  # the latest wish to retire
        self._log = log.bind(group=self.name, site=f"{self.member.site:x}")
        self._throttle = Throttle(SAID_AGAIN_S)
        self._looked_at = 0
        self._polls = 0
        self._alone = False  # no majority is heard

    # -- the application's calls -----------------------------------------------------------------

    def submit(self, messages: Sequence[bytes], qos: Qos = MAJORITY) -> Accepted:
        """Accept all messages or raise a ``SubmitError``; the listener hears the ``Accepted`` as well."""
        if not messages:
            raise SubmitError("messages: there are none; submit at least one")
        if self._ended.done():
            raise NotMember(f"group {self.name!r}: this membership is over; join again to submit")
        self._driver.handle(self, SubmitRequested(tuple(messages), qos))
        if not self._accepted:
            raise NotMember(f"group {self.name!r}: the engine stopped; the outcome is unknown, see the log")
        return self._accepted.pop()

    async def submit_when_free(self, messages: Sequence[bytes], qos: Qos = MAJORITY) -> Accepted:
        """``submit``, waiting for room in the send window where that raises ``Overloaded``.

        Who waits is served in order. Messages that no window could hold are still refused. A caller that
        never has to wait still lets the event loop turn every few milliseconds: a site that does not listen
        while it talks is soon suspected by the others.
        """
        messages = tuple(messages)
        if self._driver.owes_a_turn():
            await asyncio.sleep(0)
        if not self._waiters:
            try:
                return self.submit(messages, qos)
            except Overloaded:
                pass
        waiter = _Waiter(messages, self._driver.loop.create_future())
        config = self._engine.site.config
        if waiter.count > config.window_messages or waiter.size > config.window_bytes:
            return self.submit(messages, qos)
        self._waiters.append(waiter)
        self.admit_waiters()
        try:
            while True:
                await waiter.turn
                try:
                    return self.submit(messages, qos)
                except Overloaded:  # someone who did not wait was faster; the next event may bring room
                    waiter.turn = self._driver.loop.create_future()
        finally:
            self._waiters.remove(waiter)
            self.admit_waiters()

    def handle(self, event: LocalEvent) -> None:
        """Bring another local event (``StateTransferred``, ``ChangeRequested`` …); after the end it does
        nothing."""
        if isinstance(event, SubmitRequested):
            self.submit(event.messages, event.qos)
        elif not self._ended.done():
            self._driver.handle(self, event)

    def leave(self) -> None:
        """Ask to go, once own messages are ordered; ``ended`` says when the others have let go."""
        self.handle(ChangeRequested(ChangeKind.LEAVE))

    async def retire(self) -> bool:
        """Leave the ring and stay a voter: for a process that is to be stopped, and will be back. True when
        nobody will miss it; the membership is over then. False: the others could not go on, all is as before
        (or the membership has ended otherwise). A group that is without a majority for the moment may take
        its time to grant or refuse it."""
        if self._refused.done():
            self._refused = self._driver.loop.create_future()
        self.handle(ChangeRequested(ChangeKind.RETIRE))
        await asyncio.wait((self._refused, self._ended), return_when=asyncio.FIRST_COMPLETED)
        how = self._ended.result() if self._ended.done() else None
        return isinstance(how, EndMembership) and how.ending is Ending.RETIRED

    @property
    def ended(self) -> Awaitable[EndMembership | Stopped]:
        """How this membership ended, once it has. Any number may wait, and may give up waiting."""
        return asyncio.shield(self._ended)

    @property
    def is_over(self) -> bool:
        return self._ended.done()

    def address_of(self, site: SiteId) -> str | None:
        """Where a member is: a donor of ``RequestState``, say."""
        return self._engine.site.addresses.get(site)

    def handler(self, number: int) -> SiteId:
        """Who answers requests with this handler, as far as is known here; 0 if nobody does."""
        return handler_holder(self._engine.site.view, number)

    def majority_age_ns(self) -> int:
        """How long ago a majority of the voters was last heard: how old what is known here may be."""
        heard = self._engine.detection.majority_heard_at()
        return 0 if heard is None else max(monotonic_ns() - heard, 0)

    @property
    def forks(self) -> int:
        """How often the chain this site is in has gone on without a majority (R9)."""
        return self._engine.site.descent.depth

    @property
    def held(self) -> int:
        """How far this site holds the order: in durable mode, on its disk."""
        return self._engine.site.held

    def stats(self) -> GroupStats:
        return group_stats(self._engine, self._tally, len(self._waiters))

    # -- the driver's calls ----------------------------------------------------------------------

    def note(self, effects: list[Effect], now: int) -> None:
        """Take what the application is to hear, and learn from it."""
        self._tally.note(effects, now)
        self._untold += effects
        for effect in effects:
            if isinstance(effect, Accepted):
                self._accepted = [effect]
            elif isinstance(effect, EndMembership):
                self.end(effect)
            elif isinstance(effect, RetirementRefused) and not self._refused.done():
                self._refused.set_result(None)

    def end(self, how: EndMembership | Stopped) -> None:
        if self._ended.done():
            return
        if isinstance(how, Stopped):
            self._untold.append(how)
        self._driver.forget(self, how)
        self._ended.set_result(how)
        self.admit_waiters()

    def tell(self, *, always: bool = False) -> None:
        """Call the listener with all it has not heard. One that raises has lost its place in the order, and
        a replica that goes on after that would differ from the others: its group is stopped."""
        if not self._untold and not always:
            return
        notices, self._untold = self._untold, []
        try:
            self._listener(notices)
        except Exception as error:
            if not isinstance(error, ListenerHalts):
                log.exception("the listener raised; the group is stopped", group=self.name)
            self.end(Stopped(error))
            self._untold.clear()

    def look(self, now: int) -> None:
        """Log what the engine has noticed of the others and tells nobody; called with every timer."""
        engine, site = self._engine, self._engine.site
        if self._polls != engine.recovery.polls:
            self._polls = engine.recovery.polls
            suspects = engine.recovery.suspected
            if (fields := self._throttle.admits(suspects)) is not None:
                members = [site.addresses.get(each, f"{each:x}") for each in suspects]
                what = "suspected" if suspects else "the ring does not move"
                self._log.warning(what, members=members, view=str(site.view.id), **fields)
        if now - self._looked_at < LOOK_MS * MS:
            return
        self._looked_at = now
        alone = not site.outside and not engine.detection.reaches_majority()
        if alone != self._alone:
            self._alone = alone
            tell = self._log.warning if alone else self._log.info
            tell("no majority is heard" if alone else "a majority is heard again", view=str(site.view.id))

    def admit_waiters(self) -> None:
        """Give the first in line its turn if there is room, or if it is to be refused."""
        if not self._waiters or self._waiters[0].turn.done():
            return
        first, engine = self._waiters[0], self._engine
        config = engine.site.config
        messages, size = engine.submission.occupied()
        if (
            (messages + first.count <= config.window_messages and size + first.size <= config.window_bytes)
            or self._ended.done()
            or not engine.detection.reaches_majority()
        ):
            first.turn.set_result(None)

    @property
    def waits(self) -> bool:
        return bool(self._waiters)
