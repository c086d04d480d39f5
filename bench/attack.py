"""A sealed ring under load, and a process without the key that does to it what it can.

Calm, decoyed and attacked rounds take turns in one ring that lives throughout. Nothing of the attacker's may
be accepted, every datagram of it is dropped for a reason that is counted, the ring does not change, and all
members deliver the same. What is left of the throughput is measured beside that, and is no condition.
"""

import asyncio
import socket
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bench.attacker import Kind, Order, Spent, attack
from bench.errors import BenchError
from bench.member import Load, Member, Network, Settings, heard
from bench.ordering import OrderingPlan, Ring, Step, work
from bench.results import Result, Value, calibrate, median_ratios, medians, ratio, versions
from bench.tap import Heard, Made, TappedDriver
from bench.wire import BUFFER_BYTES, loop_name, new_loop
from bench.workers import CrewMaker, Link, Placement, Worker

RATIO_WANTED = 0.8
SITES = 3
# A rate needs no longer; an attack does, to be as many datagrams as were asked for.
_CALM_SECONDS_MAX = 10.0
_LATE_SECONDS = 30.0
_SETTLE_TURNS = 100
_SETTLE_SECONDS = 0.05
_HEARD, _MADE = "heard", "made"


class AttackPlan(msgspec.Struct, frozen=True, kw_only=True):
    datagrams: int = 1_000_000
    rate: int = 10_000  # to all sites together
    rounds: int = 4
    size: int = 1024
    senders: int = 1
    seed: int = 1
    placement: Placement = Placement.FREE
    settings: Settings = Settings()

    def check(self) -> None:
        if self.datagrams < self.rounds * len(Kind) or self.rounds < 1:
            raise BenchError(f"datagrams: each round needs {len(Kind)}, one of each kind")
        if self.rate < 1:
            raise BenchError("rate: must be at least 1 a second")
        self.ring.check()

    @property
    def seconds(self) -> float:
        """How long each attack takes, if the attacker keeps its pace."""
        return self.datagrams / self.rounds / self.rate

    @property
    def ring(self) -> OrderingPlan:
        return OrderingPlan(
            sites=SITES,
            size=self.size,
            senders=self.senders,
            seconds=self.seconds,
            sealed=True,
            placement=self.placement,
            settings=self.settings,
        )


def _site(link: Link, me: int, network: Network, settings: Settings, captures: socket.socket) -> None:
    """As under any load, with books."""
    loop = new_loop()
    asyncio.set_event_loop(loop)

    async def main() -> None:
        member = Member(link, me, network, settings, TappedDriver)
        await member.open()
        driver = member.driver
        assert isinstance(driver, TappedDriver)
        captures.setblocking(False)
        driver.captures = captures
        while (asked := await heard(link)) is not None:
            if isinstance(asked, Load):
                link.say(await work(member, asked))
            elif asked == _MADE:
                link.say(driver.made())
            else:
                link.say(driver.heard([(view.id.epoch, view.id.revision) for _, view in member.views]))
        driver.close()

    loop.run_until_complete(main())


# -- judging -------------------------------------------------------------------------------------


class _Sealed:
    """What one site has sealed: its datagram of number n at place n - 1."""

    def __init__(self) -> None:
        self.checks = array("I")
        self.routes = array("I")
        self.taken_by = bytearray()  # a bit for each site that has accepted it
        self.addresses: list[tuple[str, ...]] = []

    def add(self, made: Made) -> None:
        self.checks.extend(made.checks)
        self.routes.extend(made.routes)
        self.taken_by.extend(bytes(len(made.checks)))
        self.addresses = made.addresses


