"""libcpg, corosync's closed process groups, by ctypes: only what the benchmark calls.

Two applications do the same work, one in Python, one in C for those who can build it. Callbacks come from
``dispatch``, on the caller's thread; messages are copied out of the library's buffer and hashed.
"""

import ctypes
import ctypes.util
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.errors import BenchError, NotAvailable
from bench.wire import Content

INSTALL = "apt-get install corosync libcpg4"
_OK = 1
_TRY_AGAIN = 6
_DISPATCH_ALL = 2
_AGREED = 2
_NAME_MAX = 128
_RETRY_SECONDS = 0.05
_BUILD_SECONDS = 30.0


class _Name(ctypes.Structure):
    _fields_ = (("length", ctypes.c_size_t), ("value", ctypes.c_char * _NAME_MAX))


class _Address(ctypes.Structure):
    _fields_ = (("nodeid", ctypes.c_uint32), ("pid", ctypes.c_uint32), ("reason", ctypes.c_uint32))


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_char_p), ("length", ctypes.c_size_t))


_u32, _u64, _size, _void = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
_addresses = ctypes.POINTER(_Address)
_Deliver = ctypes.CFUNCTYPE(None, _u64, _void, _u32, _u32, _void, _size)
_Change = ctypes.CFUNCTYPE(None, _u64, _void, _addresses, _size, _addresses, _size, _addresses, _size)


class _Callbacks(ctypes.Structure):
    _fields_ = (("deliver", _Deliver), ("change", _Change))


def library() -> ctypes.CDLL:
    name = ctypes.util.find_library("cpg")
    if name is None:
        raise NotAvailable(f"libcpg is not installed; to install it on Debian: {INSTALL}")
    return ctypes.CDLL(name)


class Work(msgspec.Struct, frozen=True, kw_only=True):
    size: int
    senders: int
    seconds: float
    one_outstanding: bool = False


_FINAL = b"final"
_BURST = 64
_PATIENCE_SECONDS = 20.0
_LATENCIES_MAX = 200_000


def _retry(until: float, what: str, call: Callable[[], int]) -> None:
    """A daemon that has just started refuses for a while."""
    while (code := call()) != _OK:
        if time.monotonic() > until:
            raise BenchError(f"{what}: error {code}; is corosync running here?")
        time.sleep(_RETRY_SECONDS)


# -- the application in Python -------------------------------------------------------------------


