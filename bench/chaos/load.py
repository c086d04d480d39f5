"""Calls without end, from outside the group and from within, and a process that makes them.

Keys live for a second: each is a short history of its own, whole from its first call on, which a search
through all orders can judge.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from bench.chaos.history import Called, Ended, Notes, Returned
from bench.chaos.registers import Recorded
from bench.member import forget_settings, heard
from bench.wire import new_loop
from bench.workers import Link
from ordering.errors import OrderingError
from rsm.client import Client, ClientConfig
from rsm.errors import CallError, OutcomeUnknown, RsmError
from rsm.linearizability import outcome_of
from rsm.proxy import Backend, Consistency
from rsm.state_machine import StateMachine

KEYS: Final = 6
KEY_NS: Final = 1_000_000_000
CALL_SECONDS: Final = 5.0
FETCH_SECONDS: Final = 20.0
_REFUSED_SECONDS: Final = 0.05
_METHODS: Final = ("read", "append", "write", "swap")
_SHARES: Final = (7, 5, 4, 4)


class Calling(ABC):
    """The calls of one process, under one client's number."""

    def __init__(self, client: int, notes: Notes, rng: Random) -> None:
        self._client = client
        self._notes = notes
        self._rng = rng
        self._requests = 0
        self._tasks: list[asyncio.Task[None]] = []

    @abstractmethod
    async def call(self) -> bool:
        """One call; false if it was refused."""

    def start(self, tasks: int, pause_s: float) -> None:
        self._tasks = [asyncio.ensure_future(self._run(pause_s)) for _ in range(tasks)]

    async def stop(self) -> None:
        """No more calls; those under way come to their ends first."""
        tasks, self._tasks = self._tasks, []
        await asyncio.gather(*tasks)

    async def _run(self, pause_s: float) -> None:
        me = asyncio.current_task()
        while me in self._tasks:
            if not await self.call():
                await asyncio.sleep(_REFUSED_SECONDS)
            await asyncio.sleep(self._rng.uniform(0, 2 * pause_s))


class Load(Calling):
    """Calls of registers."""

    def __init__(self, backend: Backend, client: int, notes: Notes, rng: Random) -> None:
        super().__init__(client, notes, rng)
        self._backend = backend
        self._seen: dict[str, str] = {}  # the value that a key had last, to compare with

    def _draw(self, number: int) -> tuple[str, tuple[Any, ...]]:
        key = f"{time.monotonic_ns() // KEY_NS}.{self._rng.randrange(KEYS)}"
        (method,) = self._rng.choices(_METHODS, _SHARES)
        value = f"{self._client}:{number} "
        match method:
            case "read":
                return method, (key,)
            case "swap":
                return method, (key, self._seen.get(key, ""), value, self._client, number)
            case _:
                return method, (key, value, self._client, number)

    async def call(self) -> bool:
        self._requests = number = self._requests + 1
        name, arguments = self._draw(number)
        catalogue = self._backend.catalogue
        is_query = name in catalogue.queries
        method = catalogue.query(name) if is_query else catalogue.command(name)
        bound = method.bind(arguments, {})
        encoded = msgspec.msgpack.encode(bound)
        self._notes.write(Called(self._client, number, name, encoded, time.monotonic_ns()))
        ended, ts, reply, why = Ended.UNKNOWN, 0, b"", ""
        try:
            async with asyncio.timeout(CALL_SECONDS):
                if is_query:
                    reading = await self._backend.query(bound, Consistency.LINEARIZABLE, 0)
                    ts, reply = reading.timestamp, reading.reply
                else:
                    answer = await self._backend.execute(bound)
                    ts, reply = answer.ts, answer.reply
            outcome = outcome_of(reply)
            ended = Ended.REFUSED if outcome is None else Ended(outcome.value)
        except (OutcomeUnknown, TimeoutError) as error:
            why = str(error)
        except (RsmError, OrderingError) as error:
            ended, why = Ended.REFUSED, f"{type(error).__name__}: {error}"
        self._notes.write(Returned(self._client, number, ended, time.monotonic_ns(), ts, reply, why))
        if ended is Ended.OK:
            self._see(name, arguments, reply)
        return ended is not Ended.REFUSED

    def _see(self, name: str, arguments: tuple[Any, ...], reply: bytes) -> None:
        key = arguments[0]
        if key not in self._seen and len(self._seen) > 2 * KEYS:
            del self._seen[next(iter(self._seen))]
        match name:
            case "read" | "append":
                self._seen[key] = msgspec.msgpack.decode(reply)[1]
            case "write":
                self._seen[key] = arguments[1]
            case _:
                self._seen[key] = arguments[2]


# -- a process outside the group -----------------------------------------------------------------


class CallerSetup(msgspec.Struct, frozen=True, kw_only=True):
    client: int
    seed: str
    group: str
    replicas: tuple[str, ...]
    key_file: Path
    notes: Path
    tasks: int
    pause_s: float
    recording: Path | None = None

    def config(self) -> ClientConfig:
        return ClientConfig(
            group=self.group,
            replicas=self.replicas,
            key_file=self.key_file,
            recording=self.recording,
            recording_name=f"client-{self.client}",
        )


def caller(link: Link) -> None:
    setup: CallerSetup = link.hear()
    forget_settings()
    loop = new_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(_call(link, setup))


async def _call(link: Link, setup: CallerSetup) -> None:
    client = Client(Recorded, setup.config())
    await client.open()
    load = Load(client, setup.client, Notes(setup.notes), Random(setup.seed))
    load.start(setup.tasks, setup.pause_s)
    link.say("calling")
    while True:
        match await heard(link):
            case "quiet":
                await load.stop()
                client.close()
                link.say("")
            case "order":
                link.say(await fetch_order(Recorded, setup.config()))


async def fetch_order(machine: type[StateMachine], config: ClientConfig) -> list[tuple[int, int, int]] | str:
    """All pages of what the machine has ``executed``, or why there are none."""
    order: list[tuple[int, int, int]] = []
    try:
        async with Client(machine, config) as proxy:
            asking = proxy.with_options(timeout=FETCH_SECONDS)
            while page := (await asking.reading("executed", len(order))).value:
                order.extend(page)
    except (CallError, OutcomeUnknown, TimeoutError, OrderingError) as error:
        return f"the order could not be fetched: {type(error).__name__}: {error}"
    return order