class Judge:
    """Compares what was accepted with what was made.

    ``invented``: accepted, and no site has made it so. ``repeated``: accepted twice by one site. ``strayed``:
    genuine, for the first time here, but not sent here. ``mirrored``: taken by its own sender. A replay that
    takes the place of a datagram the kernel had dropped is none of these: that is what a slow network does.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._sealed: dict[int, _Sealed] = {}
        self.verdicts: list[Counter[str]] = [Counter() for _ in addresses]

    def judge(self, heard_by: Sequence[Heard], made_by: Sequence[Made]) -> None:
        """The books of all sites in order; all were asked what they made after all had said what they
        heard, so nothing was heard that is not among what was made."""
        for made in made_by:
            self._sealed.setdefault(made.site, _Sealed()).add(made)
        for place, report in enumerate(heard_by):
            for entry in zip(report.senders, report.counters, report.checks, strict=True):
                self.verdicts[place][self._verdict(place, report.site, *entry)] += 1

    def _verdict(self, place: int, site: int, sender: int, counter: int, check: int) -> str:
        sealed = self._sealed.get(sender)
        if sealed is None or not 1 <= counter <= len(sealed.checks) or sealed.checks[counter - 1] != check:
            return "invented"
        bit = 1 << place
        if sealed.taken_by[counter - 1] & bit:
            return "repeated"
        sealed.taken_by[counter - 1] |= bit
        if sender == site:
            return "mirrored"
        route = sealed.addresses[sealed.routes[counter - 1]]
        return "genuine" if self._addresses[place] in route else "strayed"


# -- running -------------------------------------------------------------------------------------


class _Siege:
    """One ring, its attacker, and what has come of both so far."""

    def __init__(self, plan: AttackPlan, crew_of: CrewMaker) -> None:
        self.plan = plan
        ear, mouth = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with ear, mouth:
            mouth.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            network = Network.loopback(SITES, multicast=False, sealed=True)
            self.ring = Ring(crew_of, network, plan.settings, plan.placement, _site, (mouth,))
            try:
                post = crew_of.post(SITES, plan.placement)
                self.attacker: Worker = self.ring.crew.start(
                    "attacker", attack, ear, self.ring.addresses, plan.seed, post=post
                )
                self.judge = Judge(self.ring.addresses)
                self.before = self.settle()
            except BaseException:
                self.ring.close()
                raise
        self.after = self.before
        self.spent: list[Spent] = []

    def settle(self) -> list[Heard]:
        """Wait until no site has anything waiting, and judge what came."""
        crew, workers = self.ring.crew, self.ring.workers
        for _ in range(_SETTLE_TURNS):
            reports = self._ask(_HEARD)
            self.judge.judge(reports, self._ask(_MADE))
            if not any(report.waiting_bytes for report in reports):
                return reports
            crew.pause(_SETTLE_SECONDS, workers)
        raise BenchError("sites still had datagrams waiting long after the attack")

    def _ask(self, what: str) -> list[Any]:
        for worker in self.ring.workers:
            worker.tell(what)
        return self.ring.crew.hear_all(self.ring.workers)

    def load(self, seconds: float) -> dict[str, Value]:
        plan = msgspec.structs.replace(self.plan.ring, seconds=seconds)
        return self.ring.run(plan.load(plan.senders))

    def calm(self) -> dict[str, Value]:
        return self.load(min(self.plan.seconds, _CALM_SECONDS_MAX))

    def decoyed(self) -> dict[str, Value]:
        """As calm, while the attacker works as hard as it will, on nobody."""
        plan = self.plan
        seconds = min(plan.seconds, _CALM_SECONDS_MAX)
        order = Order(int(plan.rate * seconds) + 1, plan.rate, 3 * seconds + _LATE_SECONDS, decoy=True)
        self.attacker.tell(order)
        values = self.load(seconds)
        self.ring.crew.hear(self.attacker, order.seconds_max + _LATE_SECONDS)
        return values

    def attacked(self, datagrams: int) -> dict[str, Value]:
        plan = self.plan
        order = Order(datagrams, plan.rate, 3 * plan.seconds + _LATE_SECONDS)
        self.attacker.tell(order)
        values = self.load(plan.seconds)
        self.spent.append(self.ring.crew.hear(self.attacker, order.seconds_max + _LATE_SECONDS))
        self.after = self.settle()
        return values


def run(plan: AttackPlan, step: Step, tick: Callable[[], None]) -> Result:
    plan.check()
    calibration = calibrate()
    calm: list[dict[str, Value]] = []
    decoyed: list[dict[str, Value]] = []
    attacked: list[dict[str, Value]] = []
    step("a ring comes about")
    siege = _Siege(plan, CrewMaker(tick))
    try:
        for number in range(1, plan.rounds + 1):
            step(f"round {number} of {plan.rounds}: calm")
            calm.append(siege.calm())
            step(f"round {number} of {plan.rounds}: the attacker sends to nobody")
            decoyed.append(siege.decoyed())
            step(f"round {number} of {plan.rounds}: attacked for {plan.seconds:.0f} s")
            share = plan.datagrams * number // plan.rounds - plan.datagrams * (number - 1) // plan.rounds
            attacked.append(siege.attacked(share))
    finally:
        siege.ring.close()
    calibration["load_average_after"] = calibrate()["load_average"]
    kept = [
        {
            "attacked_to_calm": ratio(hit["messages_per_s"], free["messages_per_s"]),
            "attacked_to_decoyed": ratio(hit["messages_per_s"], decoy["messages_per_s"]),
            "cpu_per_message_to_calm": ratio(hit["cpu_us_per_message"], free["cpu_us_per_message"]),
        }
        for hit, decoy, free in zip(attacked, decoyed, calm, strict=True)
    ]
    shown: dict[str, Value] = msgspec.to_builtins(plan)
    return Result(
        name="attack",
        parameters=shown
        | {
            "sites": SITES,
            "batch": plan.ring.messages_per_submit,
            "placement": plan.placement.describe(SITES + 1),
            "event_loop": loop_name(),
        },
        values={
            "calm": medians(calm),
            "decoyed": medians(decoyed),
            "attacked": medians(attacked),
            "cpu_us_per_hostile": _cost(calm, attacked, plan.datagrams),
            **_findings(siege),
        },
        ratios=median_ratios(kept),
        calibration=calibration,
        versions=versions(),
    )


def _findings(siege: _Siege) -> dict[str, Value]:
    """That members delivered the same needs no line: where they did not, there is no result."""
    ends = list(zip(siege.before, siege.after, strict=True))
    sites = [
        _at_site(before, after, sum(spent.sent_to[place] for spent in siege.spent), verdicts)
        for place, ((before, after), verdicts) in enumerate(zip(ends, siege.judge.verdicts, strict=True))
    ]
    checks: dict[str, Value] = {
        "nothing accepted": not any(site.accepted for site in sites),
        "everything accounted for": all(site.is_accounted_for for site in sites),
        "no group stopped": not any(after.stopped for _, after in ends),
        "no view changed": all(
            before.views == after.views and after.views[-1] == siege.before[0].views[-1]
            for before, after in ends
        ),
        "all datagrams sent": sum(site.sent for site in sites) == siege.plan.datagrams,
    }
    rows: dict[str, Value] = {
        f"site {number}": msgspec.to_builtins(site) for number, site in enumerate(sites, start=1)
    }
    return {"attack": _attack(siege.spent), "sites": rows, "checks": checks}


class AtSite(msgspec.Struct, frozen=True, kw_only=True):
    """The attack as one site saw it. ``strayed``: genuine datagrams brought here that were sent elsewhere."""

    sent: int
    dropped: int
    kernel_drops: int
    accepted: int
    strayed: int
    genuine: int
    reasons: dict[str, int]

    @property
    def is_accounted_for(self) -> bool:
        """Whose datagrams the kernel has dropped nobody knows; without such drops this is an equation."""
        seen = self.dropped + self.strayed + self.accepted
        return self.sent - self.kernel_drops <= seen <= self.sent


def _at_site(before: Heard, after: Heard, sent: int, verdicts: Counter[str]) -> AtSite:
    reasons = _grown(before, after)
    return AtSite(
        sent=sent,
        dropped=sum(reasons.values()),
        kernel_drops=after.kernel_drops - before.kernel_drops,
        accepted=verdicts["invented"] + verdicts["repeated"] + verdicts["mirrored"],
        strayed=verdicts["strayed"],
        genuine=verdicts["genuine"],
        reasons=reasons,
    )


def _cost(calm: list[dict[str, Value]], attacked: list[dict[str, Value]], datagrams: int) -> float:
    """What a hostile datagram takes of its site's CPU, kernel and event loop included."""
    more = 0.0
    for free, hit in zip(calm, attacked, strict=True):
        before, after, count = free["cpu_us_per_message"], hit["cpu_us_per_message"], hit["delivered"]
        assert isinstance(before, float)
        assert isinstance(after, float)
        assert isinstance(count, int)
        more += (after - before) * count
    return round(more / datagrams, 1)


def _grown(before: Heard, after: Heard) -> dict[str, int]:
    grown = {reason: count - before.drops.get(reason, 0) for reason, count in after.drops.items()}
    return {reason: count for reason, count in sorted(grown.items()) if count}


def _attack(spent: list[Spent]) -> dict[str, Value]:
    kinds: Counter[str] = Counter()
    for each in spent:
        kinds.update(each.sent)
    seconds = sum(each.seconds for each in spent)
    sent = sum(kinds.values())
    return {
        "sent": sent,
        "kinds": dict(kinds),
        "refused": sum(each.refused for each in spent),
        "per_s": round(sent / max(seconds, 1e-9)),
        "mb_per_s": round(sum(each.bytes for each in spent) / max(seconds, 1e-9) / 1e6, 1),
        "seconds": round(seconds, 1),
        "cpu_s": round(sum(each.cpu_s for each in spent), 1),
    }