class Group:
    """Membership in one process group."""

    def __init__(self, name: str, seconds: float) -> None:
        self._library = lib = library()
        self._handle = handle = _u64()
        self.members = 0
        self.changed_ns = 0
        self._arrived: list[bytes] = []
        self._sources: list[int] = []
        self._callbacks = callbacks = _Callbacks(_Deliver(self._on_deliver), _Change(self._on_change))
        group = _Name(len(name), name.encode())
        descriptor = ctypes.c_int()
        until = time.monotonic() + seconds
        by = ctypes.byref
        _retry(until, "cpg_initialize", lambda: lib.cpg_initialize(by(handle), by(callbacks)))
        _retry(until, "cpg_join", lambda: lib.cpg_join(handle, by(group)))
        _retry(until, "cpg_fd_get", lambda: lib.cpg_fd_get(handle, by(descriptor)))
        self._poll = select.poll()
        self._poll.register(descriptor.value, select.POLLIN)
        self._mcast = lib.cpg_mcast_joined
        self._mcast.argtypes = (_u64, ctypes.c_int, ctypes.POINTER(_Vector), ctypes.c_uint)
        self._vector = _Vector()

    def _on_deliver(self, _handle: int, _group: int, node: int, _pid: int, start: int, length: int) -> None:
        self._arrived.append(ctypes.string_at(start, length))
        self._sources.append(node)

    def _on_change(self, _handle: int, _group: int, _members: object, count: int, *_: object) -> None:
        self.members = count
        self.changed_ns = time.monotonic_ns()

    def _send(self, message: bytes) -> bool:
        """False where flow control says: later."""
        self._vector.base, self._vector.length = message, len(message)
        code = self._mcast(self._handle, _AGREED, self._vector, 1)
        if code not in {_OK, _TRY_AGAIN}:
            raise BenchError(f"cpg_mcast_joined: error {code}")
        return bool(code == _OK)

    def dispatch(self, wait_ms: int) -> None:
        """Wait at most so long for something, then take all of it."""
        if self._poll.poll(wait_ms):
            code = self._library.cpg_dispatch(self._handle, _DISPATCH_ALL)
            if code not in {_OK, _TRY_AGAIN}:
                raise BenchError(f"cpg_dispatch: error {code}")

    def run(self, me: int, work: Work, pool: list[bytes]) -> dict[str, object]:
        """Send until the time is over, and receive until everyone's last message is here."""
        content = Content()
        took: list[int] = []
        sending, alone = me < work.senders, work.one_outstanding
        started_ns = last_ns = time.monotonic_ns()
        until_ns = started_ns + int(work.seconds * 1e9)
        sent = refused = finals = sent_at = 0
        waiting = False
        while finals < work.senders:
            full = False
            now = time.monotonic_ns()
            if now > until_ns + _PATIENCE_SECONDS * 1e9:
                raise BenchError("corosync stopped delivering")
            if sending and not (alone and waiting):
                if now >= until_ns:
                    sending = not self._send(_FINAL)
                else:
                    sent_at = now
                    for _ in range(1 if alone else _BURST):
                        full = not self._send(pool[sent % len(pool)])
                        if full:
                            refused += 1
                            break
                        sent += 1
                    waiting = not full
            self.dispatch(1 if full else (0 if sending and not (alone and waiting) else 20))
            if not self._arrived:
                continue
            arrived, self._arrived = self._arrived, []
            own = me + 1 in self._sources
            self._sources.clear()
            last_ns = time.monotonic_ns()
            if alone and waiting and own:
                took.append(last_ns - sent_at)
                waiting = False
            ended = arrived.count(_FINAL)
            finals += ended
            content.add([message for message in arrived if message != _FINAL] if ended else arrived)
        return {
            "digest": content.digest,
            "count": content.count,
            "seconds": (last_ns - started_ns) / 1e9,
            "refused": refused,
            "took": took[len(took) // 20 :],
        }


# -- the application in C ------------------------------------------------------------------------


class _Work(ctypes.Structure):
    _fields_ = (
        ("node", _u32),
        ("sending", _u32),
        ("senders", _u32),
        ("one_outstanding", _u32),
        ("burst", _u32),
        ("pool_messages", _u32),
        ("size", _u64),
        ("seconds_ns", _u64),
        ("patience_ns", _u64),
        ("pool", ctypes.c_char_p),
        ("took", ctypes.POINTER(_u64)),
        ("took_max", _u64),
    )


class _Report(ctypes.Structure):
    _fields_ = tuple((name, _u64) for name in ("count", "bytes", "hash", "elapsed_ns", "refused", "took"))


def build(folder: str) -> str:
    """Compile the C application into ``folder``; empty where there is no compiler, or it fails."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return ""
    source = Path(__file__).with_name("cpg_application.c")
    built = str(Path(folder, "cpg_application.so"))
    command = [compiler, "-O2", "-shared", "-fPIC", str(source), "-o", built, "-l:libcpg.so.4"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_BUILD_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return built if done.returncode == 0 else ""


class NativeGroup:
    """``Group``, its work done in C."""

    def __init__(self, path: str, name: str, seconds: float) -> None:
        self._library = lib = ctypes.CDLL(path)
        for function in (lib.bench_members, lib.bench_changed_ns):
            function.restype = _u64
        until = time.monotonic() + seconds
        _retry(until, "cpg_initialize", lib.bench_initialize)
        _retry(until, "cpg_join", lambda: lib.bench_join(name.encode()))

    @property
    def members(self) -> int:
        return int(self._library.bench_members())

    @property
    def changed_ns(self) -> int:
        return int(self._library.bench_changed_ns())

    def dispatch(self, wait_ms: int) -> None:
        code = self._library.bench_dispatch(wait_ms)
        if code != _OK:
            raise BenchError(f"cpg_dispatch: error {code}")

    def run(self, me: int, work: Work, pool: list[bytes]) -> dict[str, object]:
        took = (_u64 * _LATENCIES_MAX)()
        order = _Work(
            node=me + 1,
            sending=me < work.senders,
            senders=work.senders,
            one_outstanding=work.one_outstanding,
            burst=_BURST,
            pool_messages=len(pool),
            size=work.size,
            seconds_ns=int(work.seconds * 1e9),
            patience_ns=int(_PATIENCE_SECONDS * 1e9),
            pool=b"".join(pool),
            took=took,
            took_max=_LATENCIES_MAX,
        )
        report = _Report()
        code = self._library.bench_run(ctypes.byref(order), ctypes.byref(report))
        if code != _OK:
            raise BenchError("corosync stopped delivering" if code < 0 else f"cpg: error {code}")
        return {
            "digest": f"{report.count}:{report.bytes}:{report.hash:016x}",
            "count": report.count,
            "seconds": report.elapsed_ns / 1e9,
            "refused": report.refused,
            "took": list(took[: report.took])[report.took // 20 :],
        }
