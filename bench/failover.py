"""How long a group stands still when a site is lost, and whether it suspects anyone without reason.

All sites submit small messages at a steady pace. One is killed, stopped, or its link pulled. Two times are
taken at the survivors, the later of theirs counting: until messages flow again, which is where the longest
silence after the loss ended, and until a view without the lost site is installed.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import pairwise

import msgspec

from bench.errors import BenchError
from bench.member import Member, Network, Settings, heard
from bench.namespaces import Bridge, bridged
from bench.ordering import OrderingPlan, Ring, Step, crews
from bench.results import Result, Value, calibrate, median, versions
from bench.wire import new_loop
from bench.workers import CrewMaker, Link, Placement, Worker
from ordering import Deliver, SubmitError

_MESSAGE = b"beat".ljust(64, b".")
_BEFORE_SECONDS = 0.7
_AFTER_SECONDS = 0.7
_PATIENCE_SECONDS = 20.0
MILLISECOND = 1_000_000


class Loss(StrEnum):
    KILL = "kill"
    STOP = "stop"
    LINK = "link"


class FailoverPlan(msgspec.Struct, frozen=True, kw_only=True):
    sites: int = 3
    losses: tuple[Loss, ...] = (Loss.KILL, Loss.STOP)
    repetitions: int = 3
    interval_ms: float = 2.0
    sealed: bool = False
    placement: Placement = Placement.FREE
    settings: Settings = Settings()

    def check(self) -> None:
        if self.sites < 3:
            raise BenchError(f"sites: must be at least 3, is {self.sites}; fewer cannot lose one and go on")
        if self.repetitions < 1 or not self.losses:
            raise BenchError("repetitions: there must be at least one, of at least one kind of loss")


# -- a site --------------------------------------------------------------------------------------


class _Beating:
    """Submits on a steady beat, and remembers when something was delivered."""

    def __init__(self, member: Member, interval_ms: float) -> None:
        self.member = member
        self.interval = interval_ms / 1000
        self.delivered: list[int] = []
        self.refused = 0
        member.on_deliver = self.on_deliver

    def on_deliver(self, _: Deliver) -> None:
        self.delivered.append(time.monotonic_ns())

    async def beat(self) -> None:
        while True:
            try:
                self.member.group.submit((_MESSAGE,))
            except SubmitError:
                self.refused += 1  # no majority in reach, or the window is full: it will open again
            await asyncio.sleep(self.interval)


def _site(link: Link, me: int, network: Network, plan: FailoverPlan) -> None:
    loop = new_loop()
    asyncio.set_event_loop(loop)

    async def main() -> None:
        member = Member(link, me, network, plan.settings)
        await member.open()
        beating = _Beating(member, plan.interval_ms)
        await heard(link)
        task = asyncio.ensure_future(beating.beat())
        asked = asyncio.ensure_future(heard(link))
        while not asked.done():
            if len(member.views[-1][1].ring) < plan.sites:
                break
            await asyncio.wait((asked,), timeout=0.02)
        link.say("changed")
        await asked
        task.cancel()
        rings = [(when, len(view.ring)) for when, view in member.views]
        link.say((beating.delivered, rings, beating.refused))
        await heard(link)

    loop.run_until_complete(main())


# -- one loss ------------------------------------------------------------------------------------


def interruption(delivered: Sequence[int], lost_ns: int) -> int:
    """Nanoseconds from the loss to the end of the longest silence that ended after it.

    What was under way may still be delivered after the loss, so the first delivery after it proves nothing.
    """
    longest = end = 0
    for before, after in pairwise(delivered):
        if after > lost_ns and after - before > longest:
            longest, end = after - before, after
    if not end:
        raise BenchError("nothing was delivered after the loss")
    return max(end - lost_ns, 0)


def _strike(worker: Worker, loss: Loss, bridge: Bridge | None, index: int) -> int:
    if loss is Loss.KILL:
        os.kill(worker.pid, signal.SIGKILL)
    elif loss is Loss.STOP:
        os.kill(worker.pid, signal.SIGSTOP)
    else:
        assert bridge is not None
        started = time.monotonic_ns()
        bridge.cut(index)
        return started  # the command takes milliseconds; the link goes down somewhere within
    return time.monotonic_ns()


def _lose_one(plan: FailoverPlan, loss: Loss, number: int, ground: "Ground") -> dict[str, Value]:
    """Each repetition takes another site, so that each place in the ring has its turn."""
    victim = number % plan.sites
    with ground.crew_of() as crew:
        workers = [
            crew.start(
                f"site {me + 1}",
                _site,
                me,
                ground.network,
                plan,
                post=ground.crew_of.post(me, plan.placement),
            )
            for me in range(plan.sites)
        ]
        addresses = crew.hear_all(workers)
        for worker in workers:
            worker.tell(addresses)
        crew.hear_all(workers)
        for worker in workers:
            worker.tell("go")
        # Another moment of the token's round each time.
        crew.pause(_BEFORE_SECONDS + 0.013 * number)
        lost_ns = _strike(workers[victim], loss, ground.bridge, victim)
        survivors = [worker for me, worker in enumerate(workers) if me != victim]
        crew.hear_all(survivors, _PATIENCE_SECONDS)
        crew.pause(_AFTER_SECONDS, survivors)
        for worker in survivors:
            worker.tell("report")
        reports = crew.hear_all(survivors)
    flow = max(interruption(delivered, lost_ns) for delivered, _, _ in reports)
    out = max(
        min((when for when, ring in rings if when > lost_ns and ring < plan.sites), default=0)
        for _, rings, _ in reports
    )
    if not out:
        raise BenchError("the lost site stayed in the ring")
    return {
        "victim": victim + 1,
        "flow_ms": round(flow / MILLISECOND, 1),
        "out_ms": round((out - lost_ns) / MILLISECOND, 1),
        "views": max(sum(1 for when, _ in rings if when > lost_ns) for _, rings, _ in reports),
        "refused": sum(refused for _, _, refused in reports),
    }


class Ground(msgspec.Struct):
    """Where the sites stand."""

    crew_of: CrewMaker
    network: Network
    bridge: Bridge | None = None


@contextmanager
def _ground(plan: FailoverPlan, loss: Loss, tick: Callable[[], None]) -> Iterator[Ground]:
    """Only a link that can be pulled needs namespaces, and with them root."""
    if loss is Loss.LINK:
        with bridged("losing a link", plan.sites) as bridge:
            network = Network(hosts=tuple(bridge.addresses), sealed=plan.sealed)
            yield Ground(CrewMaker(tick, bridge.sites), network, bridge)
    else:
        network = Network.loopback(plan.sites, multicast=False, sealed=plan.sealed)
        yield Ground(CrewMaker(tick), network)


def run(plan: FailoverPlan, step: Step, tick: Callable[[], None]) -> Result:
    plan.check()
    calibration = calibrate()
    values: dict[str, Value] = {}
    for loss in plan.losses:
        runs: list[Value] = []
        flows: list[float] = []
        outs: list[float] = []
        for number in range(plan.repetitions):
            step(f"{loss.value}, {number + 1} of {plan.repetitions}")
            with _ground(plan, loss, tick) as ground:
                once = _lose_one(plan, loss, number, ground)
            runs.append(once)
            assert isinstance(once["flow_ms"], float)
            assert isinstance(once["out_ms"], float)
            flows.append(once["flow_ms"])
            outs.append(once["out_ms"])
        values[loss.value] = {
            "flow_ms_median": median(flows),
            "flow_ms_max": max(flows),
            "out_ms_median": median(outs),
            "out_ms_max": max(outs),
            "runs": runs,
        }
    shown: dict[str, Value] = msgspec.to_builtins(plan)
    return Result(
        name="failover",
        parameters=shown | {"placement": plan.placement.describe(plan.sites)},
        values=values,
        ratios={},
        calibration=calibration,
        versions=versions(),
    )


# -- calm ----------------------------------------------------------------------------------------


def calm(plan: OrderingPlan, step: Step, tick: Callable[[], None]) -> Result:
    """Full load from all sites on all cores; every view change is a false suspicion."""
    plan.check()
    calibration = calibrate()
    with crews(plan, tick) as crew_of:
        network = Network.loopback(plan.sites, multicast=plan.multicast, sealed=plan.sealed)
        ring = Ring(crew_of, network, plan.settings, plan.placement)
        try:
            step("full load")
            values = ring.run(plan.load(plan.sites))
        finally:
            ring.close()
    shown: dict[str, Value] = msgspec.to_builtins(plan)
    return Result(
        name="calm",
        parameters=shown | {"placement": plan.placement.describe(plan.sites)},
        values=values,
        ratios={},
        calibration=calibration,
        versions=versions(),
    )
