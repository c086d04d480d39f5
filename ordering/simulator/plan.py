"""What one run is made of. A plan is small, printable, and the whole cause of a trace."""

from enum import StrEnum
from random import Random

import msgspec

from ordering.config import Config
from ordering.errors import ConfigurationError


class FaultMix(StrEnum):
    NONE = "none"
    LIGHT = "light"
    SWARM = "swarm"


class FaultKind(StrEnum):
    """Everything that can be done to a cluster. Each run draws which of them it uses (swarm)."""

    LOSS = "loss"
    DUPLICATION = "duplication"
    REORDERING = "reordering"
    DELAY = "delay"
    CLOG = "clog"
    ONE_WAY_CUT = "one-way cut"
    HALVES = "partition: halves"
    ONE_AWAY = "partition: one away"
    BRIDGE = "partition: bridge"
    FLAPPING = "flapping link"
    CRASH = "crash"
    RESTART = "restart"
    FAST_RESTART = "fast restart"
    PAUSE = "pause"
    LEAVE = "leave"
    REMOVE = "remove"
    SKEW = "skewed clock"
    TOKEN_SITE = "token site struck"
    INITIATOR = "initiator struck"
    RIVALS = "rival initiators"
    LOST_MAJORITY = "majority lost"
    LATE_FOUNDER = "late founder"


LIGHT_KINDS = (FaultKind.LOSS, FaultKind.DUPLICATION, FaultKind.REORDERING, FaultKind.DELAY)
# A restart follows a crash and a late founder is part of the birth; they are not drawn later on.
DRAWN_KINDS = tuple(kind for kind in FaultKind if kind not in (FaultKind.RESTART, FaultKind.LATE_FOUNDER))


DRAWN = -1
CALLERS_MAX = 16


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    sites: int = 5
    discipline: str = "rotating"
    faults: FaultMix = FaultMix.SWARM
    seconds: int = 12
    rate: int = 120
    callers: int = DRAWN

    def __post_init__(self) -> None:
        if not 1 <= self.sites <= 16:
            raise ConfigurationError(f"sites: {self.sites} must be between 1 and 16")
        if self.seconds < 1:
            raise ConfigurationError(f"seconds: {self.seconds} must be at least 1")
        if not DRAWN <= self.callers <= CALLERS_MAX:
            raise ConfigurationError(f"callers: {self.callers} must be {DRAWN} (drawn) to {CALLERS_MAX}")
        if self.rate < 1:
            raise ConfigurationError(f"rate: {self.rate} messages per second must be at least 1")

    @property
    def replay(self) -> str:
        """The command that plays this run again, readably."""
        default = Plan(seed=self.seed)
        options = [
            f"--{name} {getattr(self, name)}"
            for name in ("sites", "discipline", "faults", "seconds", "rate", "callers")
            if getattr(self, name) != getattr(default, name)
        ]
        return " ".join([f"rsm sim --seed {self.seed}", *options, "-v"])

    def draw_config(self, rng: Random) -> Config:
        """The group's settings: mostly the defaults, sometimes tight bounds that make limits bite."""
        addresses = tuple(f"s{number}" for number in range(1, self.sites + 1))
        swarm = self.faults is FaultMix.SWARM
        tight = swarm and rng.random() < 0.3
        forks = swarm and self.sites > 2 and rng.random() < 0.15
        return Config(
            group="simulated",
            founders=addresses,
            contacts=addresses,
            discipline=self.discipline,
            retain_slots=400 if tight else 100_000,
            block_messages=40 if tight else 65_536,
            retransmit_burst=16 if tight else 64,
            remove_ms=4000 if swarm and rng.random() < 0.3 else 0,
            # Little patience makes initiators compete.
            recovery_ms=rng.choice((150, 150, 30, 10)) if swarm else 150,
            # Some groups go on without a majority (R9).
            minimum_size=rng.randrange(1, self.sites // 2 + 1) if forks else 0,
            minority_ms=600 if forks else 1500,
            orphan_ms=1000 if forks else 10_000,
        )

    def draw_callers(self) -> tuple[int, Random]:
        """How many processes call from outside, and their chance: of its own, so that a run without callers
        is what it would be if there were none at all."""
        rng = Random(f"callers {self.seed}")
        drawn = rng.choice((0, 0, 0, 1, 2)) if self.faults is FaultMix.SWARM else 0
        return (drawn if self.callers == DRAWN else self.callers), rng

    def draw_kinds(self, rng: Random) -> tuple[FaultKind, ...]:
        """Swarm testing: each run uses its own subset, so that no kind always hides behind another."""
        match self.faults:
            case FaultMix.NONE:
                return ()
            case FaultMix.LIGHT:
                return LIGHT_KINDS
            case FaultMix.SWARM:
                return tuple(kind for kind in DRAWN_KINDS if rng.random() < 0.5)
