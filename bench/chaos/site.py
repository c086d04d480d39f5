"""A site of the battery: a replica with failpoints, which also calls its own machine."""

import asyncio
import logging
import os
import zlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from bench.chaos.failpoints import Arm, FailingDriver, FailingReplica, Failpoints
from bench.chaos.history import Notes
from bench.chaos.http.load import Inside, StoreLoad
from bench.chaos.http.store import RecordedStore
from bench.chaos.load import Calling, Load
from bench.chaos.registers import Recorded
from bench.member import forget_settings, heard
from bench.wire import new_loop
from bench.workers import Link
from rsm.config import ReplicaConfig
from rsm.status import ReplicaStatus


class SiteSetup(msgspec.Struct, frozen=True, kw_only=True):
    """One life of one site. ``client`` is the number under which it calls in this life."""

    number: int
    client: int
    seed: str
    group: str
    addresses: tuple[str, ...]
    key_file: Path
    data: Path
    notes: Path
    log: Path
    snapshot_bytes: int
    ring: dict[str, Any]
    pause_s: float
    http: bool = False
    arm: Arm | None = None
    recording: Path | None = None

    def config(self) -> ReplicaConfig:
        return ReplicaConfig(
            group=self.group,
            bind=self.addresses[self.number],
            founders=self.addresses,
            key_file=self.key_file,
            mode="durable",
            data=self.data,
            snapshot_bytes=self.snapshot_bytes,
            ring=self.ring,
            recording=self.recording,
        )


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How a site answers when it is asked; ``order`` is how much its machine has executed, and a checksum;
    ``unfinished`` is what it still has to do without being called.
    ``engine`` is for who wants to know why a site does not come back."""

    status: ReplicaStatus
    order: tuple[int, int]
    unfinished: int = 0
    engine: dict[str, Any] = {}


class Ready(msgspec.Struct, frozen=True):
    """A replica has started."""


class Halted(msgspec.Struct, frozen=True):
    """A replica has stopped by itself, which none of these faults gives it a reason for."""

    why: str


def site(link: Link) -> None:
    """A process that waits to be a site: it has imported everything when it is told which, so that the dead
    can be back before anybody has noticed."""
    setup: SiteSetup = link.hear()
    run_site(setup, _serve(link, setup))


def run_site(setup: SiteSetup, life: Coroutine[Any, Any, None]) -> None:
    log = os.open(setup.log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {os.getpid()} %(levelname)s %(message)s")
    forget_settings()
    loop = new_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(life)


async def _serve(link: Link, setup: SiteSetup) -> None:
    points = FailingDriver.failpoints = Failpoints(setup.number)
    if setup.arm is not None:
        points.arm(setup.arm)
    replica: FailingReplica[Any] = FailingReplica(RecordedStore if setup.http else Recorded, setup.config())
    replica.failpoints = points
    notes, rng = Notes(setup.notes), Random(setup.seed)
    load: Calling = (
        StoreLoad(Inside(replica), setup.client, notes, rng)
        if setup.http
        else Load(replica, setup.client, notes, rng)
    )
    life = asyncio.ensure_future(_live(link, replica, load, setup.pause_s))
    await converse(link, points, load, life, lambda: _standing(replica))


async def converse(
    link: Link,
    points: Failpoints,
    load: Calling,
    life: "asyncio.Future[None]",
    standing: Callable[[], Standing | None],
) -> None:
    while True:
        match await heard(link):
            case Arm() as arm:
                points.arm(arm)
            case ("standing", int(number)):
                link.say((number, standing()))
            case "quiet":
                await load.stop()
                link.say("quiet")
        if life.done():
            life.result()


async def _live(link: Link, replica: FailingReplica[Any], load: Calling, pause_s: float) -> None:
    try:
        await replica.start()
        load.start(1, pause_s)
        link.say(Ready())
        await replica.ended()
    except Exception as error:
        link.say(Halted(f"{type(error).__name__}: {error}"))
        raise


def _standing(replica: FailingReplica[Any]) -> Standing | None:
    if not replica._opened:
        return None
    machine = replica.executor.machine
    assert isinstance(machine, Recorded | RecordedStore)
    checksum = zlib.crc32(msgspec.msgpack.encode(machine.order))
    return Standing(
        status=replica.status(), order=(len(machine.order), checksum), engine=describe_engine(replica)
    )


def describe_engine(replica: FailingReplica[Any]) -> dict[str, Any]:
    if replica._group is None:
        return {}
    engine = replica._group._engine
    place, recovery, queue = engine.site, engine.recovery, engine.site.queue
    return {
        "state": engine.state.value,
        "epoch": place.epoch,
        "frontier": queue.frontier,
        "known_end": queue.known_end,
        "base": queue.base,
        "majority": place.stability.majority,
        "fenced": place.fenced,
        "promised": str(recovery.promised),
        "accepted": str(recovery.accepted_ballot),
        "counters": dict(place.counters),
    }
