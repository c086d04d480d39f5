"""A site of the battery: its application chains a hash over all it applies, and hands its state to others.

It keeps to the contract of a replica: it applies up to ``LevelReached.majority`` and not further, skips what
a transferred state contains, and joins again under a new name when its membership has ended. States travel
over the bulk channel, sealed like the datagrams.
"""

import asyncio
import secrets
import time
from array import array
from collections import deque
from hashlib import blake2b
from struct import Struct as Layout

import msgspec

from ordering import (
    Config,
    Deliver,
    EndMembership,
    InstallView,
    LevelReached,
    NoPrimary,
    RequestState,
    Retract,
    StateTransferred,
    SubmitError,
    View,
)
from ordering.driver import Driver, Group, Notice, Stopped
from ordering.errors import BulkError
from ordering.sealing import Keyring
from ordering.transports.addresses import parse_address
from ordering.transports.bulk_tcp import BulkLimits, BulkStream, open_bulk

_HEADER = Layout(">HHQQ")  # site, life, number, when it was submitted
MESSAGE_BYTES = 64
_TRANSFER_RETRY_SECONDS = 0.05
_REJOIN_SECONDS = 0.05
_TOOK_MAX = 200_000
_WRONGS_MAX = 10
_BULK_GROUP = 1
BULK_LIMITS = BulkLimits(handshake_ms=1000, idle_ms=2000, stall_ms=2000, linger_ms=500)


class Saved(msgspec.Struct):
    """The application's state after slot ``ts``: all it applied, as a chained hash; and the last number of
    each source, by which a message that is missing, repeated or out of place is known."""

    ts: int = 0
    digest: bytes = bytes(16)
    applied: int = 0
    last: dict[int, int] = {}

    def apply(self, ts: int, message: bytes) -> tuple[int, int, int, int]:
        """Source, its number before this one, this one's number, and when it was submitted."""
        site, life, number, when = _HEADER.unpack_from(message)
        source = life << 16 | site
        before = self.last.get(source, 0)
        self.last[source] = number
        self.digest = blake2b(self.digest + ts.to_bytes(8, "big") + message, digest_size=16).digest()
        self.applied += 1
        self.ts = ts
        return source, before, number, when


class Standing(msgspec.Struct, frozen=True):
    """Where a site is now."""

    view: str
    ring: int
    voters: int
    has_state: bool
    applied: int
    digest: bytes
    unapplied: int  # own messages accepted in this life
    stopped: bool


class Report(msgspec.Struct, kw_only=True):
    """What a site saw from its start on. Times are CLOCK_MONOTONIC, the same for all processes."""

    site: int
    state: Saved
    accepted: int  # of the last life
    source: int
    acked: dict[int, int]  # own sources: the last number applied here
    abandoned_lives: list[str]
    history: tuple[bytes, bytes]  # slots, and the hash's first 8 bytes there
    calls: list[tuple[int, int, int]]  # when something was applied; latest submission in it so far; applied
    views: list[tuple[int, int, View]]  # when, chain
    stances: list[tuple[int, bool]]  # from when on submissions were accepted, or refused as NoPrimary
    transfers: list[int]
    refused: int
    took_ns: list[tuple[int, int]]  # (when, how long) from submission to majority
    late_ns: int
    counters: dict[str, int]
    datagrams: int
    wrongs: list[str]


