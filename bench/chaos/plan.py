"""What happens in a round, drawn from its seed: the kind of round, its settings, its faults in order.

Real processes do not do the same twice; the faults they meet are the same.
"""

from collections.abc import Iterator
from enum import StrEnum
from itertools import count, islice, permutations
from random import Random
from typing import Any, Final

import msgspec

from bench.chaos.failpoints import Cut, Point, Role, Struck
from bench.errors import BenchError
from ordering import Config

SITES_MIN, SITES_MAX = 3, 7
SECONDS_MIN: Final = 2.0
PAUSE_FACTORS: Final = (0.5, 10.0)  # times the detection time
ALL_DOWN_EVERY: Final = 4  # rounds
SMALL_GROUP: Final = 3  # whose orders of restart are all tried
GATEWAYS: Final = 2
# Without HTTP, and with it: by way of a gateway a request takes longer, and most are to go that way.
_TASKS: Final = (3, 6)
_SITE_PAUSE_SECONDS: Final = (0.025, 0.1)
_PAUSES_A_DECK: Final = 5
# Roles that a site has while it works, so that it can be stopped there as well as killed.
WORKING: Final = (Role.TOKEN_SITE, Role.NEXT_TOKEN_SITE, Role.SENDER, Role.LOCK_HOLDER)
DETECTION_SECONDS: Final = Config(group="any", founders=("nowhere:1",)).detection_ms / 1000


class App(StrEnum):
    """What the replicas run."""

    REGISTERS = "registers"
    ACTIONS = "actions"


class Database(StrEnum):
    """Of a site of actions."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


class Kind(StrEnum):
    SINGLE = "single"
    """Sites die and stop one by one, or two at a time."""
    ALL_DOWN = "all-down"
    """All die at once, again and again."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """``role`` None: a pause of ``site`` whatever it does. ``site`` is also who loses its disk, and whose
    absence makes an initiator. ``down_s``: how long the dead stay dead. ``overlaps``: with the next."""

    role: Struck | None
    cut: Cut
    pause: bool
    site: int
    factor: float
    down_s: float
    overlaps: bool
    kills_token_site: bool = False  # to make an initiator, instead of a pause

    @property
    def pause_s(self) -> float:
        return self.factor * DETECTION_SECONDS

    def needs(self, most: int) -> int:
        """Sites that are away at the same time, on purpose."""
        return min(2 if self.role in {Role.INITIATOR, Role.DONOR} and not self.pause else 1, most)


class Restart(msgspec.Struct, frozen=True):
    """Who comes back when, after all have died: the order, and the gaps before each."""

    order: tuple[int, ...]
    gaps_s: tuple[float, ...]
    after_s: float

    @property
    def name(self) -> str:
        return "".join(str(number + 1) for number in self.order)


class GatewayFault(msgspec.Struct, frozen=True):
    """So long after the one before. ``pause_s`` 0: it is killed, and back after ``down_s``."""

    after_s: float
    gateway: int
    pause_s: float
    down_s: float


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    kind: Kind
    sites: int
    seconds: float
    http: bool = False
    app: App = App.REGISTERS
    database: Database = Database.SQLITE
    faults_max: int | None = None
    snapshot_bytes: int = 64 << 20
    ring: dict[str, Any] = {}
    callers: int = 2
    tasks: int = _TASKS[False]
    pause_s: float = 0.025
    site_pause_s: float = _SITE_PAUSE_SECONDS[False]  # of the calls that a site makes itself

    @property
    def roles(self) -> tuple[Struck, ...]:
        return roles_of(self.app)

    @property
    def minority(self) -> int:
        return min((self.sites - 1) // 2, 2)

    def faults(self) -> Iterator[Fault]:
        """As many as are asked for. Each deck has every role once, so that all get their turn."""
        return islice(self._faults(), self.faults_max)

    def _faults(self) -> Iterator[Fault]:
        rng = Random(f"faults {self.seed}")
        while True:
            deck: list[Struck | None] = [*self.roles, *([None] * _PAUSES_A_DECK)]
            rng.shuffle(deck)
            for role in deck:
                yield self._fault(rng, role)

    def _fault(self, rng: Random, role: Struck | None) -> Fault:
        pause = role is None
        if pause and rng.random() < 0.5:
            role = rng.choice(WORKING if self.app is App.REGISTERS else self.roles)
        low, high = PAUSE_FACTORS
        return Fault(
            role=role,
            cut=rng.choice(list(Cut)),
            pause=pause,
            site=rng.randrange(self.sites),
            factor=low * (high / low) ** rng.random(),
            down_s=rng.choice((0.0, 0.0, 0.3, 1.0, 2.0)),
            overlaps=rng.random() < 0.4,
            kills_token_site=rng.random() < 0.5,
        )

    def gateway_faults(self) -> Iterator[GatewayFault]:
        """Drawn by themselves, so that those of the sites are the same with gateways and without. The first
        is a kill."""
        rng = Random(f"gateways {self.seed}")
        low, high = PAUSE_FACTORS
        for number in count():
            factor = low * (high / low) ** rng.random()
            yield GatewayFault(
                after_s=rng.uniform(0.3, 2.5),
                gateway=rng.randrange(GATEWAYS),
                pause_s=factor * DETECTION_SECONDS if number and rng.random() < 0.4 else 0.0,
                down_s=rng.choice((0.0, 0.0, 1.0)),
            )

    def restarts(self) -> Iterator[Restart]:
        """Of three sites all orders, of more some."""
        rng = Random(f"restarts {self.seed}")
        while True:
            if self.sites == SMALL_GROUP:
                orders = list(permutations(range(self.sites)))
                rng.shuffle(orders)
            else:
                orders = [tuple(rng.sample(range(self.sites), self.sites))]
            for order in orders:
                gaps = tuple(rng.choice((0.0, 0.0, 0.3, 1.0)) for _ in order)
                yield Restart(order, gaps, rng.uniform(0.5, 1.5))


def roles_of(app: App) -> tuple[Struck, ...]:
    return tuple(Role) if app is App.REGISTERS else tuple(Point)


def kind_of(seed: int) -> Kind:
    return Kind.ALL_DOWN if seed % ALL_DOWN_EVERY == ALL_DOWN_EVERY - 1 else Kind.SINGLE


def make_plan(
    seed: int,
    sites: int,
    seconds: float,
    *,
    http: bool = False,
    app: App = App.REGISTERS,
    database: Database = Database.SQLITE,
) -> Plan:
    if not SITES_MIN <= sites <= SITES_MAX:
        raise BenchError(f"sites: must be from {SITES_MIN} to {SITES_MAX}, is {sites}")
    if seconds < SECONDS_MIN:
        raise BenchError(f"round-seconds: must be at least {SECONDS_MIN:.0f}, is {seconds}")
    kind = kind_of(seed)
    if kind is Kind.ALL_DOWN and (seed // ALL_DOWN_EVERY) % 2 == 0:
        sites = SMALL_GROUP
    rng = Random(f"settings {seed}")
    return Plan(
        seed=seed,
        kind=kind,
        sites=sites,
        seconds=seconds,
        http=http,
        app=app,
        database=database,
        tasks=_TASKS[http],
        site_pause_s=_SITE_PAUSE_SECONDS[http],
        snapshot_bytes=rng.choice((20_000, 1 << 20, 64 << 20)),
        ring={"retain_slots": rng.choice((300, 1_000_000))},
    )
