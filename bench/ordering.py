"""The engine behind its UDP driver, in real processes, beside what the machine can carry.

One run measures, with the same message size, transport and hashing: raw sockets, the bare ordered loop, the
engine under load, and the engine with one message outstanding. The ratios are what to quote.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from bench import bare, raw
from bench.errors import BenchError
from bench.member import Application, Load, Member, Network, Settings, heard
from bench.namespaces import private_loopback
from bench.results import Result, Value, calibrate, latencies, median_ratios, medians, ratio, versions
from bench.wire import loop_name, new_loop, same
from bench.workers import CrewMaker, Link, Placement
from ordering.errors import OrderingError
from ordering.qos import Level, parse_qos

_SLACK_SECONDS = 45.0
SIZE_MAX = 65_000
# More is no gain: a packet of the smallest messages is full by then.
BATCH_MAX = 4_000
_LATENCY_SIZE = 64
_PACKET_SIZE = 59_000


class OrderingPlan(msgspec.Struct, frozen=True, kw_only=True):
    sites: int = 3
    size: int = 1024
    senders: int = 1
    seconds: float = 3.0
    qos: str = "majority"
    multicast: bool = False
    sealed: bool = False
    batch: int = 0  # messages in one submission; 0: a packet's worth
    placement: Placement = Placement.FREE
    settings: Settings = Settings()

    def check(self) -> None:
        """Refuse what cannot be measured, before anything is started."""
        if not raw.SIZE_MIN <= self.size <= SIZE_MAX:
            raise BenchError(f"size: must be from {raw.SIZE_MIN} to {SIZE_MAX}, is {self.size}")
        if not 1 <= self.senders <= self.sites:
            raise BenchError(f"senders: must be from 1 to the number of sites ({self.sites})")
        try:
            level = parse_qos(self.qos).level
        except OrderingError as error:
            raise BenchError(str(error)) from None
        if level < Level.SOURCE_ORDERED:
            raise BenchError(
                f"qos: {self.qos} may lose or reorder messages, so members could not be compared"
            )

    @property
    def messages_per_submit(self) -> int:
        fitting = max((self.settings.packet_bytes - 256) // (self.size + 5), 1)
        return self.batch or min(fitting, BATCH_MAX)

    def load(self, senders: int) -> Load:
        return Load(
            size=self.size,
            senders=senders,
            seconds=self.seconds,
            qos=self.qos,
            batch=self.messages_per_submit,
        )


# -- one group under load ------------------------------------------------------------------------


def _site(link: Link, me: int, network: Network, settings: Settings) -> None:
    """Joins, then does one load after the other until told to end."""
    loop = new_loop()
    asyncio.set_event_loop(loop)

    async def main() -> None:
        member = Member(link, me, network, settings)
        await member.open()
        while (load := await heard(link)) is not None:
            link.say(await work(member, load))
        member.driver.close()

    loop.run_until_complete(main())


async def work(member: Member, load: Load) -> dict[str, object]:
    """One load at one site, and what it came to."""
    application = Application(member, load, bare.batches(load.size, load.batch))
    member.link.say("armed")
    await heard(member.link)
    before, views, cpu = member.driver.stats(), len(member.views), time.process_time()
    await application.run()
    cpu = time.process_time() - cpu
    after = member.driver.stats()
    counters = after.groups[0].counters
    earlier = before.groups[0].counters
    return {
        "digest": application.digest,
        "count": application.count,
        "seconds": (application.last_ns - application.started_ns) / 1e9,
        "took": application.took[len(application.took) // 20 :],
        "cpu_s": cpu,
        "packets": after.datagrams_out - before.datagrams_out,
        "view_changes": len(member.views) - views,
        "kernel_drops": sum(each.dropped_by_kernel or 0 for each in after.sockets)
        - sum(each.dropped_by_kernel or 0 for each in before.sockets),
        "late_max_ns": after.stalls.late_max_ns,
        "busy_max_ns": after.stalls.busy_max_ns,
        "counters": {name: counters[name] - earlier.get(name, 0) for name in counters},
    }


class Ring:
    """A group of real processes, ready for loads. ``site`` is what each of them runs, with ``more``."""

    def __init__(
        self,
        crew_of: CrewMaker,
        network: Network,
        settings: Settings,
        placement: Placement,
        site: Callable[..., None] = _site,
        more: tuple[object, ...] = (),
    ) -> None:
        self.crew = crew_of()
        try:
            self.workers = [
                self.crew.start(
                    f"site {me + 1}", site, me, network, settings, *more, post=crew_of.post(me, placement)
                )
                for me in range(len(network.hosts))
            ]
            self.addresses: list[str] = self.crew.hear_all(self.workers)
            for worker in self.workers:
                worker.tell(self.addresses)
            self.crew.hear_all(self.workers)
        except BaseException:
            self.crew.stop()
            raise

    def run(self, load: Load) -> dict[str, Value]:
        for worker in self.workers:
            worker.tell(load)
        self.crew.hear_all(self.workers)
        for worker in self.workers:
            worker.tell("go")
        reports = self.crew.hear_all(self.workers, load.seconds + _SLACK_SECONDS)
        return summary(reports, load)

    def close(self) -> None:
        self.crew.stop()


def summary(reports: list[dict[str, Any]], load: Load) -> dict[str, Value]:
    """Rates are those of the slowest member; costs are those of all members together."""
    digest = same([report["digest"] for report in reports], "the ring")
    delivered = max(reports[0]["count"], 1)
    rate = min(report["count"] / max(report["seconds"], 1e-9) for report in reports)
    took = [nanoseconds for report in reports for nanoseconds in report["took"]]
    counters: dict[str, int] = {}
    for report in reports:
        for name, count in report["counters"].items():
            if count:
                counters[name] = counters.get(name, 0) + count
    shown: dict[str, Value] = dict(sorted(counters.items()))
    return {
        "messages_per_s": round(rate),
        "mb_per_s": round(rate * load.size / 1e6, 1),
        "delivered": reports[0]["count"],
        "digest": digest,
        "latency": latencies(took),
        "packets_per_message": round(sum(report["packets"] for report in reports) / delivered, 5),
        "cpu_us_per_message": round(1e6 * sum(report["cpu_s"] for report in reports) / delivered, 3),
        "view_changes": max(report["view_changes"] for report in reports),
        "kernel_drops": sum(report["kernel_drops"] for report in reports),
        # Since the site was started. A loop that was late for longer than suspect_ms looks dead to others.
        "loop_late_max_ms": round(max(report["late_max_ns"] for report in reports) / 1e6, 1),
        "loop_busy_max_ms": round(max(report["busy_max_ns"] for report in reports) / 1e6, 1),
        "counters": shown,
    }


# -- the whole comparison ------------------------------------------------------------------------

Step = Callable[[str], None]


@contextmanager
def crews(plan: OrderingPlan, tick: Callable[[], None]) -> Iterator[CrewMaker]:
    """Multicast stays in a namespace of our own; everything else is on loopback."""
    if plan.multicast:
        with private_loopback("multicast") as namespace:
            yield CrewMaker(tick, (namespace,))
    else:
        yield CrewMaker(tick)


def compare(plan: OrderingPlan, rounds: int, step: Step, tick: Callable[[], None]) -> Result:
    """Raw sockets, bare loop and engine in turn, round after round: whatever else the machine does hits all
    of them. A ratio is that of one round; what is reported is its median."""
    plan.check()
    calibration = calibrate()
    with crews(plan, tick) as crew_of:
        measured = [
            _round(plan, crew_of, partial(_step_in_round, step, f"{number} of {rounds}"))
            for number in range(1, rounds + 1)
        ]
    calibration["load_average_after"] = calibrate()["load_average"]
    return Result(
        name="ordering",
        parameters=parameters(plan) | {"rounds": rounds},
        values=medians(measured),
        ratios=median_ratios([ratios(values) for values in measured]),
        calibration=calibration,
        versions=versions(),
    )


def _step_in_round(step: Step, number: str, what: str) -> None:
    step(f"round {number}: {what}")


def _round(plan: OrderingPlan, crew_of: CrewMaker, step: Step) -> dict[str, Value]:
    values: dict[str, Value] = {}
    raw_plan = raw.RawPlan(
        size=plan.size, receivers=max(plan.sites - 1, 1), seconds=plan.seconds, multicast=plan.multicast
    )
    step("raw sockets")
    values["raw"] = raw.throughput(raw_plan, plan.placement, crew_of)
    step("raw sockets, whole packets")
    packets = msgspec.structs.replace(raw_plan, size=max(_PACKET_SIZE, plan.size))
    values["raw_packets"] = raw.throughput(packets, plan.placement, crew_of)
    step("raw round trip")
    small = msgspec.structs.replace(
        raw_plan, size=min(plan.size, _LATENCY_SIZE), seconds=min(plan.seconds, 1.0)
    )
    values["raw_round_trip"] = raw.round_trip(small, trip_placement(plan.placement), crew_of)
    step("bare loop")
    bare_plan = bare.BarePlan(
        size=plan.size, sites=plan.sites, senders=plan.senders, seconds=plan.seconds, multicast=plan.multicast
    )
    values["bare"] = bare.run(bare_plan, plan.placement, crew_of)
    step("bare loop, one outstanding")
    alone = msgspec.structs.replace(
        bare_plan, size=small.size, seconds=small.seconds, senders=1, one_outstanding=True
    )
    values["bare_one_outstanding"] = bare.run(alone, plan.placement, crew_of)
    return values | measure(plan, crew_of, step)


def measure(plan: OrderingPlan, crew_of: CrewMaker, step: Step) -> dict[str, Value]:
    """The engine alone: under load, and with one message outstanding."""
    network = Network.loopback(plan.sites, multicast=plan.multicast, sealed=plan.sealed)
    ring = Ring(crew_of, network, plan.settings, plan.placement)
    try:
        step("the ring under load")
        under_load = ring.run(plan.load(plan.senders))
        step("the ring, one outstanding")
        alone = Load(
            size=min(plan.size, _LATENCY_SIZE),
            seconds=min(plan.seconds, 1.0),
            qos=plan.qos,
            one_outstanding=True,
        )
        return {"ring": under_load, "ring_one_outstanding": ring.run(alone)}
    finally:
        ring.close()


def parameters(plan: OrderingPlan) -> dict[str, Value]:
    shown: dict[str, Value] = msgspec.to_builtins(plan)
    return shown | {
        "batch": plan.messages_per_submit,
        "placement": plan.placement.describe(plan.sites),
        "latency_size": min(plan.size, _LATENCY_SIZE),
        "raw_receivers": max(plan.sites - 1, 1),
        "event_loop": loop_name(),
    }


def trip_placement(placement: Placement) -> Placement:
    """A free scheduler may put two idle processes on one CPU and three busy ones on two: compare like
    with like."""
    return Placement.ONE if placement is Placement.ONE else Placement.SPREAD


def _of(values: dict[str, Value], *names: str) -> Value:
    found: Value = values
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def ratios(values: dict[str, Value]) -> dict[str, float | None]:
    """Throughput as a share of the ceilings; latency as a multiple of the raw round trip."""
    round_trip = _of(values, "raw_round_trip", "p50_us")
    return {
        "ring_to_raw": ratio(_of(values, "ring", "messages_per_s"), _of(values, "raw", "messages_per_s")),
        "ring_to_raw_packets_bytes": ratio(
            _of(values, "ring", "mb_per_s"), _of(values, "raw_packets", "mb_per_s")
        ),
        "ring_to_bare": ratio(_of(values, "ring", "messages_per_s"), _of(values, "bare", "messages_per_s")),
        "bare_to_raw": ratio(_of(values, "bare", "messages_per_s"), _of(values, "raw", "messages_per_s")),
        "ring_cpu_to_bare_cpu": ratio(
            _of(values, "ring", "cpu_us_per_message"), _of(values, "bare", "cpu_us_per_message")
        ),
        "latency_p50_to_raw_round_trip": ratio(
            _of(values, "ring_one_outstanding", "latency", "p50_us"), round_trip
        ),
        "bare_latency_p50_to_raw_round_trip": ratio(
            _of(values, "bare_one_outstanding", "latency", "p50_us"), round_trip
        ),
    }


def by_members(plan: OrderingPlan, counts: list[int], step: Step, tick: Callable[[], None]) -> Result:
    """Packets and CPU for each delivered message as the group grows. RMP claims: flat, with multicast."""
    plan.check()
    values: dict[str, Value] = {}
    calibration = calibrate()
    with crews(plan, tick) as crew_of:
        for count in counts:
            step(f"{count} members")
            senders = count if plan.senders == plan.sites else min(plan.senders, count)
            network = Network.loopback(count, multicast=plan.multicast, sealed=plan.sealed)
            ring = Ring(crew_of, network, plan.settings, plan.placement)
            try:
                values[str(count)] = ring.run(plan.load(senders))
            finally:
                ring.close()
    first, last = str(counts[0]), str(counts[-1])
    compared = {
        f"{name}_{last}_to_{first}": ratio(_of(values, last, name), _of(values, first, name))
        for name in ("packets_per_message", "cpu_us_per_message", "messages_per_s")
    }
    return Result(
        name="ordering by members",
        parameters=parameters(plan) | {"members": list(counts)},
        values=values,
        ratios=compared,
        calibration=calibration,
        versions=versions(),
    )
