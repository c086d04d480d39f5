"""The asyncio host of a ``Caller``: a process outside the group, with one socket and one timer.

::

    caller = await CallerDriver.open(config, listener, keyring=keyring)
    accepted = caller.request(CallRequested((b"add 1",), handler=1))
    ...                                   # the listener hears CallAnswered with accepted.first_number
    caller.close()

The listener is called from the event loop, with everything that a drain of the socket brought in one call,
and never from inside ``request``.
"""

import asyncio
import secrets
import socket
from collections.abc import Callable
from random import Random
from time import monotonic_ns
from typing import Self, TypeAlias

from ordering.caller import Caller, CallerEffect, CallRequested
from ordering.config import MS, Config
from ordering.driver import SAID_AGAIN_S, check_security
from ordering.effects import (
    Accepted,
    CallAcknowledged,
    CallAnswered,
    CallFailed,
    Multicast,
    SetTimer,
    Unicast,
)
from ordering.errors import ConfigurationError, DriverClosed
from ordering.events import PacketsReceived, TimerFired
from ordering.logs import Throttle, logger
from ordering.naming import group_id
from ordering.packets import Packet
from ordering.sealing import Keyring
from ordering.transports.addresses import Address, Endpoint, parse_address
from ordering.transports.routes import Routes
from ordering.transports.udp import BUFFER_BYTES, UdpSocket, socket_at
from ordering.views import Member, SiteId
from ordering.wire import Wire

log = logger(__name__)

Outcome: TypeAlias = CallAcknowledged | CallAnswered | CallFailed
Listener: TypeAlias = Callable[[list[Outcome]], None]


class CallerDriver:
    """One caller of one group; ``open`` makes it. It belongs to the event loop it was opened in."""

    def __init__(
        self, config: Config, udp: UdpSocket, address: Address, keyring: Keyring | None, listener: Listener
    ) -> None:
        self.address = str(address)
        self._loop = asyncio.get_running_loop()
        self._udp = udp
        self._routes = Routes(udp.family, None, None)
        group = group_id(config.group)
        self._wire = Wire(keyring, lambda head: head.group == group)
        member = Member(SiteId(secrets.randbelow((1 << 64) - 1) + 1), secrets.randbits(128), self.address)
        self._caller = Caller(config, member, Random(secrets.randbits(128)))
        self._listener = listener
        self._accepted: Accepted | None = None
        self._untold: list[Outcome] = []
        self._telling: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._throttle = Throttle(SAID_AGAIN_S)
        self._closed = False
        udp.start(self._loop, self._on_readable)

    @classmethod
    async def open(
        cls,
        config: Config,
        listener: Listener,
        *,
        keyring: Keyring | None = None,
        insecure: bool = False,
        bind: str = "",
        buffer_bytes: int = BUFFER_BYTES,
    ) -> Self:
        """``bind`` is found out where it is not given: the address of this host that faces the group."""
        check_security(keyring, insecure=insecure)
        sock, endpoint = socket_at(bind or str(await _facing(config)))
        address = Address(Endpoint(endpoint.host, sock.getsockname()[1]), None)
        return cls(config, UdpSocket(sock, buffer_bytes), address, keyring, listener)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of the members that are known, from the one that is asked at present on."""
        return self._caller.addresses_in_turn

    def request(self, request: CallRequested) -> Accepted:
        """Send a call, or refuse it (``SubmitError``)."""
        if self._closed:
            raise DriverClosed("this caller is closed; open another")
        self._perform(self._caller.handle(request, monotonic_ns()))
        accepted, self._accepted = self._accepted, None
        assert accepted is not None
        return accepted

    def close(self) -> None:
        """Calls without an answer stay without one."""
        if self._closed:
            return
        self._closed = True
        for handle in (self._timer, self._telling):
            if handle is not None:
                handle.cancel()
        self._routes.close()
        self._udp.close()

    # -- the loop's callbacks --------------------------------------------------------------------

    def _on_readable(self) -> None:
        packets: list[Packet] = []
        for datagram in self._udp.drain():
            try:
                packet = self._wire.unpack(datagram)
            except Exception:  # a defect here must not be a way to stop the process from outside
                if (fields := self._throttle.admits("unreadable")) is not None:
                    log.exception("a datagram could not be read", bytes=len(datagram), **fields)
                continue
            if packet is not None:
                packets.append(packet)
        if packets:
            self._perform(self._caller.handle(PacketsReceived(tuple(packets)), monotonic_ns()))
            self._tell()

    def _fire(self) -> None:
        self._timer = None
        self._perform(self._caller.handle(TimerFired(), monotonic_ns()))
        self._tell()

    def _tell(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        if self._untold and not self._closed:
            outcomes, self._untold = self._untold, []
            self._listener(outcomes)

    def _perform(self, effects: list[CallerEffect]) -> None:
        for effect in effects:
            match effect:
                case Unicast(to, packet):
                    self._send((to,), packet)
                case Multicast(to, packet):
                    self._send(to, packet)
                case SetTimer(at):
                    self._set_timer(at)
                case Accepted():
                    self._accepted = effect
                case CallAcknowledged() | CallAnswered() | CallFailed():
                    self._untold.append(effect)
        if self._untold and self._telling is None:
            self._telling = self._loop.call_soon(self._tell)

    def _set_timer(self, at: int) -> None:
        """It moves with every answer. One that rings too early does no harm: the caller sets it anew."""
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        wait_ms = max(-((monotonic_ns() - at) // MS), 0)
        self._timer = self._loop.call_later(wait_ms / 1000, self._fire)

    def _send(self, to: tuple[str, ...], packet: Packet) -> None:
        datagram = self._wire.write(packet)
        for sockaddr in self._routes.find(to).sockaddrs:
            self._udp.send(datagram, sockaddr)


async def _facing(config: Config) -> Endpoint:
    """The address of this host from which the first member that has one is reached; nothing is sent."""
    loop = asyncio.get_running_loop()
    for text in config.contacts or config.founders:
        host, port = parse_address(text).endpoint
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        except (OSError, UnicodeError):
            continue
        for family, kind, protocol, _, sockaddr in found:
            try:
                with socket.socket(family, kind, protocol) as probe:
                    probe.connect(sockaddr)
                    return Endpoint(probe.getsockname()[0], 0)
            except OSError:
                continue
    raise ConfigurationError(
        "bind: no address of the group can be reached from here; check contacts, or name an own address"
    )
