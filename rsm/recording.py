"""What this replica does, as rows for later (``ordering.recording``), without the ring ever waiting for it.

The event loop notes a range in a tuple, and a thread writes what has come (``recorded_rows``).
"""

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from time import monotonic_ns, time_ns
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeAlias, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ordering.driven_group import Notice
from ordering.effects import (
    Abandoned,
    Accepted,
    CallsTaken,
    Deliver,
    Delivery,
    EndMembership,
    InstallView,
    LevelReached,
    LockGranted,
    LockLost,
    Retract,
)
from ordering.packets import Batch
from ordering.qos import MAJORITY, Level, Qos
from ordering.recording import BOOT_BYTES, SCHEMA, SCHEMA_VERSION, EventKind, Recorder, qos_word
from ordering.views import Member, View, ViewId
from rsm.calls import Calls
from rsm.envelope import identity_of
from rsm.executor import Executor
from rsm.recorded_rows import FLUSH_SECONDS, ROWS_WAITING_MAX, RowWriter

P = ParamSpec("P")

APPLIED_SLOTS: Final = 256
_DIGEST_BYTES: Final = 4
_NO_VIEW: Final = ViewId(0, 0)
_NO_LEVEL: Final = LevelReached(0, 0)

_LEVELS: Final = {level: level.name.lower() for level in Level}
# Events are noted as their places in this list.
_KINDS: Final = list(EventKind)
STARTED, SUBMITTED, DELIVERED, HELD, RETRACTED, APPLIED, REPLIED, LEVEL = map(
    _KINDS.index,
    (
        EventKind.STARTED,
        EventKind.SUBMITTED,
        EventKind.DELIVERED,
        EventKind.HELD,
        EventKind.RETRACTED,
        EventKind.APPLIED,
        EventKind.REPLIED,
        EventKind.LEVEL,
    ),
)
VIEW, LOCK, RESTORED, ENDED, HALTED, GAP, ABANDONED, SAMPLE = map(
    _KINDS.index,
    (
        EventKind.VIEW,
        EventKind.LOCK,
        EventKind.RESTORED,
        EventKind.ENDED,
        EventKind.HALTED,
        EventKind.GAP,
        EventKind.ABANDONED,
        EventKind.SAMPLE,
    ),
)
_RARE: Final = (InstallView, Retract, Abandoned, LockGranted, LockLost, EndMembership)
_EVENT_WORDS: Final = pa.array([kind.value for kind in EventKind], pa.string())


class Teller(NamedTuple):
    """Who tells a row."""

    chain: int
    site: int
    boot: bytes


NOBODY: Final = Teller(0, 0, bytes(BOOT_BYTES))

# Columns of a row in the queue, in this order: who, event, mono_ns, and what the schema has from epoch on,
# without the wall clock.
Noted: TypeAlias = tuple[
    Teller,
    int,
    int,
    int | None,
    int | None,
    int | None,
    int | None,
    int | None,
    int | None,
    Qos | None,
    int | None,
    int | None,
    bytes | None,
    str | None,
]


def _guarded(
    method: Callable[Concatenate["Recording", P], None],
) -> Callable[Concatenate["Recording", P], None]:
    """A defect in here ends the recording; raised into the listener it would end the replica."""

    @wraps(method)
    def guarded(self: "Recording", /, *arguments: P.args, **named: P.kwargs) -> None:
        if self.error is None:
            try:
                method(self, *arguments, **named)
            except Exception as error:  # noqa: BLE001
                self.fail(error)

    return guarded


