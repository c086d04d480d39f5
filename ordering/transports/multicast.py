"""IP multicast: one datagram to every member that listens to the same group.

Sending uses the unicast socket, so that packets carry the site's own address; listening needs a second one,
bound to the group. Own packets come back, for another process on this host may want them.
"""

import asyncio
import secrets
import socket
from struct import pack
from typing import Final

import msgspec

from ordering.codec import BOOT_AT
from ordering.errors import ConfigurationError
from ordering.transports.addresses import Endpoint, Sockaddr, numeric_sockaddr, parse_endpoint
from ordering.transports.udp import bound_socket
from ordering.twins import BOOT_BYTES

# No site has this boot: a datagram with it is a test of the group, and everyone drops it.
NO_BOOT: Final = bytes(BOOT_BYTES)
TEST_TIMEOUT_S: Final = 2.0
TESTS: Final = 3

_IP_MULTICAST_ALL: Final = 49
_IPV6_MULTICAST_ALL: Final = 29


class MulticastSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The group's address, ``239.1.2.3:7400`` or ``[ff05::77]:7400``, the same at all that share it.

    ``interface`` is a name (``eth0``, ``lo``); empty: the one the system would choose. ``ttl`` is how many
    networks a packet may cross. ``loop`` False spares a host its own packets, and cuts off other processes
    of the group on the same host.
    """

    group: str
    interface: str = ""
    ttl: int = 1
    loop: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.ttl <= 255:
            raise ConfigurationError(f"multicast.ttl: must be from 1 to 255, is {self.ttl}")
        parse_endpoint(self.group, "multicast.group")

    @property
    def endpoint(self) -> Endpoint:
        return parse_endpoint(self.group, "multicast.group")


def group_sockaddr(settings: MulticastSettings, family: socket.AddressFamily) -> Sockaddr:
    """Where to send for the group; refuses what is no multicast address of this family."""
    found = numeric_sockaddr(settings.endpoint, family)
    if found is None or not _is_multicast(found[0], family) or not found[1]:
        kind = "239.x.y.z:port" if family is socket.AF_INET else "[ff05::x]:port"
        raise ConfigurationError(
            f"multicast.group: {settings.group!r} cannot be used with this bind address; write {kind}"
        )
    if len(found) == 4:
        return (found[0], found[1], 0, _interface_index(settings))
    return found


def _is_multicast(host: str, family: socket.AddressFamily) -> bool:
    packed = socket.inet_pton(family, host.partition("%")[0])
    return packed[0] == 0xFF if family is socket.AF_INET6 else 224 <= packed[0] <= 239


def _interface_index(settings: MulticastSettings) -> int:
    if not settings.interface:
        return 0
    try:
        return socket.if_nametoindex(settings.interface)
    except OSError:
        names = ", ".join(name for _, name in socket.if_nameindex())
        raise ConfigurationError(
            f"multicast.interface: {settings.interface!r} is no interface here; use one of {names}"
        ) from None


def prepare_sender(sock: socket.socket, settings: MulticastSettings) -> None:
    """Let the unicast socket send to the group."""
    index = _interface_index(settings)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, settings.ttl)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, settings.loop)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        return
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, settings.ttl)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, settings.loop)
    if index:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, pack("=4s4si", b"", b"", index))


def listening_socket(settings: MulticastSettings, family: socket.AddressFamily) -> socket.socket:
    """A socket bound to the group's address: bound to any, it would hear the groups of others as well."""
    sockaddr = group_sockaddr(settings, family)
    index = _interface_index(settings)
    sock = bound_socket(family, sockaddr, shared=True)
    packed = socket.inet_pton(family, sockaddr[0].partition("%")[0])
    try:
        if family is socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, packed + pack("=I", index))
        else:
            request = pack("=4s4si", packed, b"", index)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
    except OSError as failure:
        sock.close()
        raise ConfigurationError(
            f"multicast.group: cannot join {settings.group} ({failure.strerror}); name an interface that has"
            " multicast and a route to the group, or open without multicast"
        ) from failure
    _hear_only_own(sock, family)
    return sock


async def try_out(sender: socket.socket, listener: socket.socket, settings: MulticastSettings) -> None:
    """Hear ourselves once before anyone relies on it: a missing route would otherwise show as a group that
    is born by unicast and then stands still. What is wrong further out in the network stays unknown."""
    if not settings.loop:
        return
    token = bytes(BOOT_AT) + NO_BOOT + secrets.token_bytes(16)
    to = group_sockaddr(settings, socket.AddressFamily(sender.family))
    loop = asyncio.get_running_loop()
    for _ in range(TESTS):
        try:
            sender.sendto(token, to)
            async with asyncio.timeout(TEST_TIMEOUT_S / TESTS):
                while await loop.sock_recv(listener, len(token) + 1) != token:
                    pass
        except OSError:  # TimeoutError is one
            continue
        return
    raise ConfigurationError(
        f"multicast.group: what was sent to {settings.group} did not come back; see that the interface has"
        " multicast and a route to the group, or open without multicast"
    )


def _hear_only_own(sock: socket.socket, family: socket.AddressFamily) -> None:
    """Not what others on this host have joined on other interfaces. Only Linux needs and knows this."""
    level, option = (
        (socket.IPPROTO_IP, _IP_MULTICAST_ALL)
        if family is socket.AF_INET
        else (socket.IPPROTO_IPV6, _IPV6_MULTICAST_ALL)
    )
    try:
        sock.setsockopt(level, option, 0)
    except OSError:
        return
