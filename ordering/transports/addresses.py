"""What an address says, and where it leads.

To the engine an address is an opaque name. Here it is one of::

    127.0.0.1:7401                      reached by unicast
    [::1]:7401                          the same, IPv6
    node-1.example:7401                 a host name, looked up once
    10.0.0.5:7401/239.1.2.3:7400        listens to that multicast group as well
    [fd00::5]:7401/[ff05::77]:7400      the same, IPv6

The multicast group is part of the address because members need not all have it: whoever sends looks at the
addresses to see who shares its group, and sends the others copies of their own.
"""

import asyncio
import errno
import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final, NamedTuple, TypeAlias

from ordering.errors import ConfigurationError
from ordering.logs import Throttle, logger

log = logger(__name__)

Sockaddr: TypeAlias = tuple[str, int] | tuple[str, int, int, int]

LOOPBACK_PACKET_BYTES: Final = 60_000
# Fits an Ethernet frame together with the IPv6 and UDP headers, a tunnel's header and the seal.
NETWORK_PACKET_BYTES: Final = 1_400

# Addresses come from packets, so neither what is remembered nor what is looked up at once may grow with them.
KNOWN_MAX: Final = 1024
LOOKUPS_MAX: Final = 8
LOOKUP_RETRY_S: Final = 1.0
SAID_AGAIN_S: Final = 60.0

_IP_MTU: Final = 14
_IPV6_MTU: Final = 24
_HEADERS: Final = {socket.AF_INET: 28, socket.AF_INET6: 48}


class Endpoint(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Address(NamedTuple):
    """A site's unicast endpoint, and the multicast group it listens to, if any."""

    endpoint: Endpoint
    multicast: Endpoint | None = None

    def __str__(self) -> str:
        return f"{self.endpoint}/{self.multicast}" if self.multicast is not None else str(self.endpoint)


def parse_endpoint(text: str, field: str = "address") -> Endpoint:
    """Read ``host:port`` or ``[host]:port``."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 0xFFFF:
        raise ConfigurationError(f"{field}: {text!r} is no address; write host:port or [IPv6]:port")
    if ":" in host and not bracketed:
        raise ConfigurationError(f"{field}: {text!r} is ambiguous; write an IPv6 address as [{host}]:{port}")
    return Endpoint(host, int(port))


def parse_address(text: str, field: str = "address") -> Address:
    """Read an address as it stands in ``Config`` and ``Member``."""
    endpoint, slash, multicast = text.partition("/")
    return Address(parse_endpoint(endpoint, field), parse_endpoint(multicast, field) if slash else None)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def default_packet_bytes(address: str) -> int:
    """A ``Config.packet_bytes`` that travels unfragmented from this address."""
    local = is_loopback(parse_address(address).endpoint.host)
    return LOOPBACK_PACKET_BYTES if local else NETWORK_PACKET_BYTES


def numeric_sockaddr(endpoint: Endpoint, family: socket.AddressFamily) -> Sockaddr | None:
    """Where an endpoint without a host name lies; None if it has one, or is of another family."""
    try:
        found = socket.getaddrinfo(*endpoint, family, socket.SOCK_DGRAM, 0, socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return None
    return _sockaddr(found[0][4])


def _sockaddr(found: object) -> Sockaddr:
    assert isinstance(found, tuple)
    return found


def path_bytes(sockaddr: Sockaddr, family: socket.AddressFamily) -> int | None:
    """The largest datagram the first hop carries unfragmented; None where the system does not tell."""
    level, option = (socket.IPPROTO_IP, _IP_MTU) if family is socket.AF_INET else (
        socket.IPPROTO_IPV6, _IPV6_MTU,
    )  # fmt: skip
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(sockaddr)
            return probe.getsockopt(level, option) - _HEADERS[family]
    except OSError:
        return None


class Resolver:
    """Addresses to socket addresses: each looked up once, names in the background.

    What cannot be told yet, or at all, the caller counts as a packet lost: the protocol repeats it.
    """

    def __init__(self, family: socket.AddressFamily, changed: Callable[[], None]) -> None:
        self._family = family
        self._changed = changed  # something is known that was not
        self._known: dict[Endpoint, Sockaddr] = {}
        self._lookups: dict[Endpoint, asyncio.Task[None]] = {}
        self._throttle = Throttle(SAID_AGAIN_S)

    def find(self, endpoint: Endpoint) -> Sockaddr | None:
        known = self._known.get(endpoint)
        if known is not None:
            return known
        found = numeric_sockaddr(endpoint, self._family)
        if found is not None:
            self._remember(endpoint, found)
        elif _is_name(endpoint.host) and endpoint not in self._lookups and len(self._lookups) < LOOKUPS_MAX:
            self._lookups[endpoint] = asyncio.get_running_loop().create_task(self._look_up(endpoint))
        return found

    def _remember(self, endpoint: Endpoint, found: Sockaddr) -> None:
        while len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[endpoint] = found

    async def _look_up(self, endpoint: Endpoint) -> None:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(*endpoint, family=self._family, type=socket.SOCK_DGRAM)
            self._remember(endpoint, _sockaddr(found[0][4]))
            self._changed()
        except (OSError, UnicodeError) as failure:
            if (fields := self._throttle.admits(endpoint)) is not None:
                what = "no such host; packets to it are dropped"
                log.warning(what, host=str(endpoint), error=str(failure), **fields)
            await asyncio.sleep(LOOKUP_RETRY_S)  # the next packet to it asks again
        finally:
            self._lookups.pop(endpoint, None)

    def close(self) -> None:
        for task in self._lookups.values():
            task.cancel()


def _is_name(host: str) -> bool:
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return True
    return False


def reason_of(failure: OSError) -> str:
    """The word a failed system call is counted under."""
    return errno.errorcode.get(failure.errno or 0, type(failure).__name__)
