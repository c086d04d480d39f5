"""The machine that is measured, and the process around one replica of it.

The callers are tasks that await the replica's methods, one call each at a time, as an application's would:
what a method call costs is part of what is measured.
"""

import asyncio
import logging
import resource
import time
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.errors import BenchError
from bench.member import Network, Settings, forget_settings, heard
from bench.wire import new_loop
from bench.workers import Link
from ordering.errors import OrderingError
from rsm import Replica, ReplicaConfig, RsmError, StateMachine, command, query
from rsm.envelope import Language
from rsm.methods import Catalogue
from rsm.proxy import Proxy
from rsm.state_machine import GroupView

GROUP: Final = "bench"
KEYS: Final = 64
SIZE_MIN: Final = 64
_BIRTH_SECONDS: Final = 20.0
_SLACK_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.002
_PACE_SECONDS: Final = 0.0005
_SAMPLES_MAX: Final = 1 << 16


class Tally(StateMachine):
    """Counts what it executes, and keeps a few values."""

    def __init__(self) -> None:
        self.count = 0
        self.finished = 0
        self.views = 0
        self.values: dict[int, bytes] = {}

    @command
    def put(self, key: int, value: bytes) -> int:
        self.values[key] = value
        self.count += 1
        return self.count

    @command
    def add(self, amount: int) -> int:
        self.count += amount
        return self.count

    @command
    def finish(self) -> None:
        """A caller is done: a replica that has executed this has executed everything of its."""
        self.finished += 1

    @query
    def get(self, key: int) -> bytes | None:
        return self.values.get(key)

    def on_view(self, view: GroupView) -> None:
        self.views += 1


class Kind(StrEnum):
    PUT = "put"
    ADD = "add"
    GET = "get"


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What the callers of each replica do. ``in_flight`` are those of one replica. With a ``rate`` they call
    so often in a second, whether what they asked before is answered or not, and a wait begins when a call
    was due."""

    kind: Kind = Kind.PUT
    in_flight: int = 64
    rate: float = 0.0
    senders: int = 1
    seconds: float = 1.0


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica is given: where its log goes (nowhere: memory), how large a command is, and where it
    records what it does."""

    directory: Path | None = None
    size: int = 100
    recording: Path | None = None

    def config(self, me: int) -> ReplicaConfig:
        changes: dict[str, Any] = {"recording": self.recording}
        if self.directory is not None:
            changes |= {"mode": "durable", "data": self.directory / f"site-{me + 1}"}
        return ReplicaConfig(group=GROUP, bind="127.0.0.1:0", insecure=True, **changes)


def value_of(size: int) -> bytes:
    """So long that a ``put`` of it is a message of about ``size`` bytes on the ring."""
    catalogue = Catalogue(Tally)
    bare = catalogue.command("put").bind((KEYS - 1, b""), {})
    around = len(Language(catalogue).encode(1_000, 100_000, 99_000, bare))
    return bytes(number % 251 for number in range(max(size - around - 1, 1)))


