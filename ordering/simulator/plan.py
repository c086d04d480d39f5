"""What one run is made of. A plan is small, printable, and the whole cause of a trace."""

from enum import StrEnum
from random import Random
from typing import ClassVar

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
    ALL_DOWN = "all down"
    SLOW_DISK = "slow disk"
    SYNC_FAILED = "failed sync"
    DISK_LOST = "disk lost"
    ROLLED_BACK = "disk rolled back"
    CLOCK_SET = "wall clock set wrong"
    OVERRUN = "overrun links"
    SLOW_APPLICATION = "slow application"
    REPLAY = "replayed datagrams"
    FORGERY = "forged datagrams"
    DEAF_TOKEN_SITE = "deaf token site"
    RETIRE = "retire"


LIGHT_KINDS = (FaultKind.LOSS, FaultKind.DUPLICATION, FaultKind.REORDERING, FaultKind.DELAY)
# A restart follows a crash, a late founder is part of the birth, clocks have a life of their own, and what
# comes after the healing, and who retires, is drawn aside.
UNDRAWN_KINDS = (
    FaultKind.RESTART,
    FaultKind.LATE_FOUNDER,
    FaultKind.CLOCK_SET,
    FaultKind.DEAF_TOKEN_SITE,
    FaultKind.RETIRE,
)
# What can only happen to a group that writes to disks.
DISK_KINDS = (
    FaultKind.ALL_DOWN,
    FaultKind.SLOW_DISK,
    FaultKind.SYNC_FAILED,
    FaultKind.DISK_LOST,
    FaultKind.ROLLED_BACK,
)
# Drawn only where there is much to send.
FLOW_KINDS = (FaultKind.OVERRUN, FaultKind.SLOW_APPLICATION)
# Somebody without a key; only where datagrams are sealed.
ATTACKS = (FaultKind.REPLAY, FaultKind.FORGERY)
_ASIDE = (*UNDRAWN_KINDS, *DISK_KINDS, *FLOW_KINDS, *ATTACKS)
MEMORY_KINDS = tuple(kind for kind in FaultKind if kind not in _ASIDE)


def _option(name: str, value: object) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {value}"


DRAWN = -1
CALLERS_MAX = 16


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Large messages in small packets: what is cut, how often, and how little room there is."""

    packet_bytes: int
    message_bytes_max: int
    share: float  # of messages that are large
    tight: bool
    kinds: tuple[FaultKind, ...]

    def settings(self) -> dict[str, int]:
        settings = {"packet_bytes": self.packet_bytes, "message_bytes_max": self.message_bytes_max}
        if self.tight:
            settings["window_bytes"] = 3 * self.message_bytes_max
            settings["assembly_bytes_max"] = 2 * self.message_bytes_max
            settings["buffer_bytes_max"] = 10 * self.message_bytes_max
        # A burst is counted in packets, and here they carry little.
        settings["retransmit_burst"] = 64
        return settings


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """``command``: what plays such plans."""

    command: ClassVar[str] = "rsm sim"

    seed: int
    sites: int = 5
    discipline: str = "rotating"
    faults: FaultMix = FaultMix.SWARM
    seconds: int = 12
    rate: int = 120
    durable: bool | None = None  # None: drawn
    sealed: bool | None = None
    reads: bool | None = None
    retire: bool | None = None
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
        default = type(self)(seed=self.seed)
        options = [
            _option(name, getattr(self, name))
            for name in (
                "sites",
                "discipline",
                "faults",
                "seconds",
                "rate",
                "durable",
                "sealed",
                "reads",
                "retire",
                "callers",
            )
            if getattr(self, name) != getattr(default, name)
        ]
        return " ".join([f"{self.command} --seed {self.seed}", *options, "-v"])

    @property
    def is_durable(self) -> bool:
        """Whether the group writes to disks; drawn aside, so that a memory run stays what it was."""
        if self.durable is not None:
            return self.durable
        return self.faults is FaultMix.SWARM and Random(self.seed ^ 0xD0BAB1E).random() < 0.4

    @property
    def is_sealed(self) -> bool:
        """Whether what travels are sealed datagrams; that costs time, so it is few runs."""
        if self.sealed is not None:
            return self.sealed
        return self.faults is FaultMix.SWARM and Random(self.seed ^ 0x5EA1).random() < 0.06

    def draw_readers(self) -> Random | None:
        """The chance of applications that read, if there are any: drawn aside, like callers."""
        rng = Random(f"reads {self.seed}")
        drawn = self.faults is FaultMix.SWARM and rng.random() < 0.3
        return rng if (drawn if self.reads is None else self.reads) else None

    def draw_retirers(self) -> Random | None:
        """The chance of hosts that are stopped in an orderly way, if there are any: drawn aside as well."""
        rng = Random(f"retire {self.seed}")
        drawn = self.faults is FaultMix.SWARM and self.sites > 2 and rng.random() < 0.3
        return rng if (drawn if self.retire is None else self.retire) else None

    def draw_load(self) -> Load | None:
        """Some runs have messages above a packet all the time, and little room for them. Drawn from a
        source of its own, so that the rest of a run does not depend on it."""
        rng = Random(f"load {self.seed}")
        if self.faults is not FaultMix.SWARM or rng.random() >= 0.4:
            return None
        return Load(
            packet_bytes=rng.choice((400, 700, 1_400)),
            message_bytes_max=rng.choice((3_000, 8_000)),
            share=rng.choice((0.05, 0.2)),
            tight=rng.random() < 0.5,
            kinds=tuple(kind for kind in FLOW_KINDS if rng.random() < 0.6),
        )

    def draw_config(self, rng: Random) -> Config:
        """The group's settings: mostly the defaults, sometimes tight bounds that make limits bite."""
        addresses = tuple(f"s{number}" for number in range(1, self.sites + 1))
        swarm = self.faults is FaultMix.SWARM
        tight = swarm and rng.random() < 0.3
        load = self.draw_load()
        forks = swarm and self.sites > 2 and rng.random() < 0.15
        config = Config(
            durable=self.is_durable and not forks,
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
        return config if load is None else msgspec.structs.replace(config, **load.settings())

    def draw_callers(self) -> tuple[int, Random]:
        """How many processes call from outside, and their chance: of its own, so that a run without callers
        is what it would be if there were none at all."""
        rng = Random(f"callers {self.seed}")
        drawn = rng.choice((0, 0, 0, 1, 2)) if self.faults is FaultMix.SWARM else 0
        return (drawn if self.callers == DRAWN else self.callers), rng

    @property
    def deafens(self) -> bool:
        """Whether the token site goes deaf for good when the load is over and somebody wants in."""
        return self.faults is FaultMix.SWARM and Random(f"deaf {self.seed}").random() < 0.15

    def draw_kinds(self, rng: Random) -> tuple[FaultKind, ...]:
        """Swarm testing: each run uses its own subset, so that no kind always hides behind another."""
        match self.faults:
            case FaultMix.NONE:
                return ()
            case FaultMix.LIGHT:
                return LIGHT_KINDS
            case FaultMix.SWARM:
                drawn = tuple(kind for kind in MEMORY_KINDS if rng.random() < 0.5)
                load = self.draw_load()
                if load is not None:
                    drawn += load.kinds
                if self.is_sealed:
                    drawn += ATTACKS
                if self.is_durable:
                    aside = Random(self.seed ^ 0xFA117)
                    drawn += tuple(kind for kind in DISK_KINDS if aside.random() < 0.6)
                return drawn
