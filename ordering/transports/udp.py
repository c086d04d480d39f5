"""One non-blocking UDP socket: large buffers, bounded drains, and sends that never raise.

The network may lose any packet, so a send that fails is a loss: it is counted by reason, and the protocol
repairs it. Only a full socket is worth a little patience: what did not fit waits in a short queue.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterator
from struct import Struct as Layout
from typing import Final

from ordering.codec import Datagram
from ordering.errors import ConfigurationError
from ordering.logs import logger
from ordering.statistics import SocketStats
from ordering.transports.addresses import Endpoint, Sockaddr, numeric_sockaddr, parse_endpoint, reason_of

log = logger(__name__)

# Larger than any UDP payload, so that nothing is cut off unnoticed.
DATAGRAM_ROOM: Final = 65_536
BUFFER_BYTES: Final = 16 * 1024 * 1024
BUFFER_BYTES_ENOUGH: Final = 4 * 1024 * 1024
# A drain ends after so many datagrams or bytes: the application must get its turn. Measured with three
# members: against drains of 8, 64 save a receiver of small packets a third of its time; 1024 save no more,
# and with large packets they hold the event loop several times as long.
DRAIN_DATAGRAMS: Final = 64
DRAIN_BYTES: Final = 2 * 1024 * 1024
QUEUE_BYTES: Final = 4 * 1024 * 1024

# Linux' numbers; Python's socket module lacks them.
_SO_SNDBUFFORCE: Final = 32
_SO_RCVBUFFORCE: Final = 33
_SO_MEMINFO: Final = 55
_MEMINFO: Final = Layout("=9I")


class UdpSocket:
    """A bound socket and its send queue."""

    def __init__(self, sock: socket.socket, buffer_bytes: int = BUFFER_BYTES) -> None:
        sock.setblocking(False)
        _enlarge(sock, socket.SO_RCVBUF, _SO_RCVBUFFORCE, buffer_bytes, "net.core.rmem_max")
        _enlarge(sock, socket.SO_SNDBUF, _SO_SNDBUFFORCE, buffer_bytes, "net.core.wmem_max")
        self.sock = sock
        self.family = socket.AddressFamily(sock.family)
        self.datagrams_in = self.bytes_in = 0
        self.datagrams_out = self.bytes_out = 0
        self.errors: dict[str, int] = {}
        self._room = memoryview(bytearray(DATAGRAM_ROOM))
        self._queue: deque[tuple[bytes, Sockaddr]] = deque()
        self._queued_bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop, readable: Callable[[], None]) -> None:
        self._loop = loop
        loop.add_reader(self.sock.fileno(), readable)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self.sock.fileno())
            self._loop.remove_writer(self.sock.fileno())
        self._queue.clear()
        self.sock.close()

    # -- reading ---------------------------------------------------------------------------------

    def drain(self) -> Iterator[memoryview]:
        """What has arrived, in order, up to the bounds; the rest makes the socket readable again.

        Each datagram lies where the one before it lay: it must be read before the next is asked for. A new
        place for each would cost more than all the rest, in page faults.
        """
        receive, room = self.sock.recv_into, self._room
        count = size = 0
        while count < DRAIN_DATAGRAMS and size < DRAIN_BYTES:
            try:
                length = receive(room)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as failure:  # the network's word about an earlier send
                self._count(reason_of(failure))
                return
            count += 1
            size += length
            self.datagrams_in += 1
            self.bytes_in += length
            yield room[:length]

    # -- writing ---------------------------------------------------------------------------------

    def send(self, datagram: Datagram, to: Sockaddr) -> None:
        if self._queue:
            self._enqueue(datagram, to)
            return
        try:
            self.sock.sendto(datagram, to)
        except (BlockingIOError, InterruptedError):
            self._enqueue(datagram, to)
        except (OSError, OverflowError) as failure:
            self._failed(failure)
        else:
            self.datagrams_out += 1
            self.bytes_out += len(datagram)

    def _enqueue(self, datagram: Datagram, to: Sockaddr) -> None:
        """Keep the order of what waits; the newest is dropped, for what came before it is asked for first."""
        if self._loop is None or self._queued_bytes + len(datagram) > QUEUE_BYTES:
            self._count("queue full")
            return
        if not self._queue:
            self._loop.add_writer(self.sock.fileno(), self._flush)
        self._queue.append((bytes(datagram), to))
        self._queued_bytes += len(datagram)

    def _flush(self) -> None:
        queue = self._queue
        while queue:
            datagram, to = queue[0]
            try:
                self.sock.sendto(datagram, to)
            except (BlockingIOError, InterruptedError):
                return
            except (OSError, OverflowError) as failure:
                self._failed(failure)
            else:
                self.datagrams_out += 1
                self.bytes_out += len(datagram)
            queue.popleft()
            self._queued_bytes -= len(datagram)
        if self._loop is not None:
            self._loop.remove_writer(self.sock.fileno())

    def _failed(self, failure: Exception) -> None:
        self._count(reason_of(failure) if isinstance(failure, OSError) else type(failure).__name__)

    def _count(self, reason: str) -> None:
        self.errors[reason] = self.errors.get(reason, 0) + 1

    # -- measuring -------------------------------------------------------------------------------

    def stats(self) -> SocketStats:
        sock = self.sock
        receive = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        send = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        try:
            memory = _MEMINFO.unpack(sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))
        except (OSError, ValueError):
            return SocketStats(receive, send, None, None)
        return SocketStats(receive, send, memory[0], memory[8])


def socket_at(bind: str) -> tuple[socket.socket, Endpoint]:
    """A UDP socket at ``host:port``, and what was asked for."""
    endpoint = parse_endpoint(bind, "bind")
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    place = numeric_sockaddr(endpoint, family)
    if place is None:
        raise ConfigurationError(f"bind: {bind!r} is no IP address; name an interface by its address")
    return bound_socket(family, place), endpoint


def bound_socket(family: socket.AddressFamily, sockaddr: Sockaddr, *, shared: bool = False) -> socket.socket:
    """A UDP socket at this place; ``shared``: others on this host may listen there too."""
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(sockaddr)
    except OSError as failure:
        sock.close()
        place = f"{sockaddr[0]} port {sockaddr[1]}"
        raise ConfigurationError(
            f"bind: cannot listen at {place} ({failure.strerror}); choose a free address of this host,"
            " or end who has it: this very site, perhaps"
        ) from failure
    return sock


def _enlarge(sock: socket.socket, option: int, force: int, wanted: int, sysctl: str) -> None:
    """Past the system's cap if we may; a small buffer loses packets whenever this process pauses."""
    for attempt in (force, option):
        try:
            sock.setsockopt(socket.SOL_SOCKET, attempt, wanted)
            break
        except OSError:
            continue
    got = sock.getsockopt(socket.SOL_SOCKET, option) // 2  # Linux doubles it for its own bookkeeping
    if got < min(wanted, BUFFER_BYTES_ENOUGH):
        log.warning(
            "the kernel grants a small socket buffer; packets will be lost under load",
            bytes=got,
            wanted_bytes=wanted,
            remedy=f"sysctl -w {sysctl}={wanted}",
        )
