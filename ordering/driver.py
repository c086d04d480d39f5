"""The asyncio host of the engine: one process' presence on the network (``docs/architecture.md``).

::

    async with await Driver.open(bind="127.0.0.1:7401", keyring=keyring) as driver:
        group = driver.join(Config(group="orders", founders=(...)), listener)
        ...
        await group.submit_when_free((b"first", b"second"))
        ...
        group.leave()
        await group.ended

A driver has one UDP socket, one more if it uses IP multicast, and one timer, for any number of groups. It
performs ``Multicast``, ``Unicast`` and ``SetTimer`` itself. Every other effect, of whatever kind, goes to the
group's ``listener`` in order, all effects of a drain in one call. The listener is called from the event loop
and never from inside a call of the application's own, so it may call ``submit`` and the like; while it
runs nothing else does, so it hands long work to others. What it hears last is ``EndMembership``, or
``Stopped`` when the engine broke, the listener itself raised, or the driver was closed.

A driver and its groups belong to the event loop they were opened in; they are not thread-safe.
"""

import asyncio
import logging
import secrets
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from random import Random
from time import monotonic_ns
from typing import Any, Final, Self, TypeAlias, TypeVar

import msgspec

from ordering.codec import BOOT_AT, BOOT_BYTES, DATAGRAM_MAX
from ordering.config import MS, Config
from ordering.effects import Accepted, Effect, EndMembership, Multicast, Unicast
from ordering.engine import Engine
from ordering.errors import ConfigurationError, DriverClosed, NotMember, Overloaded, SubmitError
from ordering.events import ChangeRequested, PacketsReceived, Started, SubmitRequested, TimerFired
from ordering.groups import Groups, InGroup, LocalEvent, Outcome
from ordering.packets import ChangeKind, Packet
from ordering.qos import MAJORITY, Qos
from ordering.statistics import DriverStats, GroupStats, Stalls, Tally, group_stats
from ordering.submission import PACKET_OVERHEAD
from ordering.transports.addresses import Address, Endpoint, numeric_sockaddr, parse_endpoint
from ordering.transports.multicast import (
    MulticastSettings,
    group_sockaddr,
    listening_socket,
    prepare_sender,
)
from ordering.transports.routes import Routes
from ordering.transports.udp import BUFFER_BYTES, UdpSocket, bound_socket
from ordering.views import Member, SiteId
from ordering.wire import Keyring, Wire

log = logging.getLogger(__name__)

_T = TypeVar("_T")

# Until messages are cut into fragments none may exceed a datagram: it would never get a slot, and whatever
# its source submits later would wait behind it.
MESSAGE_BYTES_MAX: Final = DATAGRAM_MAX - PACKET_OVERHEAD
_BOOT: Final = slice(BOOT_AT, BOOT_AT + BOOT_BYTES)


class Stopped(msgspec.Struct, frozen=True):
    """The group's engine is here no more, and to the others it has crashed. The outcome of accepted
    messages that were not delivered is unknown."""

    error: Exception


Notice: TypeAlias = Effect | Stopped
Listener: TypeAlias = Callable[[list[Notice]], None]


class _Waiter:
    """A submission that waits for room in the window."""

    def __init__(self, messages: tuple[bytes, ...], turn: asyncio.Future[None]) -> None:
        self.count = len(messages)
        self.size = sum(map(len, messages))
        self.turn = turn


