"""Plays the cases: a group is born under load, the network breaks, is mended, and everything is compared."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from bench.errors import BenchError, WorkerFailed
from bench.member import BENCH_KEY, GROUP, heard
from bench.namespaces import bridged, require
from bench.network.cases import NAMES, Case, Kind, all_cases
from bench.network.checks import Bounds, Judged, Line, Times, Verdict, judge
from bench.network.faults import Faults, require_nft
from bench.network.replica import BULK_LIMITS, Replica, Report, Standing
from bench.results import Result, Value, calibrate, versions
from bench.wire import new_loop
from bench.workers import Crew, Link, Post, Worker
from ordering import Config
from ordering.driver import Driver
from ordering.sealing import Keyring
from ordering.transports.addresses import parse_address
from ordering.transports.bulk_tcp import serve_bulk

_WARM_SECONDS = 0.8
_AFTER_SECONDS = 0.8
_PATIENCE_SECONDS = 20.0
_POLL_SECONDS = 0.1
_FLAP_SECONDS = 0.12
_INTERVAL_SECONDS = 0.005
_NOTED_MAX = 1_000_000  # of a site's history; more load is noted less often
_NOTE_EVERY = 64

Step = Callable[[str], None]


class NetworkPlan(msgspec.Struct, frozen=True, kw_only=True):
    sites: tuple[int, ...] = (3, 5)
    cases: tuple[str, ...] = NAMES
    hold_seconds: float = 4.0
    loss_seconds: float = 10.0
    rate: int = 400
    sealed: bool = True

    def check(self) -> None:
        for count in self.sites:
            if count < 3:
                raise BenchError(f"sites: must be at least 3, is {count}; fewer cannot lose one and go on")
        for name in self.cases:
            if name not in NAMES:
                raise BenchError(f"case: {name} is unknown; use some of: {', '.join(NAMES)}")

    def chosen(self) -> list[Case]:
        return [case for count in self.sites for case in all_cases(count) if case.name in self.cases]

    def seconds(self, case: Case) -> float:
        return self.loss_seconds if case.kind is Kind.LOSS else self.hold_seconds

    @property
    def batch(self) -> int:
        return max(round(self.rate * _INTERVAL_SECONDS), 1)

    def stride(self, case: Case) -> int:
        """Hashes are chained, so that one of them stands for all before it."""
        expected = case.sites * self.rate * (self.seconds(case) + _PATIENCE_SECONDS)
        return 1 if expected <= _NOTED_MAX else _NOTE_EVERY


# -- a site --------------------------------------------------------------------------------------


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    sealed: bool
    settings: dict[str, Any]
    stride: int
    batch: int

    def config(self, founders: Sequence[str]) -> Config:
        return Config(group=GROUP, founders=tuple(founders), **self.settings)


def _site(link: Link, me: int, setup: Setup) -> None:
    loop = new_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(_lead(link, me, setup))


async def _lead(link: Link, me: int, setup: Setup) -> None:
    keyring = Keyring((BENCH_KEY,)) if setup.sealed else None
    driver = await Driver.open(bind=f"{setup.host}:0", keyring=keyring, insecure=not setup.sealed)
    link.say(driver.address)
    replica = Replica(me, driver, setup.config(await heard(link)), keyring, setup.stride)
    port = parse_address(driver.address).endpoint.port
    server = await serve_bulk(setup.host, port, keyring, replica.donate, boot=me + 1, limits=BULK_LIMITS)
    replica.join()
    beating: asyncio.Task[None] | None = None
    async with server:
        while True:
            match await heard(link):
                case "load":
                    beating = asyncio.create_task(replica.beat(_INTERVAL_SECONDS, setup.batch))
                case "stop":
                    assert beating is not None
                    beating.cancel()
                case "standing":
                    if beating is not None and beating.done() and not beating.cancelled():
                        beating.result()
                    link.say(replica.standing())
                case "report":
                    link.say(replica.report())


# -- a group in a case ---------------------------------------------------------------------------


class _Played:
    """One case under way."""

    def __init__(self, case: Case, crew: Crew, workers: list[Worker], faults: Faults) -> None:
        self.case = case
        self.crew = crew
        self.workers = workers
        self.faults = faults

    def tell(self, word: object) -> None:
        for worker in self.workers:
            worker.tell(word)

    def ask(self, word: object) -> list[Any]:
        self.tell(word)
        return self.crew.hear_all(self.workers)

    def until(self, reached: Callable[[list[Standing]], bool], seconds: float = _PATIENCE_SECONDS) -> bool:
        """Whether it came about in time; a site that has stopped is not waited for."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            standings = self.ask("standing")
            if reached(standings):
                return True
            if any(standing.stopped for standing in standings):
                return False
            self.crew.pause(_POLL_SECONDS)
        return False

    def is_whole(self, standings: list[Standing]) -> bool:
        count = self.case.sites
        return len({standing.view for standing in standings}) == 1 and all(
            standing.ring == count and standing.voters == count and standing.has_state
            for standing in standings
        )

    @staticmethod
    def is_settled(standings: list[Standing]) -> bool:
        return len({(standing.applied, standing.digest) for standing in standings}) == 1 and all(
            standing.unapplied == 0 for standing in standings
        )

    def suffer(self, seconds: float) -> Times:
        """Break the network, wait, mend it."""
        case, faults = self.case, self.faults
        breaking = time.monotonic_ns()
        match case.kind:
            case Kind.RULES:
                faults.block(case.blocked)
            case Kind.LOSS:
                faults.lose(case.percent)
            case Kind.PULLED | Kind.FLAPPING:
                faults.pull(case.site)
        broken = time.monotonic_ns()
        if case.kind is Kind.FLAPPING:
            self._flap(seconds)
        else:
            self.crew.pause(seconds)
        mending = time.monotonic_ns()
        if case.needs_nft:
            faults.mend_rules()
        else:
            faults.plug(case.site)
        return Times(breaking=breaking, broken=broken, mending=mending, mended=time.monotonic_ns(), stopped=0)

    def _flap(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        up = False
        while time.monotonic() < end:
            self.crew.pause(_FLAP_SECONDS)
            up = not up
            if up:
                self.faults.plug(self.case.site)
            else:
                self.faults.pull(self.case.site)


@contextmanager
def _born(case: Case, plan: NetworkPlan, tick: Callable[[], None]) -> Iterator[_Played]:
    with bridged("the network battery", case.sites) as bridge, Crew(tick) as crew:
        workers = []
        for me, (space, host) in enumerate(zip(bridge.sites, bridge.addresses, strict=True)):
            setup = Setup(
                host=host,
                sealed=plan.sealed,
                settings=case.settings,
                stride=plan.stride(case),
                batch=plan.batch,
            )
            workers.append(crew.start(f"site {me + 1}", _site, me, setup, post=Post(space)))
        played = _Played(case, crew, workers, Faults(bridge))
        played.tell(crew.hear_all(workers))
        if not played.until(played.is_whole):
            raise BenchError(f"no ring of {case.sites} came about in {_PATIENCE_SECONDS:.0f} s")
        yield played


def play(case: Case, plan: NetworkPlan, tick: Callable[[], None]) -> Judged:
    bounds = Bounds.of(Config(group=GROUP, founders=("nowhere:1",), **case.settings))
    with _born(case, plan, tick) as played:
        crew = played.crew
        played.tell("load")
        crew.pause(_WARM_SECONDS)
        times = played.suffer(plan.seconds(case))
        gathered = played.until(played.is_whole)
        crew.pause(_AFTER_SECONDS)
        gathered = gathered and played.until(played.is_whole)
        times.stopped = time.monotonic_ns()
        played.tell("stop")
        settled = played.until(played.is_settled)
        reports: list[Report] = played.ask("report")
        dropped = played.faults.dropped
    return judge(case, reports, times, bounds, gathered=gathered, settled=settled, dropped=dropped)


def run(
    plan: NetworkPlan, step: Step, told: Callable[[Case, Judged], None], tick: Callable[[], None]
) -> Result:
    """A case that breaks down has failed; the others are played all the same."""
    plan.check()
    cases = plan.chosen()
    require("the network battery")
    if any(case.needs_nft for case in cases):
        require_nft()
    calibration = calibrate()
    values: dict[str, Value] = {}
    for number, case in enumerate(cases, start=1):
        step(f"{case.title} ({number} of {len(cases)})")
        try:
            judged = play(case, plan, tick)
        except WorkerFailed as error:
            line = Line("all processes ran to the end", False, safety=True, detail=str(error))
            judged = Judged(verdict=Verdict.FAILED, lines=[line], values={})
        told(case, judged)
        shown: dict[str, Value] = msgspec.to_builtins(judged)
        values[case.title] = shown
    parameters: dict[str, Value] = msgspec.to_builtins(plan)
    return Result(
        name="network",
        parameters=parameters,
        values=values,
        ratios={},
        calibration=calibration,
        versions=versions(),
    )
