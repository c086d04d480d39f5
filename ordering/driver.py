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
import secrets
import socket
from collections.abc import Callable, Coroutine
from random import Random
from time import monotonic_ns, time_ns
from typing import Any, Final, Self, TypeVar

import msgspec

from ordering.codec import BOOT_AT, DATAGRAM_MAX
from ordering.config import MS, Config
from ordering.driven_group import Group, Listener, Notice, Stopped
from ordering.effects import Effect, EndMembership, Multicast, Unicast
from ordering.errors import ConfigurationError, DriverClosed
from ordering.events import PacketsReceived, Restarted, Started, TimerFired, WallClockSet
from ordering.groups import Groups, InGroup, LocalEvent, Outcome
from ordering.logs import Throttle, logger
from ordering.packets import Packet
from ordering.records import Ledger
from ordering.sealing import Keyring
from ordering.statistics import DriverStats, Stalls
from ordering.transports.addresses import Address, Endpoint, parse_endpoint
from ordering.transports.multicast import (
    NO_BOOT,
    MulticastSettings,
    group_sockaddr,
    listening_socket,
    prepare_sender,
    try_out,
)
from ordering.transports.routes import Routes
from ordering.transports.udp import BUFFER_BYTES, UdpSocket, socket_at
from ordering.twins import BOOT_BYTES
from ordering.views import Member, SiteId
from ordering.wire import Wire

__all__ = ["Driver", "Group", "Listener", "MulticastSettings", "Notice", "Stopped", "run"]

log = logger(__name__)

_T = TypeVar("_T")