class Group:
    """One membership of this process, from ``Driver.join`` to its end."""

    def __init__(self, driver: "Driver", engine: Engine, listener: Listener) -> None:
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

        Who waits is served in order. Messages that no window could hold are still refused.
        """
        messages = tuple(messages)
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
        try:
            while True:
                self.admit_waiters()
                await waiter.turn
                try:
                    return self.submit(messages, qos)
                except Overloaded:  # someone who did not wait was faster
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

    def end(self, how: EndMembership | Stopped) -> None:
        if self._ended.done():
            return
        if isinstance(how, Stopped):
            self._untold.append(how)
        self._driver.forget(self, how)
        self._ended.set_result(how)
        self.admit_waiters()

    def tell(self) -> None:
        """Call the listener with all it has not heard. One that raises has lost its place in the order, and
        a replica that goes on after that would differ from the others: its group is stopped."""
        if not self._untold:
            return
        notices, self._untold = self._untold, []
        try:
            self._listener(notices)
        except Exception as error:
            log.exception("group %s: the listener raised; the group is stopped", self.name)
            self.end(Stopped(error))
            self._untold.clear()

    def admit_waiters(self) -> None:
        """Give the first in line its turn if there is room, or if it is to be refused."""
        if not self._waiters or self._waiters[0].turn.done():
            return
        first, engine = self._waiters[0], self._engine
        config = engine.site.config
        messages = engine.submission.pending_messages + engine.lanes.pending_messages + first.count
        size = engine.submission.pending_bytes + engine.lanes.pending_bytes + first.size
        if (
            (messages <= config.window_messages and size <= config.window_bytes)
            or self._ended.done()
            or not engine.detection.reaches_majority()
        ):
            first.turn.set_result(None)

    @property
    def waits(self) -> bool:
        return bool(self._waiters)

    @property
    def has_untold(self) -> bool:
        return bool(self._untold)


class Driver:
    """One process on the network; ``Driver.open`` makes it."""

    def __init__(
        self,
        unicast: UdpSocket,
        multicast: UdpSocket | None,
        address: Address,
        keyring: Keyring | None,
        settings: MulticastSettings | None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.address = str(address)
        self._unicast = unicast
        self._multicast = multicast
        shared = None if settings is None else group_sockaddr(settings, unicast.family)
        self._routes = Routes(unicast.family, address.multicast, shared)
        self._groups = Groups()
        self._wire = Wire(keyring, self._groups.admits)
        self._open: dict[str, Group] = {}
        self._boots: set[bytes] = set()  # own ones, as the header has them
        self._own_heard = self._unreadable = self._stopped = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._telling: asyncio.Handle | None = None
        self._stalls = Stalls()
        self._closed = False

    # -- opening and closing ---------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        *,
        bind: str,
        keyring: Keyring | None = None,
        insecure: bool = False,
        advertise: str = "",
        multicast: MulticastSettings | None = None,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> Self:
        """Listen at ``bind``. ``advertise`` is what others reach it by, where that differs."""
        _check_security(keyring, insecure=insecure)
        endpoint = parse_endpoint(bind, "bind")
        family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
        place = numeric_sockaddr(endpoint, family)
        if place is None:
            raise ConfigurationError(f"bind: {bind!r} is no IP address; name an interface by its address")
        listening = None
        sock = bound_socket(family, place)
        try:
            address = _own_address(endpoint, sock, advertise, multicast)
            if multicast is not None:
                prepare_sender(sock, multicast)
                listening = UdpSocket(listening_socket(multicast, family), buffer_bytes)
            driver = cls(UdpSocket(sock, buffer_bytes), listening, address, keyring, multicast)
        except BaseException:
            sock.close()
            if listening is not None:
                listening.close()
            raise
        driver._start()
        return driver

    def _start(self) -> None:
        self._unicast.start(self.loop, self._on_unicast)
        if self._multicast is not None:
            self._multicast.start(self.loop, self._on_multicast)

    def close(self) -> None:
        """Fall silent at once. To its groups this process has crashed, unless it left them before."""
        if self._closed:
            return
        self._closed = True
        for group in list(self._open.values()):
            group.end(Stopped(DriverClosed("the driver was closed; open another to come back")))
            self.loop.call_soon(group.tell)
        if self._timer is not None:
            self._timer.cancel()
        self._routes.close()
        self._unicast.close()
        if self._multicast is not None:
            self._multicast.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    # -- groups ----------------------------------------------------------------------------------

    def join(
        self,
        config: Config,
        listener: Listener,
        *,
        founder: bool = True,
        site: SiteId | None = None,
        boot: int | None = None,
    ) -> Group:
        """Take part in a group: in its birth as a founder, which finds and joins one that lives already, or
        as a joiner. ``site`` and ``boot`` are drawn; only tests name them."""
        if self._closed:
            raise DriverClosed("this driver is closed; open another")
        site = SiteId(secrets.randbelow((1 << 64) - 1) + 1) if site is None else site
        boot = secrets.randbits(128) if boot is None else boot
        config = msgspec.structs.replace(
            config, message_bytes_max=min(config.message_bytes_max, MESSAGE_BYTES_MAX)
        )
        member = Member(site, boot, self.address)
        engine = self._groups.open(config, member, Random(secrets.randbits(128)))
        group = Group(self, engine, listener)
        self._open[group.name] = group
        self._boots.add(boot.to_bytes(BOOT_BYTES, "big"))
        try:
            self.handle(group, Started(founder))
        except Exception:
            self.forget(group, None)
            raise
        return group

    def handle(self, group: Group, event: LocalEvent) -> None:
        """A local event of a group; its refusals are raised."""
        now = monotonic_ns()
        self._perform(self._groups.handle(InGroup(group.name, event), now), now)
        if group.has_untold and self._telling is None:
            self._telling = self.loop.call_soon(self._tell)
        self._arm()

    def forget(self, group: Group, how: EndMembership | Stopped | None) -> None:
        """Make room for the group's next membership here."""
        self._open.pop(group.name, None)
        self._groups.close(group.name)
        self._boots.discard(group.member.boot.to_bytes(BOOT_BYTES, "big"))
        if isinstance(how, Stopped) and not self._closed:
            self._stopped += 1

    # -- the loop's callbacks --------------------------------------------------------------------

    def _on_unicast(self) -> None:
        self._receive(self._unicast.drain())

    def _on_multicast(self) -> None:
        assert self._multicast is not None
        own = self._boots
        datagrams = self._multicast.drain()
        others = [datagram for datagram in datagrams if datagram[_BOOT] not in own]
        self._own_heard += len(datagrams) - len(others)
        self._receive(others)

    def _receive(self, datagrams: list[bytes]) -> None:
        if not datagrams:
            return
        now = monotonic_ns()
        unpack = self._wire.unpack
        packets: list[Packet] = []
        for datagram in datagrams:
            try:
                packet = unpack(datagram)
            except Exception:  # a defect here must not be a way to stop the process from outside
                log.exception("a datagram of %d bytes could not be read", len(datagram))
                self._unreadable += 1
                continue
            if packet is not None:
                packets.append(packet)
        if packets:
            self._perform(self._groups.handle(PacketsReceived(tuple(packets)), now), now)
            self._tell()
            self._arm()
        self._stalls.note_busy(monotonic_ns() - now)

    def _fire(self) -> None:
        now = monotonic_ns()
        self._stalls.note_late(now - self._timer_at)
        self._timer_at = 0
        wake_at = self._groups.wake_at
        if wake_at is not None and wake_at <= now:
            self._perform(self._groups.handle(TimerFired(), now), now)
            self._tell()
            self._stalls.note_busy(monotonic_ns() - now)
        self._arm()

    def _arm(self) -> None:
        """Deadlines move back with almost every packet. A timer that comes too early looks again and costs
        less than one that is set anew each time. Whole milliseconds: event loops know nothing finer."""
        wake_at = self._groups.wake_at
        if wake_at is None or self._closed or (self._timer_at and self._timer_at <= wake_at):
            return
        if self._timer_at and self._timer is not None:
            self._timer.cancel()
        wait_ms = max(-((monotonic_ns() - wake_at) // MS), 0)
        self._timer_at = wake_at
        self._timer = self.loop.call_later(wait_ms / 1000, self._fire)

    def _tell(self) -> None:
        """Let the applications hear what is new, and let in who waited for it."""
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        for group in list(self._open.values()):
            group.tell()
            if group.waits:
                group.admit_waiters()

    # -- performing ------------------------------------------------------------------------------

    def _perform(self, outcomes: list[Outcome], now: int) -> None:
        for name, effects, error in outcomes:
            group = self._open[name]
            heard: list[Effect] = []
            for effect in effects:
                if isinstance(effect, Multicast):
                    self._send(effect.to, effect.packet)
                elif isinstance(effect, Unicast):
                    self._send((effect.to,), effect.packet)
                else:
                    heard.append(effect)
            if heard:
                group.note(heard, now)
            if error is not None:
                log.error("group %s: the engine stopped: %r", name, error, exc_info=error)
                group.end(Stopped(error))
            if group.is_over:
                self.loop.call_soon(group.tell)

    def _send(self, to: tuple[str, ...], packet: Packet) -> None:
        route = self._routes.find(to)
        datagram = self._wire.pack(packet)
        if len(datagram) > route.whole_bytes:
            self._routes.note_fragments(len(datagram), route)
        send = self._unicast.send
        for sockaddr in route.sockaddrs:
            send(datagram, sockaddr)

    # -- measuring -------------------------------------------------------------------------------

    def stats(self) -> DriverStats:
        """Where this process stands. Cheap enough for every second."""
        sockets = [s for s in (self._unicast, self._multicast) if s is not None]
        errors = dict(self._routes.drops)
        for each in sockets:
            for reason, count in each.errors.items():
                errors[reason] = errors.get(reason, 0) + count
        return DriverStats(
            address=self.address,
            datagrams_in=sum(s.datagrams_in for s in sockets),
            bytes_in=sum(s.bytes_in for s in sockets),
            datagrams_out=self._unicast.datagrams_out,
            bytes_out=self._unicast.bytes_out,
            own_multicasts_heard=self._own_heard,
            fragmented=self._routes.fragmented,
            wire_drops=self._wire.counters | {"unreadable": self._unreadable},
            group_drops=dict(self._groups.counters),
            send_drops=errors,
            sockets=() if self._closed else tuple(s.stats() for s in sockets),
            stalls=self._stalls.snapshot(),
            groups_stopped=self._stopped,
            groups=tuple(group.stats() for group in self._open.values()),
        )


def _check_security(keyring: Keyring | None, *, insecure: bool) -> None:
    if keyring is None and not insecure:
        raise ConfigurationError(
            "keyring: there is none, so whoever reaches the port could read and forge packets; pass a"
            " keyring, or insecure=True where nobody else can"
        )
    if keyring is not None and insecure:
        raise ConfigurationError("insecure: contradicts keyring; leave one of them out")
    if insecure:
        log.warning("INSECURE: packets are neither encrypted nor authenticated (insecure=True)")


def _own_address(
    bind: Endpoint, sock: socket.socket, advertise: str, multicast: MulticastSettings | None
) -> Address:
    """What the others are to call us."""
    endpoint = Endpoint(bind.host, sock.getsockname()[1])
    if advertise:
        told = parse_endpoint(advertise, "advertise")
        endpoint = Endpoint(told.host, told.port or endpoint.port)
    elif bind.host in {"0.0.0.0", "::"}:
        raise ConfigurationError(
            f"advertise: {bind.host} is every interface and no address for others; say which one they reach"
        )
    return Address(endpoint, None if multicast is None else multicast.endpoint)


def run(main: Coroutine[Any, Any, _T], *, uvloop: bool = True) -> _T:
    """``asyncio.run``, with uvloop's event loop where it is installed."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if uvloop:
        try:
            from uvloop import new_event_loop

            factory = new_event_loop
        except ImportError:
            log.info("uvloop is not installed; running on asyncio's own event loop")
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)
