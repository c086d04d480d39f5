"""libcpg, corosync's closed process groups, by ctypes: only what the benchmark calls.

Callbacks come from ``dispatch``, on the caller's thread. Messages are copied out of the library's buffer and
collected; the caller takes them after each dispatch, as many as there are.
"""

import ctypes
import ctypes.util
import select
import time

from bench.errors import BenchError, NotAvailable

INSTALL = "apt-get install corosync libcpg4"
_OK = 1
_TRY_AGAIN = 6
_DISPATCH_ALL = 2
_AGREED = 2
_NAME_MAX = 128
_RETRY_SECONDS = 0.05


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


class Group:
    """Membership in one process group."""

    def __init__(self, name: str, seconds: float) -> None:
        self._library = library()
        self._handle = _u64()
        self.arrived: list[bytes] = []
        self.sources: list[int] = []
        self.changes: list[tuple[int, tuple[int, ...]]] = []  # (when, members' node numbers)
        self._callbacks = _Callbacks(_Deliver(self._on_deliver), _Change(self._on_change))
        until = time.monotonic() + seconds
        self._retry(until, "initialize", lambda: self._library.cpg_initialize(
            ctypes.byref(self._handle), ctypes.byref(self._callbacks)))  # fmt: skip
        group = _Name(len(name), name.encode())
        self._retry(until, "join", lambda: self._library.cpg_join(self._handle, ctypes.byref(group)))
        descriptor = ctypes.c_int()
        self._retry(until, "fd_get", lambda: self._library.cpg_fd_get(
            self._handle, ctypes.byref(descriptor)))  # fmt: skip
        self._poll = select.poll()
        self._poll.register(descriptor.value, select.POLLIN)
        self._mcast = self._library.cpg_mcast_joined
        self._mcast.argtypes = (_u64, ctypes.c_int, ctypes.POINTER(_Vector), ctypes.c_uint)
        self._vector = _Vector()

    def _retry(self, until: float, what: str, call: "ctypes._NamedFuncPointer | object") -> None:
        """A daemon that has just started refuses for a while."""
        assert callable(call)
        while (code := call()) != _OK:
            if time.monotonic() > until:
                raise BenchError(f"cpg_{what}: error {code}; is corosync running here?")
            time.sleep(_RETRY_SECONDS)

    def _on_deliver(self, _handle: int, _group: int, node: int, _pid: int, start: int, length: int) -> None:
        self.arrived.append(ctypes.string_at(start, length))
        self.sources.append(node)

    def _on_change(
        self, _handle: int, _group: int, members: "ctypes._Pointer[_Address]", count: int, *_: object
    ) -> None:
        nodes = tuple(sorted(members[index].nodeid for index in range(count)))
        self.changes.append((time.monotonic_ns(), nodes))

    def send(self, message: bytes) -> bool:
        """False where flow control says: later."""
        self._vector.base, self._vector.length = message, len(message)
        code = self._mcast(self._handle, _AGREED, self._vector, 1)
        if code not in (_OK, _TRY_AGAIN):
            raise BenchError(f"cpg_mcast_joined: error {code}")
        return bool(code == _OK)

    def dispatch(self, wait_ms: int) -> None:
        """Wait at most so long for something, then take all of it."""
        if self._poll.poll(wait_ms):
            code = self._library.cpg_dispatch(self._handle, _DISPATCH_ALL)
            if code not in (_OK, _TRY_AGAIN):
                raise BenchError(f"cpg_dispatch: error {code}")

    def close(self) -> None:
        self._library.cpg_finalize(self._handle)
