"""The bundled HTTP/1.1 load generator: one thread, plain sockets, one request at a time on each connection.

It shares the cores with what it loads, so it does little for a request: one send, one receive, one parse in
C, no event loop between. *Closed*: every answer brings the next request, on as many connections as asked for.
*Open*: requests are due by the clock, whether those before are answered or not; a wait begins when its
request was due, so a server that stalls cannot hide it by taking fewer.

A connection that breaks is counted and opened again. Whoever is refused (429, 503) repeats at once,
as the worst of clients does; a refusal that does not say when to come back is counted.
"""

import resource
import select
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from enum import IntEnum, StrEnum
from itertools import cycle
from typing import Final, NamedTuple

import httptools
import msgspec

from bench.errors import BenchError
from bench.histogram import Histogram
from bench.workers import Link

Address = tuple[str, int]

CONNECTIONS_MAX: Final = 10_000
_READ_BYTES: Final = 16 * 1024
_HEAD_BYTES_MAX: Final = 64 * 1024
_CONNECT_SECONDS: Final = 10.0
_REOPEN_NS: Final = 20_000_000
_LOOK_NS: Final = 500_000_000
_IDLE_SECONDS: Final = 0.02
_SPARE_FILES: Final = 64

_IN: Final = select.EPOLLIN
_OUT: Final = select.EPOLLOUT


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """``requests`` are whole ones, sent in turn; connections are spread over ``addresses``."""

    addresses: tuple[Address, ...]
    requests: tuple[bytes, ...]
    connections: int
    seconds: float = 0.0  # 0: each request once
    rate: float = 0.0  # requests/s by the clock; 0: closed
    overdue_seconds: float = 10.0


class Mishap(StrEnum):
    """Why a request has no answer."""

    REFUSED = "connection refused"
    RESET = "connection reset"
    CLOSED = "connection closed before the answer"
    MALFORMED = "answer is not HTTP"
    OVERDUE = "no answer in time"


class Report(NamedTuple):
    """``waits`` by status. ``in_time``: how many came before the time was over; a rate is made of these."""

    seconds: float
    waits: dict[int, Histogram]
    in_time: Counter[int]
    mishaps: Counter[Mishap]
    unadvised: int
    bytes: int
    cpu_s: float

    def merged(self, wanted: Callable[[int], bool]) -> Histogram:
        """The waits of all statuses that are wanted."""
        found = Histogram()
        for status, waits in self.waits.items():
            if wanted(status):
                found.add(waits)
        return found


def is_accepted(status: int) -> bool:
    return status < 400


def is_refused(status: int) -> bool:
    """Told to come back later."""
    return status in {429, 503}


class _State(IntEnum):
    DOWN = 0
    CONNECTING = 1
    IDLE = 2
    ASKED = 3