class Replica:
    """One site's application. ``stride``: every so many slots the hash is noted."""

    def __init__(self, me: int, driver: Driver, config: Config, keyring: Keyring | None, stride: int) -> None:
        self.me = me
        self.state = Saved(last={})
        self.wrongs: list[str] = []
        self.late_ns = 0
        self.stopped = False
        self.has_state = True
        self.group: Group
        self._driver = driver
        self._config = config
        self._keyring = keyring
        self._stride = stride
        self._boot = secrets.randbits(128)  # of the bulk channel
        self._life = -1
        self._number = 0
        self._majority = 0
        self._newest = 0
        self._log: deque[tuple[int, tuple[bytes, ...]]] = deque()
        self._wanted: RequestState | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._history = (array("Q"), array("Q"))
        self._calls: list[tuple[int, int, int]] = []
        self._views: list[tuple[int, int, View]] = []
        self._stances: list[tuple[int, bool]] = []
        self._acked: dict[int, int] = {}
        self._abandoned: list[str] = []
        self._transfers: list[int] = []
        self._took: deque[tuple[int, int]] = deque(maxlen=_TOOK_MAX)
        self._refused = 0
        self._counters: dict[str, int] = {}

    @property
    def source(self) -> int:
        return self._life << 16 | self.me

    def join(self) -> None:
        """Another life: new names for the member and for what it submits; the state is kept."""
        self._life += 1
        self._number = 0
        self._majority = 0
        self._log.clear()
        self.has_state = self._life == 0
        self.group = self._driver.join(self._config, self._listen)

    # -- what the group says ---------------------------------------------------------------------

    def _listen(self, notices: list[Notice]) -> None:
        for notice in notices:
            self._hear(notice)
        self._apply()

    def _hear(self, notice: Notice) -> None:
        match notice:
            case Deliver(_, deliveries):
                self._log.extend((each.first_ts, each.messages) for each in deliveries)
            case LevelReached(majority, _):
                self._majority = majority
            case Retract(after):
                if after < self._majority:
                    self._wrong(
                        f"all up to {self._majority} was final, and then all after {after} taken back"
                    )
                while self._log and self._log[-1][0] > after:
                    self._log.pop()
            case InstallView(_, chain, view, _, locks_only):
                if not locks_only:
                    self._views.append((time.monotonic_ns(), chain, view))
            case RequestState():
                self._wanted = notice
                self.has_state = False
                if self._fetching is None:
                    self._fetching = asyncio.ensure_future(self._transfer())
            case EndMembership(ending):
                self._end(ending.name)
                asyncio.get_running_loop().call_later(_REJOIN_SECONDS, self.join)
            case Stopped(error):
                self._end(repr(error))
                self.stopped = True
                self._wrong(f"the engine stopped: {error!r}")

    def _end(self, how: str) -> None:
        self._abandoned.append(how)
        self._wanted = None
        self.has_state = False
        self._keep_counters()

    def _keep_counters(self) -> None:
        for name, count in self.group.stats().counters.items():
            self._counters[name] = self._counters.get(name, 0) + count

    def _wrong(self, what: str) -> None:
        if len(self.wrongs) < _WRONGS_MAX:
            self.wrongs.append(f"site {self.me + 1}: {what}")

    def _apply(self) -> None:
        if not self.has_state:
            return
        now = time.monotonic_ns()
        before = self.state.applied
        while self._log and self._log[0][0] <= self._majority:
            first_ts, messages = self._log.popleft()
            for ts, message in enumerate(messages, first_ts):
                if ts > self.state.ts:
                    self._apply_one(ts, message, now)
        self.state.ts = max(self.state.ts, self._majority)
        if self.state.applied > before:
            self._calls.append((now, self._newest, self.state.applied))

    def _apply_one(self, ts: int, message: bytes, now: int) -> None:
        source, before, number, when = self.state.apply(ts, message)
        if number != before + 1:
            self._wrong(f"slot {ts}: number {number} of source {source:x} follows {before}")
        self._newest = max(self._newest, when)
        if source & 0xFFFF == self.me:
            self._acked[source] = number
            self._took.append((now, now - when))
        if ts % self._stride == 0:
            slots, digests = self._history
            slots.append(ts)
            digests.append(int.from_bytes(self.state.digest[:8], "big"))

    # -- state transfer --------------------------------------------------------------------------

    async def donate(self, stream: BulkStream) -> None:
        if self.has_state:
            await stream.send(msgspec.msgpack.encode(self.state))

    async def _transfer(self) -> None:
        while (wanted := self._wanted) is not None:
            saved = await self._fetch(wanted)
            if saved is None or saved.ts < wanted.ts or wanted is not self._wanted:
                await asyncio.sleep(_TRANSFER_RETRY_SECONDS)
                continue
            self._wanted = None
            if saved.ts > self.state.ts:
                self.state = saved
            self.has_state = True
            self._transfers.append(time.monotonic_ns())
            self._apply()
            self.group.handle(StateTransferred(saved.ts))
        self._fetching = None

    async def _fetch(self, wanted: RequestState) -> Saved | None:
        for donor in wanted.donors:
            address = self.group.address_of(donor)
            if address is None or address == self._driver.address:
                continue
            host, port = parse_address(address).endpoint
            body = bytearray()
            try:
                async with await open_bulk(
                    host, port, self._keyring, group=_BULK_GROUP, boot=self._boot, limits=BULK_LIMITS
                ) as stream:
                    await stream.finish()
                    async for chunk in stream:
                        body += chunk
            except BulkError:
                continue  # another donor, or the same one later
            if body:
                return msgspec.msgpack.decode(body, type=Saved)
        return None

    # -- what the battery asks -------------------------------------------------------------------

    async def beat(self, interval_s: float, batch: int) -> None:
        """Submit on a steady beat. How late the beat is tells whether this process got its share of CPU."""
        due = time.monotonic()
        while True:
            self._submit(batch)
            due = max(due + interval_s, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            self.late_ns = max(self.late_ns, int((time.monotonic() - due) * 1e9))

    def _submit(self, batch: int) -> None:
        now = time.monotonic_ns()
        first = self._number + 1
        accepts = True
        try:
            self.group.submit(
                tuple(
                    _HEADER.pack(self.me, self._life, first + offset, now).ljust(MESSAGE_BYTES, b".")
                    for offset in range(batch)
                )
            )
            self._number += batch
        except NoPrimary:
            accepts = False
            self._refused += batch
        except SubmitError:
            self._refused += batch  # between two lives, or the window is full: it will open again
            return
        if not self._stances or self._stances[-1][1] is not accepts:
            self._stances.append((now, accepts))

    def standing(self) -> Standing:
        view = self._views[-1][2] if self._views and not self.group.is_over else None
        return Standing(
            view="" if view is None else str(view.id),
            ring=0 if view is None else len(view.ring),
            voters=0 if view is None else len(view.electorate),
            has_state=self.has_state,
            applied=self.state.applied,
            digest=self.state.digest,
            unapplied=self._number - self.state.last.get(self.source, 0),
            stopped=self.stopped,
        )

    def report(self) -> Report:
        if not self.group.is_over:
            self._keep_counters()
        slots, digests = self._history
        return Report(
            site=self.me,
            state=self.state,
            accepted=self._number,
            source=self.source,
            acked=self._acked,
            abandoned_lives=self._abandoned,
            history=(slots.tobytes(), digests.tobytes()),
            calls=self._calls,
            views=self._views,
            stances=self._stances,
            transfers=self._transfers,
            refused=self._refused,
            took_ns=list(self._took),
            late_ns=self.late_ns,
            counters=self._counters,
            datagrams=self._driver.stats().datagrams_out,
            wrongs=self.wrongs,
        )