def resident_bytes() -> int:
    """Memory of this process now; where the system does not tell, the most it ever had."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * resource.getpagesize()


class Stopwatch:
    """Latencies of a run of any length in bounded memory: when there are too many, every second one goes."""

    def __init__(self, samples_max: int = _SAMPLES_MAX) -> None:
        self.count = 0
        self.longest = 0
        self._samples_max = samples_max
        self._every = 1
        self._took: list[int] = []

    def note(self, nanoseconds: int) -> None:
        if self.count % self._every == 0:
            if len(self._took) == self._samples_max:
                del self._took[1::2]
                self._every *= 2
            if self.count % self._every == 0:
                self._took.append(nanoseconds)
        self.count += 1
        self.longest = max(self.longest, nanoseconds)

    @property
    def samples(self) -> list[int]:
        """The longest among them: it is what a maximum is asked for."""
        kept = list(self._took)
        if kept and max(kept) < self.longest:
            kept[-1] = self.longest
        return kept


class Caller:
    """The callers of one replica, and what they were answered."""

    def __init__(self, replica: Replica[Tally], me: int, value: bytes) -> None:
        self.replica = replica
        self.me = me
        self.value = value
        self.acknowledged = 0  # commands that count, since the replica began

    @property
    def machine(self) -> Tally:
        machine = self.replica.executor.machine
        assert isinstance(machine, Tally)
        return machine

    async def fill(self) -> None:
        """Every key has a value, and the session is open, before anything is timed."""
        for key in range(KEYS):
            await self.replica.proxy.put(key, self.value)
            self.acknowledged += 1

    async def work(self, work: Work, finals: int) -> dict[str, object]:
        """Returns when this replica has executed what all callers of the group have asked for."""
        watch = Stopwatch()
        proxy = self.replica.proxy
        views, cpu, started = self.machine.views, time.process_time(), time.monotonic_ns()
        until = started + int(work.seconds * 1e9)
        if self.me < work.senders:
            calls = {Kind.PUT: self._put, Kind.ADD: self._add, Kind.GET: self._get}[work.kind]
            if work.rate:
                await self._put_at(proxy, watch, until, work.rate)
            else:
                await asyncio.gather(*(calls(proxy, watch, until, each) for each in range(work.in_flight)))
            if work.kind is not Kind.GET:
                self.acknowledged += watch.count
            await proxy.finish()
        while self.machine.finished < finals:
            await asyncio.sleep(_POLL_SECONDS)
        return {
            "count": watch.count,
            "took": watch.samples,
            "started_ns": started,
            "ended_ns": time.monotonic_ns(),
            "cpu_s": time.process_time() - cpu,
            "view_changes": self.machine.views - views,
            "resident_bytes": resident_bytes(),
        }

    async def _put(self, proxy: Proxy[Any], watch: Stopwatch, until: int, key: int) -> None:
        put, value, clock, note = proxy.put, self.value, time.monotonic_ns, watch.note
        key %= KEYS
        while (asked := clock()) < until:
            await put(key, value)
            note(clock() - asked)

    async def _put_at(self, proxy: Proxy[Any], watch: Stopwatch, until: int, rate: float) -> None:
        """As many as are due, again and again; a late turn of the loop is made up for, and counts as wait."""
        put, value, clock = proxy.put, self.value, time.monotonic_ns
        began, asked = clock(), 0
        under_way: dict[asyncio.Task[None], None] = {}

        async def one(number: int) -> None:
            await put(number % KEYS, value)
            watch.note(clock() - began - int(number * 1e9 / rate))

        def forget(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and task.exception() is None:
                del under_way[task]  # a call that failed stays, and is told in the end

        while (now := clock()) < until:
            for number in range(asked, int((now - began) * rate / 1e9)):
                task = asyncio.create_task(one(number))
                under_way[task] = None
                task.add_done_callback(forget)
                asked += 1
            await asyncio.sleep(_PACE_SECONDS)
        await asyncio.gather(*under_way)

    async def _add(self, proxy: Proxy[Any], watch: Stopwatch, until: int, _: int) -> None:
        add, clock, note = proxy.add, time.monotonic_ns, watch.note
        while (asked := clock()) < until:
            await add(1)
            note(clock() - asked)

    async def _get(self, proxy: Proxy[Any], watch: Stopwatch, until: int, key: int) -> None:
        get, value, clock, note = proxy.get, self.value, time.monotonic_ns, watch.note
        key %= KEYS
        while (asked := clock()) < until:
            if await get(key) != value:
                raise BenchError(f"a read of key {key} gave something that nobody wrote")
            note(clock() - asked)

    def state(self) -> dict[str, object]:
        group = self.replica.executor.group
        return {
            "applied": group.applied,
            "digest": f"{group.digest:08x}",
            "count": self.machine.count,
            "acknowledged": self.acknowledged,
        }


def site(link: Link, me: int, _network: Network, _settings: Settings, place: Place) -> None:
    """Joins, then does one piece of work after the other until told to end."""
    forget_settings()
    logging.getLogger("ordering").setLevel(logging.ERROR)  # that it is insecure is known here
    loop = new_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(_serve(link, me, place))


async def _serve(link: Link, me: int, place: Place) -> None:
    replica = Replica(Tally, place.config(me))
    await replica.open()
    link.say(replica.address)
    replica.join(tuple(await heard(link)))
    caller = Caller(replica, me, value_of(place.size))
    try:
        async with asyncio.timeout(_BIRTH_SECONDS):
            await replica.ready()
            await caller.fill()
    except TimeoutError:
        raise BenchError(f"no group came about in {_BIRTH_SECONDS:.0f} s") from None
    link.say("member")
    finals = 0
    while (work := await heard(link)) is not None:
        if work == "state":
            link.say(caller.state())
            continue
        link.say("armed")
        await heard(link)
        finals += work.senders
        link.say(await _bounded(caller.work(work, finals), replica, work.seconds + _SLACK_SECONDS))
    await replica.stop()


async def _bounded(work: Any, replica: Replica[Tally], seconds: float) -> dict[str, object]:
    """A replica that halts, and callers that are never answered, are no result."""
    working, over = asyncio.ensure_future(work), asyncio.ensure_future(replica.ended())
    done, _ = await asyncio.wait((working, over), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    if working in done:
        over.cancel()
        try:
            report: dict[str, object] = working.result()
        except (RsmError, OrderingError) as error:
            raise BenchError(f"a call failed: {error}") from error
        return report
    working.cancel()
    if over in done:
        over.result()
        raise BenchError("the replica stopped")
    raise BenchError(f"not every command was answered within {seconds:.0f} s")