PACKET_BYTES_MAX: Final = DATAGRAM_MAX
TURN_MS: Final = 2
SAID_AGAIN_S: Final = 10.0  # what others can cause is not logged more often
CLOCK_MS: Final = 1000  # how often the wall clock is read again,
CLOCK_STEP_MS: Final = 2  # and how far it may drift before the groups are told
_BOOT: Final = slice(BOOT_AT, BOOT_AT + BOOT_BYTES)


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
        self._boots = {NO_BOOT}  # own ones, as the header has them
        self._own_heard = self._unreadable = self._stopped = 0
        self._timer: asyncio.TimerHandle | None = None
        self._wall_offset = time_ns() - monotonic_ns()
        self._clock_read_at = monotonic_ns()
        self._timer_at = 0
        self._telling: asyncio.Handle | None = None
        self._turn_began = 0
        self._stalls = Stalls()
        self._throttle = Throttle(SAID_AGAIN_S)
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
        check_security(keyring, insecure=insecure)
        listening = None
        sock, endpoint = socket_at(bind)
        try:
            address = _own_address(endpoint, sock, advertise, multicast)
            if multicast is not None:
                prepare_sender(sock, multicast)
                listening = UdpSocket(listening_socket(multicast, sock.family), buffer_bytes)
                sock.setblocking(False)
                await try_out(sock, listening.sock, multicast)
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
        ledger: Ledger | None = None,
        site: SiteId | None = None,
        boot: int | None = None,
    ) -> Group:
        """Take part in a group: in its birth as a founder, which finds and joins one that lives already, or
        as a joiner; or, in durable mode, come back with what the disk has. ``site`` and ``boot`` are drawn;
        only tests name them."""
        if self._closed:
            raise DriverClosed("this driver is closed; open another")
        if ledger is not None:
            site = ledger.site
        site = SiteId(secrets.randbelow((1 << 64) - 1) + 1) if site is None else site
        boot = secrets.randbits(128) if boot is None else boot
        config = msgspec.structs.replace(config, packet_bytes=min(config.packet_bytes, PACKET_BYTES_MAX))
        member = Member(site, boot, self.address)
        engine = self._groups.open(config, member, Random(secrets.randbits(128)))
        group = Group(self, engine, listener)
        self._open[group.name] = group
        self._boots.add(boot.to_bytes(BOOT_BYTES, "big"))
        try:
            self.handle(group, WallClockSet(self._wall_offset))
            self.handle(group, Started(founder) if ledger is None else Restarted(ledger))
        except Exception:
            self.forget(group, None)
            raise
        return group

    def handle(self, group: Group, event: LocalEvent) -> None:
        """A local event of a group; its refusals are raised."""
        now = monotonic_ns()
        self._perform(self._groups.handle(InGroup(group.name, event), now), now)
        if self._telling is None:
            self._telling = self.loop.call_soon(self._tell)
            self._turn_began = now
        self._arm()

    def owes_a_turn(self) -> bool:
        """Whether the application has kept the event loop to itself for long."""
        return self._telling is not None and monotonic_ns() - self._turn_began > TURN_MS * MS

    def forget(self, group: Group, how: EndMembership | Stopped | None) -> None:
        """Make room for the group's next membership here."""
        self._open.pop(group.name, None)
        self._groups.close(group.name)
        self._boots.discard(group.member.boot.to_bytes(BOOT_BYTES, "big"))
        if isinstance(how, Stopped) and not self._closed:
            self._stopped += 1

    # -- the loop's callbacks --------------------------------------------------------------------

    def _on_unicast(self) -> None:
        began = monotonic_ns()
        packets: list[Packet] = []
        for datagram in self._unicast.drain():
            self._read(datagram, packets)
        self._take_in(packets, began)

    def _on_multicast(self) -> None:
        assert self._multicast is not None
        began = monotonic_ns()
        own = self._boots
        packets: list[Packet] = []
        for datagram in self._multicast.drain():
            if bytes(datagram[_BOOT]) in own:
                self._own_heard += 1
            else:
                self._read(datagram, packets)
        self._take_in(packets, began)

    def _read(self, datagram: memoryview, packets: list[Packet]) -> None:
        try:
            packet = self._wire.unpack(datagram)
        except Exception:  # a defect here must not be a way to stop the process from outside
            self._unreadable += 1
            if (fields := self._throttle.admits("unreadable")) is not None:
                log.exception("a datagram could not be read", bytes=len(datagram), **fields)
            return
        if packet is not None:
            packets.append(packet)

    def _take_in(self, packets: list[Packet], began: int) -> None:
        now = monotonic_ns()
        if packets:
            self._perform(self._groups.handle(PacketsReceived(tuple(packets)), now), now)
            self._tell()
            self._arm()
            now = monotonic_ns()
        self._stalls.note_busy(now - began)

    def _fire(self) -> None:
        now = monotonic_ns()
        self._stalls.note_late(now - self._timer_at)
        self._timer_at = 0
        if now - self._clock_read_at > CLOCK_MS * MS:
            self._read_clock(now)
        wake_at = self._groups.wake_at
        if wake_at is not None and wake_at <= now:
            self._perform(self._groups.handle(TimerFired(), now), now)
            for group in self._open.values():
                group.look(now)
            self._tell()
            self._stalls.note_busy(monotonic_ns() - now)
        self._arm()

    def _read_clock(self, now: int) -> None:
        """The wall clock may be set at any time; groups are told when it was."""
        self._clock_read_at = now
        offset = time_ns() - now
        if abs(offset - self._wall_offset) > CLOCK_STEP_MS * MS:
            self._wall_offset = offset
            for group in list(self._open.values()):
                self._perform(self._groups.handle(InGroup(group.name, WallClockSet(offset)), now), now)

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
        for name, effects, stopped in outcomes:
            group = self._open[name]
            error = stopped or self._perform_one(group, effects, now)
            if error is not None:
                log.error("the engine stopped", group=name, error=repr(error), exc_info=error)
                group.end(Stopped(error))
            if group.is_over:
                self.loop.call_soon(group.tell)

    def _perform_one(self, group: Group, effects: list[Effect], now: int) -> Exception | None:
        """A packet that cannot be written is a defect of the group's engine, and stops it like one."""
        heard: list[Effect] = []
        try:
            for effect in effects:
                if isinstance(effect, Multicast):
                    self._send(effect.to, effect.packet)
                elif isinstance(effect, Unicast):
                    self._send((effect.to,), effect.packet)
                else:
                    heard.append(effect)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other groups have effects to come
            return error
        if heard:
            group.note(heard, now)
        return None

    def _send(self, to: tuple[str, ...], packet: Packet) -> None:
        route = self._routes.find(to)
        datagram = self._wire.write(packet)
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


def check_security(keyring: Keyring | None, *, insecure: bool) -> None:
    if keyring is None and not insecure:
        raise ConfigurationError(
            "keyring: there is none, so whoever reaches the port could read and forge packets; pass a"
            " keyring, or insecure=True where nobody else can"
        )
    if keyring is not None and insecure:
        raise ConfigurationError("insecure: contradicts keyring; leave one of them out")
    if insecure:
        log.warning("INSECURE: packets are neither encrypted nor authenticated", setting="insecure=True")


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
            log.info("no uvloop", loop="asyncio")
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)
