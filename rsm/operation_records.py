"""What callers saw of their calls, recorded by who calls: clients, gateways, and replicas for their process.

Rows are written to ``RECORDING/operations/NAME-…``, as events are (``ordering.recording``). One call is one
row, however often it was sent; a row is written when the caller has its outcome. Never does a call wait for
that: what finds the queue full is dropped and counted, and a row of kind ``gap`` says how many are missing.

==================  ===================  =========================================================
``schema_version``  uint16               1
``chain``           uint64               the chain of who answered; 0: the caller never learnt it
``client``          int64                its session; of queries, and commands that were never sent, a
                                         number drawn for this caller
``request``         int64                number of the request in the session; of queries the caller's own
``kind``            string, dictionary   ``command``; ``query``, which is linearizable; ``sequential`` and
                                         ``stale``: queries that may miss something; ``gap``: ``request``
                                         rows are missing, since ``call_ns``
``operation``       string, dictionary   name of the method; ``apply``: raw bytes
``argument``        fixed binary, 16     blake2b of the encoded call
``call_ns``         int64                monotonic clock of the caller, before anything was sent
``return_ns``       int64                and when it had the outcome
``wall_ns``         int64                wall clock of the caller when it called
``outcome``         string, dictionary   ``ok``; ``rejected`` by the machine; ``failed``: the machine raised,
                                         or, without ``ts``, it was certainly not executed; ``unknown``
``ts``              int64                the slot in which it was executed, or whose state was read
``reply``           fixed binary, 16     blake2b of the encoded reply
``clock``           string, dictionary   whose monotonic clock: the boot of the machine. What happened first
                                         can be said of operations of one clock alone
==================  ===================  =========================================================
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from rsm.errors import OutcomeUnknown
from rsm.proxy import Consistency, Reading
from rsm.recorded_rows import FLUSH_SECONDS, ROWS_WAITING_MAX, RowWriter
from rsm.sessions import Answer

if TYPE_CHECKING:
    from rsm.calls import Call

FOLDER: Final = "operations"
SCHEMA_VERSION: Final = 1
DIGEST_BYTES: Final = 16
BYTES_MAX: Final = 1 << 30
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_ENCODER: Final = msgspec.msgpack.Encoder()
_WORD: Final = pa.dictionary(pa.int16(), pa.string())
_KINDS: Final = {
    Consistency.LINEARIZABLE: "query",
    Consistency.SEQUENTIAL: "sequential",
    Consistency.STALE: "stale",
}

SCHEMA: Final = pa.schema(
    [
        pa.field("schema_version", pa.uint16(), nullable=False),
        pa.field("chain", pa.uint64(), nullable=False),
        pa.field("client", pa.int64(), nullable=False),
        pa.field("request", pa.int64(), nullable=False),
        pa.field("kind", _WORD, nullable=False),
        pa.field("operation", _WORD, nullable=False),
        pa.field("argument", pa.binary(DIGEST_BYTES)),
        pa.field("call_ns", pa.int64(), nullable=False),
        pa.field("return_ns", pa.int64()),
        pa.field("wall_ns", pa.int64(), nullable=False),
        pa.field("outcome", _WORD, nullable=False),
        pa.field("ts", pa.int64()),
        pa.field("reply", pa.binary(DIGEST_BYTES)),
        pa.field("clock", _WORD),
    ]
)


class Seen(NamedTuple):
    """A call as it ended, before the thread makes a row of it: bound, or raw bytes."""

    chain: int
    client: int
    request: int
    kind: str
    call: object
    call_ns: int
    return_ns: int | None
    error: str  # the outcome, if there was no reply
    ts: int | None = None
    reply: bytes = b""


class OperationRecords(RowWriter[Seen]):
    """Of one caller. ``chain``: the one it is in, as far as it knows, else 0."""

    def __init__(
        self,
        directory: Path,
        name: str,
        chain: Callable[[], int],
        *,
        bytes_max: int = BYTES_MAX,
        rows_waiting_max: int = ROWS_WAITING_MAX,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        super().__init__(
            directory / FOLDER,
            name,
            SCHEMA,
            bytes_max=bytes_max,
            rows_waiting_max=rows_waiting_max,
            flush_seconds=flush_seconds,
        )
        self.client = secrets.randbits(62) + 1
        self._chain = chain
        self._asked = 0
        self._clock = clock_name()

    # -- in the caller's loop --------------------------------------------------------------------

    def told(self, call: "Call") -> None:
        """A command is about to be sent; its future tells the outcome, to us first."""
        if self.error is None:
            call.future.add_done_callback(partial(self._told, call, monotonic_ns()))

    def _told(self, call: "Call", call_ns: int, future: "asyncio.Future[Answer]") -> None:
        client, request = (call.session, call.number) if call.number else (self.client, self._number())
        self._ended(client, request, "command", call.command, call_ns, future)

    def asked(
        self, pending: Callable[[], Awaitable[Reading]], query: msgspec.Struct, consistency: Consistency
    ) -> "asyncio.Future[Reading]":
        """``pending`` sends a query."""
        call_ns = monotonic_ns()
        future = asyncio.ensure_future(pending())
        if self.error is None:
            place = (self.client, self._number(), _KINDS[consistency], query, call_ns)
            future.add_done_callback(partial(self._ended, *place))
        return future

    def _number(self) -> int:
        self._asked += 1
        return self._asked

    def _ended(
        self,
        client: int,
        request: int,
        kind: str,
        call: object,
        call_ns: int,
        future: "asyncio.Future[Any]",
    ) -> None:
        if self.error is not None:
            return
        now, error, ts, reply = monotonic_ns(), "unknown", None, b""
        chain = self._chain()
        if not future.cancelled():
            raised = future.exception()
            if raised is None:
                found = future.result()
                error, reply = "", found.reply
                ts, chain = (
                    (found.timestamp, found.chain or chain) if type(found) is Reading else (found.ts, chain)
                )
            elif not isinstance(raised, OutcomeUnknown | TimeoutError):
                error = "failed"
        self._put(Seen(chain, client, request, kind, call, call_ns, now, error, ts, reply), call_ns)

    # -- in the thread ---------------------------------------------------------------------------

    def _gap_row(self, missing: int, since_ns: int) -> Seen:
        return Seen(self._chain(), self.client, missing, "gap", None, since_ns, None, "unknown")

    def _columns(self, rows: Sequence[Seen]) -> pa.RecordBatch:
        """What was answered before the caller had learnt the chain is of the one it has learnt since."""
        chain, offset = self._chain(), time_ns() - monotonic_ns()
        made: dict[str, Any] = dict(zip(Seen._fields, zip(*rows, strict=True), strict=True))
        made["schema_version"] = pa.repeat(pa.scalar(SCHEMA_VERSION, pa.uint16()), len(rows))
        made["chain"] = [each or chain for each in made["chain"]]
        made["kind"] = _words(made["kind"])
        made["operation"] = _words(map(_name_of, made["call"]))
        made["argument"] = [None if each is None else _digest(_encoded(each)) for each in made["call"]]
        made["wall_ns"] = [each + offset for each in made["call_ns"]]
        made["outcome"] = _words(row.error or outcome_of(row.reply) for row in rows)
        made["reply"] = list(map(_digest, made["reply"]))
        made["clock"] = _words([self._clock] * len(rows))
        arrays = [
            each if isinstance(each := made[field.name], pa.Array) else pa.array(each, field.type)
            for field in SCHEMA
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _words(words: Iterable[str]) -> pa.Array:
    """A dictionary of the few that there are."""
    known: dict[str, int] = {}
    places = [known.setdefault(word, len(known)) for word in words]
    return pa.DictionaryArray.from_arrays(pa.array(places, pa.int16()), pa.array(list(known), pa.string()))


_OK: Final = b"\x92\x00"  # an array of two, the tag first (``envelope``)
_REJECTED: Final = 1


def outcome_of(reply: bytes) -> str:
    """Of an encoded reply: an array whose first item says what it is."""
    if reply.startswith(_OK):
        return "ok"
    tag = reply[1] if len(reply) > 1 else None
    return "rejected" if tag == _REJECTED else "failed"


def _name_of(call: object) -> str:
    """Bound calls are tagged with the names of their methods."""
    if isinstance(call, msgspec.Struct):
        return str(call.__struct_config__.tag)
    return "" if call is None else "apply"


def _encoded(call: object) -> bytes:
    return call if isinstance(call, bytes) else _ENCODER.encode(call)


def _digest(data: bytes) -> bytes | None:
    return blake2b(data, digest_size=DIGEST_BYTES).digest() if data else None


def clock_name() -> str:
    """Whose monotonic clock this process reads: all of one boot of one machine share it."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return secrets.token_hex(16)  # nobody is known to share it