class _Connection:
    __slots__ = (
        "address",
        "asked_ns",
        "complete",
        "head",
        "kept",
        "parser",
        "socket",
        "state",
        "status",
        "unsent",
    )

    def __init__(self, address: Address) -> None:
        self.address = address
        self.socket: socket.socket | None = None
        self.state = _State.DOWN
        self.asked_ns = 0
        self.unsent = b""
        self.renew()

    def renew(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.complete = 0
        self.kept = True
        self.status = 0
        self.head = b""

    def on_message_complete(self) -> None:
        """The parser forgets both as soon as this returns."""
        self.status = self.parser.get_status_code()
        self.kept = self.parser.should_keep_alive()
        self.complete += 1


class Loader:
    """One load, from the first connection to the last answer."""

    def __init__(self, load: Load) -> None:
        if not load.requests or not load.addresses:
            raise BenchError("load: there must be requests, and an address for them")
        if not 1 <= load.connections <= CONNECTIONS_MAX:
            raise BenchError(f"connections: must be from 1 to {CONNECTIONS_MAX}, is {load.connections}")
        _allow_files(load.connections + _SPARE_FILES)
        self.load = load
        self.requests = cycle(load.requests)
        self.left = 0 if load.seconds else len(load.requests)
        self.interval_ns = int(1e9 / load.rate) if load.rate else 0
        self.due_ns = 0
        self.until_ns = 0
        self.epoll = select.epoll()
        self.connections = [
            _Connection(load.addresses[number % len(load.addresses)]) for number in range(load.connections)
        ]
        self.by_fd: dict[int, _Connection] = {}
        self.idle: deque[_Connection] = deque()
        self.down: deque[tuple[int, _Connection]] = deque()
        self.asked = 0
        self.running = False
        self.waits: dict[int, Histogram] = {}
        self.in_time: Counter[int] = Counter()
        self.mishaps: Counter[Mishap] = Counter()
        self.unadvised = 0
        self.bytes = 0

    def run(self) -> Report:
        try:
            self._connect_all()
            cpu = time.process_time()
            started = time.monotonic_ns()
            self._drive(started)
            spent = time.monotonic_ns() - started
            return Report(
                seconds=self.load.seconds or spent / 1e9,
                waits=self.waits,
                in_time=self.in_time,
                mishaps=self.mishaps,
                unadvised=self.unadvised,
                bytes=self.bytes,
                cpu_s=time.process_time() - cpu,
            )
        finally:
            for connection in self.connections:
                if connection.socket is not None:
                    connection.socket.close()
            self.epoll.close()

    # -- time ------------------------------------------------------------------------------------

    def _connect_all(self) -> None:
        """Nothing is asked before all are connected; one that never is goes down as a mishap."""
        until = time.monotonic() + _CONNECT_SECONDS
        for connection in self.connections:
            self._open(connection)
        while time.monotonic() < until and any(
            connection.state is _State.CONNECTING for connection in self.connections
        ):
            self._poll(_IDLE_SECONDS)

    def _drive(self, started: int) -> None:
        load = self.load
        overdue_ns = int(load.overdue_seconds * 1e9)
        self.until_ns = started + int(load.seconds * 1e9)
        self.due_ns = started
        self.running = True
        look_ns = started + _LOOK_NS
        while True:
            now = time.monotonic_ns()
            if self.down and self.down[0][0] <= now:
                self._open(self.down.popleft()[1])
            if now >= look_ns:
                look_ns = now + _LOOK_NS
                self._give_up(now - overdue_ns)
            while self.idle and (due := self._due(now)) >= 0:
                self._ask(self.idle.popleft(), due)
            if self._over(now):
                return
            self._poll(self._pause(now))

    def _over(self, now: int) -> bool:
        """Once everything that was to be asked is answered, or has been waited for in vain."""
        if not self.load.seconds:
            return bool(self.mishaps) or not (self.left or self.asked)
        if now < self.until_ns:
            return False
        if self.interval_ns and self.due_ns < self.until_ns:
            return self._write_off(now)
        return not self.asked

    def _write_off(self, now: int) -> bool:
        """Requests that were due and found no connection for so long are overdue, every one of them."""
        if now < self.until_ns + int(self.load.overdue_seconds * 1e9):
            return False
        missing = (self.until_ns - self.due_ns + self.interval_ns - 1) // self.interval_ns
        self.mishaps[Mishap.OVERDUE] += missing + self.asked
        return True

    def _pause(self, now: int) -> float:
        if self.interval_ns and self.idle and self.due_ns < self.until_ns:
            return max(0.0, (self.due_ns - now) / 1e9)
        return _IDLE_SECONDS

    def _give_up(self, before_ns: int) -> None:
        for connection in self.connections:
            if connection.state is _State.ASKED and connection.asked_ns < before_ns:
                self._break(connection, Mishap.OVERDUE)

    # -- connections -----------------------------------------------------------------------------

    def _open(self, connection: _Connection) -> None:
        host, _ = connection.address
        opened = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        opened.setblocking(False)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.socket = opened
        connection.state = _State.CONNECTING
        connection.unsent = b""
        connection.renew()
        self.by_fd[opened.fileno()] = connection
        self.epoll.register(opened.fileno(), _OUT)
        opened.connect_ex(connection.address)  # how it went is told when the socket is writable

    def _connected(self, connection: _Connection) -> None:
        assert connection.socket is not None
        if connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._break(connection, Mishap.REFUSED)
            return
        self.epoll.modify(connection.socket.fileno(), _IN)
        self._free(connection)

    def _close(self, connection: _Connection) -> None:
        assert connection.socket is not None
        del self.by_fd[connection.socket.fileno()]
        connection.socket.close()  # which takes it out of epoll too
        connection.socket = None
        if connection.state is _State.ASKED:
            self.asked -= 1
        elif connection.state is _State.IDLE:
            self.idle.remove(connection)
        connection.state = _State.DOWN

    def _break(self, connection: _Connection, why: Mishap) -> None:
        """An idle connection may be closed by the server at any time: that is nobody's mishap."""
        if connection.state is not _State.IDLE:
            self.mishaps[why] += 1
        self._close(connection)
        self.down.append((time.monotonic_ns() + _REOPEN_NS, connection))

    # -- requests --------------------------------------------------------------------------------

    def _due(self, now: int) -> int:
        """Since when the next request is due; -1: none is."""
        if not self.running:
            return -1
        if self.interval_ns:  # what was due in time is asked, however late
            return self.due_ns if self.due_ns <= now and self.due_ns < self.until_ns else -1
        return now if (now < self.until_ns if self.load.seconds else self.left) else -1

    def _free(self, connection: _Connection) -> None:
        """It is connected and waits for nothing: the next request, or a rest."""
        due = self._due(time.monotonic_ns())
        if due < 0:
            connection.state = _State.IDLE
            self.idle.append(connection)
        else:
            self._ask(connection, due)

    def _ask(self, connection: _Connection, since_ns: int) -> None:
        assert connection.socket is not None
        connection.state = _State.ASKED
        connection.asked_ns = since_ns
        self.asked += 1
        self.left -= 1
        self.due_ns += self.interval_ns
        self._send(connection, next(self.requests))

    def _send(self, connection: _Connection, request: bytes) -> None:
        assert connection.socket is not None
        try:
            sent = connection.socket.send(request)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._break(connection, Mishap.RESET)
            return
        if sent != len(request) or connection.unsent:
            connection.unsent = request[sent:]
            wanted = _IN | _OUT if connection.unsent else _IN
            self.epoll.modify(connection.socket.fileno(), wanted)

    # -- answers ---------------------------------------------------------------------------------

    def _poll(self, seconds: float) -> None:
        """epoll counts in milliseconds, too coarse to be on time: select waits, epoll tells for whom."""
        if self.interval_ns:
            select.select([self.epoll], [], [], seconds)
            seconds = 0
        for fd, events in self.epoll.poll(seconds):
            connection = self.by_fd.get(fd)
            if connection is None:
                continue
            if connection.state is _State.CONNECTING:
                self._connected(connection)
            elif events & ~_OUT:
                self._receive(connection)
            elif connection.unsent:
                self._send(connection, connection.unsent)

    def _receive(self, connection: _Connection) -> None:
        assert connection.socket is not None
        try:
            data = connection.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._break(connection, Mishap.RESET)
            return
        if not data:
            self._break(connection, Mishap.CLOSED)
            return
        try:
            connection.parser.feed_data(data)
        except httptools.HttpParserError:
            self._break(connection, Mishap.MALFORMED)
            return
        self.bytes += len(data)
        if connection.complete:
            self._answered(connection, data)
        elif len(connection.head) < _HEAD_BYTES_MAX:
            connection.head += data

    def _answered(self, connection: _Connection, data: bytes) -> None:
        if connection.state is not _State.ASKED or connection.complete > 1:  # nobody asked for that
            self._break(connection, Mishap.MALFORMED)
            return
        now = time.monotonic_ns()
        status = connection.status
        waits = self.waits.get(status)
        if waits is None:
            waits = self.waits[status] = Histogram()
        waits.note(now - connection.asked_ns)
        if now <= self.until_ns:
            self.in_time[status] += 1
        if is_refused(status) and b"\r\nretry-after:" not in (connection.head + data).lower():
            self.unadvised += 1
        connection.complete = 0
        connection.head = b""
        if not connection.kept:
            self._close(connection)
            self._open(connection)
            return
        self.asked -= 1
        self._free(connection)


def _allow_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        if hard != resource.RLIM_INFINITY and hard < count:
            raise BenchError(f"connections: {count} files are needed, ulimit -n allows {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def process(link: Link) -> None:
    """The generator as a process of its own, load after load."""
    while (load := link.hear()) is not None:
        link.say(Loader(load).run())
