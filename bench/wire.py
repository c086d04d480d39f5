"""Loop, sockets and hashing: the same for raw sockets, the bare loop and the engine's applications."""

import asyncio
import socket
from collections.abc import Sequence

import google_crc32c

from bench.errors import BenchError

Address = tuple[str, int]

# What a receiver may have waiting. Linux doubles it, and takes more from root than net.core.rmem_max allows.
BUFFER_BYTES = 4 * 1024 * 1024
# The kernel charges a datagram with more than its bytes; twice the size and a bit covers it.
_CHARGE_BYTES = 1024
DATAGRAM_MAX = 65_507
DRAIN_MAX = 256
_JOIN_BELOW = 4096
_SO_RCVBUFFORCE = 33
_IP_MULTICAST_ALL = 49


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed, as in the driver."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def loop_name() -> str:
    loop = new_loop()
    loop.close()
    return type(loop).__module__.partition(".")[0]


def open_socket(host: str, port: int = 0) -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.setblocking(False)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    try:
        opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, BUFFER_BYTES)
    except PermissionError:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1 if port else 0)
    opened.bind((host, port))
    return opened


def join_groups(receiver: socket.socket, groups: Sequence[str], interface: str) -> None:
    """Receive what is sent to these groups, and nothing that only another socket asked for."""
    receiver.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
    for group in groups:
        request = socket.inet_aton(group) + socket.inet_aton(interface)
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)


def send_groups(sender: socket.socket, interface: str) -> None:
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)


def window_for(receiver: socket.socket, size: int) -> int:
    """How many datagrams of ``size`` surely fit into the receiver's buffer."""
    buffer = receiver.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    return max(buffer // (2 * (size + _CHARGE_BYTES)), 2)


def drain(receiver: socket.socket, size: int) -> list[bytes]:
    """Everything that waits, within reason: other callbacks of the loop have their turn."""
    receive = receiver.recv
    datagrams: list[bytes] = []
    append = datagrams.append
    try:
        for _ in range(DRAIN_MAX):
            append(receive(size))
    except BlockingIOError:
        pass
    return datagrams


class Content:
    """A running hash over all bytes an application received, in order. CRC32C: cheap enough for any rate."""

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self._crc = 0

    def add(self, messages: Sequence[bytes]) -> None:
        """Small messages are joined first: the call costs more than they do."""
        if not messages:
            return
        self.count += len(messages)
        parts = (b"".join(messages),) if len(messages[0]) < _JOIN_BELOW else messages
        for part in parts:
            self.bytes += len(part)
            self._crc = google_crc32c.extend(self._crc, part)

    @property
    def digest(self) -> str:
        return f"{self.count}:{self.bytes}:{self._crc:08x}"


def same(digests: Sequence[str], what: str) -> str:
    """The one digest of all members; differing ones are a defect, never a measurement."""
    if len(set(digests)) != 1:
        raise BenchError(f"{what}: members received different content (count:bytes:crc {', '.join(digests)})")
    return digests[0]