class Recording(RowWriter[Noted]):
    """One replica's, from ``start`` to ``finish``. All methods but those of the thread belong to the loop."""

    def __init__(
        self,
        directory: Path,
        name: str,
        *,
        bytes_max: int,
        rows_waiting_max: int = ROWS_WAITING_MAX,
        flush_seconds: float = FLUSH_SECONDS,
        rows_per_file: int = 100_000,
    ) -> None:
        super().__init__(
            directory,
            name,
            SCHEMA,
            bytes_max=bytes_max,
            rows_waiting_max=rows_waiting_max,
            flush_seconds=flush_seconds,
            rows_per_file=rows_per_file,
        )
        self._teller = NOBODY
        self._view = _NO_VIEW
        self._now = 0
        self._level = _NO_LEVEL
        self._applied = self._digest = 0  # the last slot with a message, and the digest behind it
        self._tell_at = 0
        self._reached = (0, 0, 0)

    # -- noting ----------------------------------------------------------------------------------

    def _note(
        self,
        event: int,
        mono_ns: int,
        first_ts: int | None = None,
        count: int | None = None,
        source: int | None = None,
        first_seq: int | None = None,
        qos: Qos | None = None,
        session: int | None = None,
        first_request: int | None = None,
        digest: bytes | None = None,
        detail: str | None = None,
    ) -> None:
        view = self._view
        self._put((
            self._teller, event, mono_ns, view.epoch, view.revision, first_ts, count, source,
            first_seq, qos, session, first_request, digest, detail,
        ), mono_ns)  # fmt: skip

    def _gap_row(self, missing: int, since_ns: int) -> Noted:
        view = self._view
        place = (self._teller, GAP, since_ns, view.epoch, view.revision)
        return (*place, None, missing, None, None, None, None, None, None, None)

    @_guarded
    def begin(self, member: Member, how: str) -> None:
        self._teller = Teller(0, member.site, member.boot.to_bytes(BOOT_BYTES, "big"))
        self._view, self._level, self._reached = _NO_VIEW, _NO_LEVEL, (0, 0, 0)
        self._applied = self._digest = self._tell_at = 0
        self._note(STARTED, monotonic_ns(), detail=how)

    @_guarded
    def hear(self, notices: Sequence[Notice], calls: Calls) -> None:
        """What the group says, in order."""
        now = self._now = monotonic_ns()
        for notice in notices:
            kind = type(notice)
            if kind is Deliver:
                self._deliver(cast(Deliver, notice), now)
            elif kind is LevelReached:
                self._level = cast(LevelReached, notice)
            elif kind is Accepted:
                accepted = cast(Accepted, notice)
                first, me = accepted.first_seq, self._teller.site
                session, number = calls.identity(first)
                self._note(SUBMITTED, now, None, accepted.count, me, first, accepted.qos, session, number)
            elif kind is CallsTaken:
                self._take(cast(CallsTaken, notice).batch, now)
            elif kind in _RARE:
                self._hear_rare(notice, now)

    def _take(self, batch: Batch, now: int) -> None:
        """What callers outside have asked of the group, this site submits."""
        session, number = identity_of(batch.messages[0])
        count, first = len(batch.messages), batch.first_seq
        self._note(SUBMITTED, now, None, count, batch.source, first, batch.qos, session, number)

    def _deliver(self, deliver: Deliver, now: int) -> None:
        """Deliveries of one source that follow each other are one range."""
        self._view = deliver.view
        if deliver.chain and deliver.chain != self._teller.chain:
            self._teller = self._teller._replace(chain=deliver.chain)
        first: Delivery | None = None
        count = 0
        for delivery in deliver.deliveries:
            if (
                first is not None
                and delivery.source == first.source
                and delivery.first_seq == first.first_seq + count
                and delivery.first_ts
                and delivery.first_ts == first.first_ts + count
                and delivery.qos == first.qos
                and delivery.reached == first.reached
            ):
                count += len(delivery.messages)
                continue
            if first is not None:
                self._delivered(first, count, now)
            first, count = delivery, len(delivery.messages)
        if first is not None:
            self._delivered(first, count, now)

    def _delivered(self, first: Delivery, count: int, now: int) -> None:
        self._note(
            DELIVERED,
            now,
            first.first_ts or None,
            count,
            first.source,
            first.first_seq,
            first.qos,
            detail=_LEVELS[first.reached],
        )

    def _hear_rare(self, notice: Notice, now: int) -> None:
        match notice:
            case InstallView(ts, chain, view, _, locks_only):
                self._teller = self._teller._replace(chain=chain)
                self._view = view.id
                said = "locks only" if locks_only else describe(view)
                self._note(VIEW, now, ts, detail=said)
            case Retract(after):
                self._note(RETRACTED, now, after + 1)
            case Abandoned(first_seq, count, _):
                self._note(ABANDONED, now, None, count, self._teller.site, first_seq)
            case LockGranted(name, fence, _):
                self._note(LOCK, now, fence, detail=f"granted {name}")
            case LockLost(name, fence):
                self._note(LOCK, now, fence, detail=f"lost {name}")
            case EndMembership(ending):
                self._note(ENDED, now, detail=ending.name.lower())
            case _:
                pass

    @_guarded
    def executed(self, delivery: Delivery, executor: Executor, own: int) -> None:
        """A delivery was executed, and who waited for it was answered: ``own`` calls of this process. The
        digest is told behind every so many slots, at the end of a delivery: those are the same at every
        replica, as a rule, and so can be compared. What the state contained before has no digest here."""
        last = delivery.first_ts + len(delivery.messages) - 1
        if executor.applied == last:
            self._applied, self._digest = last, executor.group.digest
            if last >= self._tell_at:
                self._tell_at = last - last % APPLIED_SLOTS + APPLIED_SLOTS
                self._note(APPLIED, self._now, last, digest=_encoded(self._digest))
        if own:
            self._replied(delivery, 0, own, "own")
        owed = delivery.owed
        if not owed:
            return
        if owed[-1] - owed[0] + 1 == len(owed):
            self._replied(delivery, owed[0], len(owed), "handler")
        else:
            for offset in owed:
                self._replied(delivery, offset, 1, "handler")

    def _replied(self, delivery: Delivery, offset: int, count: int, to: str) -> None:
        ts, seq = delivery.first_ts + offset, delivery.first_seq + offset
        self._note(REPLIED, self._now, ts, count, delivery.source, seq, detail=to)

    @_guarded
    def reached(self, held: int) -> None:
        """How far this replica is now: told now and then, for all of it only grows."""
        now, applied, level = monotonic_ns(), self._applied, self._level
        if (held, level.majority, applied) == self._reached:
            return
        self._reached = (held, level.majority, applied)
        self._note(HELD, now, held)
        self._note(LEVEL, now, level.majority, detail=f"stable {level.stable}")
        if applied:
            self._note(APPLIED, now, applied, digest=_encoded(self._digest))

    @_guarded
    def sample(self, received: int, figures: dict[str, int]) -> None:
        """How much was done so far, and how full everything is."""
        said = msgspec.json.encode(figures).decode()
        self._note(SAMPLE, monotonic_ns(), received or None, detail=said)

    @_guarded
    def restored(self, executor: Executor, donor: int) -> None:
        digest = _encoded(executor.group.digest)
        self._applied = 0  # what the state contains is not executed here
        self._note(RESTORED, monotonic_ns(), executor.applied, source=donor or None, digest=digest)

    @_guarded
    def halted(self, error: Exception) -> None:
        self._note(HALTED, monotonic_ns(), detail=type(error).__name__)

    # -- in the thread ---------------------------------------------------------------------------

    def _open(self) -> Recorder:
        return Recorder(
            self.directory, self.name, rows_per_file=self._rows_per_file, bytes_max=self._bytes_max
        )

    def _columns(self, rows: Sequence[Noted]) -> pa.RecordBatch:
        return columns(rows, time_ns() - monotonic_ns())


