"""Which datagrams a packet costs: one for all who share our multicast group, one for each of the others."""

import socket
from typing import Final

from ordering.codec import DATAGRAM_MAX
from ordering.errors import ConfigurationError
from ordering.logs import logger
from ordering.transports.addresses import Endpoint, Resolver, Sockaddr, parse_address, path_bytes

log = logger(__name__)

ROUTES_MAX: Final = 256


class Route:
    """Where copies go so that everyone gets one."""

    __slots__ = ("sockaddrs", "whole_bytes")

    def __init__(self, sockaddrs: tuple[Sockaddr, ...], whole_bytes: int) -> None:
        self.sockaddrs = sockaddrs
        self.whole_bytes = whole_bytes  # larger datagrams are cut up by the first hop to one of them


class Routes:
    """Routes by the addresses they serve, each worked out once."""

    def __init__(
        self, family: socket.AddressFamily, shared: Endpoint | None, shared_sockaddr: Sockaddr | None
    ) -> None:
        self.drops: dict[str, int] = {}
        self.fragmented = 0
        self._family = family
        self._shared = shared
        self._shared_sockaddr = shared_sockaddr
        self._known: dict[tuple[str, ...], Route] = {}
        self._resolver = Resolver(family, self._known.clear)

    def find(self, to: tuple[str, ...]) -> Route:
        return self._known.get(to) or self._make(to)

    def close(self) -> None:
        self._resolver.close()

    def note_fragments(self, size: int, route: Route) -> None:
        self.fragmented += len(route.sockaddrs)
        if self.fragmented == len(route.sockaddrs):
            log.warning(
                "a datagram exceeds what the interface carries in one piece; one lost fragment loses it all",
                bytes=size,
                whole_bytes=route.whole_bytes,
                remedy="lower packet_bytes (default_packet_bytes knows a good value)",
            )

    def _make(self, to: tuple[str, ...]) -> Route:
        """A group of one is no reason to multicast. Incomplete routes are looked for again each time."""
        sharing: list[Endpoint] = []
        alone: list[Endpoint] = []
        for text in to:
            try:
                address = parse_address(text)
            except ConfigurationError:  # out of a packet: to the engine an address is any text
                self._count("no address")
                continue
            shares = self._shared is not None and address.multicast == self._shared
            (sharing if shares else alone).append(address.endpoint)
        found: list[Sockaddr | None] = []
        if len(sharing) > 1:
            found.append(self._shared_sockaddr)
        else:
            alone += sharing
        found += [self._resolver.find(endpoint) for endpoint in alone]
        sockaddrs = tuple([sockaddr for sockaddr in found if sockaddr is not None])
        limits = [path_bytes(sockaddr, self._family) or DATAGRAM_MAX for sockaddr in sockaddrs]
        route = Route(sockaddrs, min(limits, default=DATAGRAM_MAX))
        for _ in range(len(found) - len(sockaddrs)):
            self._count("no host")
        if len(found) == len(sockaddrs):
            if len(self._known) >= ROUTES_MAX:
                self._known.clear()
            self._known[to] = route
        return route

    def _count(self, reason: str) -> None:
        self.drops[reason] = self.drops.get(reason, 0) + 1