def _encoded(digest: int) -> bytes:
    return digest.to_bytes(_DIGEST_BYTES, "big")


def describe(view: View) -> str:
    """A view in one line: ``members 1=a:1 2=b:1; voters 1 2; ring 2 1``."""
    members = " ".join(f"{member.site}={member.address}" for member in view.members)
    voters = " ".join(map(str, view.electorate))
    ring = " ".join(map(str, view.ring))
    return f"members {members}; voters {voters}; ring {ring}"


def columns(rows: Sequence[Noted], wall_offset: int) -> pa.RecordBatch:
    """Rows as the schema has them."""
    count = len(rows)
    tellers, events, mono, *between, qualities, sessions, requests, digests, details = zip(*rows, strict=True)
    mono_ns = pa.array(mono, pa.int64())
    made: dict[str, Any] = {
        "schema_version": pa.repeat(pa.scalar(SCHEMA_VERSION, pa.uint16()), count),
        "event": pa.DictionaryArray.from_arrays(pa.array(events, pa.int16()), _EVENT_WORDS),
        "qos": _qualities(qualities),
        "session": sessions,
        "first_request": requests,
        "mono_ns": mono_ns,
        "wall_ns": pc.add(mono_ns, pa.scalar(wall_offset, pa.int64())),
        "digest": digests,
        "detail": details,
    }
    made |= zip(("epoch", "revision", "first_ts", "count", "source", "first_seq"), between, strict=True)
    made |= _who(tellers)
    arrays = [
        each if isinstance(each := made[field.name], pa.Array) else pa.array(each, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _who(tellers: Sequence[Teller]) -> dict[str, Any]:
    """Almost always the same one."""
    first, count = tellers[0], len(tellers)
    if tellers.count(first) < count:
        return dict(zip(Teller._fields, zip(*tellers, strict=True), strict=True))
    return {
        name: pa.repeat(pa.scalar(value, SCHEMA.field(name).type), count)
        for name, value in zip(Teller._fields, first, strict=True)
    }


def _qualities(qualities: Sequence[Qos | None]) -> pa.Array:
    """Almost always none or that of commands, whose place in the dictionary is 0."""
    words = [qos_word(MAJORITY)]
    places: list[int | None] = []
    for qos in qualities:
        if qos is None:
            places.append(None)
        elif qos == MAJORITY:
            places.append(0)
        else:
            word = qos_word(qos)
            if word not in words:
                words.append(word)
            places.append(words.index(word))
    return pa.DictionaryArray.from_arrays(pa.array(places, pa.int16()), pa.array(words, pa.string()))
