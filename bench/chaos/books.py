"""What a campaign has done so far, in a file, and what it still has to do."""

import os
from pathlib import Path
from typing import Final

import msgspec

from bench.chaos.failpoints import Role
from bench.chaos.plan import SMALL_GROUP, App, Database, Kind
from bench.errors import BenchError

FILE: Final = "progress.json"
GATEWAY: Final = "gateway"
_ORDERS: Final = 6  # in which three sites can come back
_TOLD_MAX: Final = 20


class Tally(msgspec.Struct, kw_only=True):
    """Faults that took place. ``orders`` are those in which all sites came back, by their numbers;
    ``missed`` were armed, and nobody came to the place in time. Kills of gateways are among ``kills``."""

    kills: dict[str, int] = {}
    pauses: int = 0
    orders: dict[str, int] = {}
    wipes: int = 0
    missed: dict[str, int] = {}
    gateway_pauses: int = 0

    def killed(self, role: str) -> None:
        self.kills[role] = self.kills.get(role, 0) + 1

    def miss(self, what: str) -> None:
        self.missed[what] = self.missed.get(what, 0) + 1

    def add(self, other: "Tally") -> None:
        for mine, theirs in (
            (self.kills, other.kills),
            (self.orders, other.orders),
            (self.missed, other.missed),
        ):
            for name, count in theirs.items():
                mine[name] = mine.get(name, 0) + count
        self.pauses += other.pauses
        self.wipes += other.wipes
        self.gateway_pauses += other.gateway_pauses


class Checked(msgspec.Struct, kw_only=True):
    """What was judged. ``searched`` keys by a search through all orders, which ``gave_up`` on some. Over HTTP
    ``repeated`` operations were sent again under their key, and ``watched`` events were seen by watchers. Of
    actions, ``operations`` are those that were begun, ``executed`` those that the ledger has; ``in_doubt``
    were found prepared by a site that came back, and ``dependent`` ones waited for others."""

    operations: int = 0
    acknowledged: int = 0
    unknown: int = 0
    refused: int = 0
    executed: int = 0
    searched: int = 0
    gave_up: int = 0
    repeated: int = 0
    watched: int = 0
    committed: int = 0
    in_doubt: int = 0
    dependent: int = 0

    def add(self, other: "Checked") -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Bad(msgspec.Struct, kw_only=True):
    """A round in which something was violated."""

    seed: int
    directory: str
    replay: str
    problems: list[str]


class Books(msgspec.Struct, kw_only=True):
    sites: int
    next_seed: int
    http: bool = False
    app: App = App.REGISTERS
    database: Database = Database.SQLITE
    rounds: int = 0
    seconds: float = 0.0
    tally: Tally = msgspec.field(default_factory=Tally)
    checked: Checked = msgspec.field(default_factory=Checked)
    bad: list[Bad] = []

    @property
    def violations(self) -> int:
        return sum(len(each.problems) for each in self.bad)

    def add(self, tally: Tally, checked: Checked, seconds: float, bad: Bad | None) -> None:
        self.rounds += 1
        self.seconds += seconds
        self.tally.add(tally)
        self.checked.add(checked)
        if bad is not None:
            bad.problems = bad.problems[:_TOLD_MAX]
            self.bad.append(bad)

    def save(self, directory: Path) -> None:
        """Whole, whenever we are interrupted."""
        made = directory / f"{FILE}.new"
        made.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
        os.replace(made, directory / FILE)

    @classmethod
    def load(
        cls,
        directory: Path,
        sites: int,
        seed: int,
        *,
        http: bool = False,
        app: App = App.REGISTERS,
        database: Database = Database.SQLITE,
    ) -> "Books":
        """Those of the campaign in ``directory``, or new ones."""
        path = directory / FILE
        if not path.exists():
            return cls(sites=sites, next_seed=seed, http=http, app=app, database=database)
        try:
            books = msgspec.json.decode(path.read_bytes(), type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BenchError(f"{path}: cannot be read: {error}; remove it to begin anew") from None
        if books.sites != sites:
            raise BenchError(
                f"{directory}: its campaign has {books.sites} sites; go on with --sites {books.sites}, or"
                " name another --directory"
            )
        if books.http != http:
            how = "with" if books.http else "without"
            raise BenchError(
                f"{directory}: its campaign is {how} --http; go on {how} it, or name another --directory"
            )
        if (books.app, books.database) != (app, database):
            raise BenchError(
                f"{directory}: its campaign is one of --app {books.app} --database {books.database}; go on"
                " with that, or name another --directory"
            )
        return books


class Quotas(msgspec.Struct, frozen=True, kw_only=True):
    """``kills`` of each of ``roles``; ``restarts`` in each order that three sites can come back in;
    ``gateways`` killed."""

    kills: int = 50
    pauses: int = 200
    restarts: int = 1
    gateways: int = 0
    roles: tuple[str, ...] = tuple(Role)

    def progress(self, tally: Tally) -> dict[str, tuple[int, int]]:
        """How much of what."""
        shown = {str(role): (tally.kills.get(role, 0), self.kills) for role in self.roles}
        if self.gateways:
            shown[GATEWAY] = (tally.kills.get(GATEWAY, 0), self.gateways)
        shown["pauses"] = (tally.pauses, self.pauses)
        covered = sum(
            min(count, self.restarts) for name, count in tally.orders.items() if len(name) == SMALL_GROUP
        )
        shown["all down"] = (covered, _ORDERS * self.restarts)
        return shown

    def missing(self, tally: Tally) -> dict[str, int]:
        return {name: wanted - done for name, (done, wanted) in self.progress(tally).items() if done < wanted}

    def done(self, tally: Tally) -> float:
        """From 0 to 1."""
        parts = self.progress(tally).values()
        wanted = sum(each for _, each in parts)
        return sum(min(part) for part in parts) / wanted if wanted else 1.0

    def wants(self, tally: Tally, kind: Kind, sites: int) -> bool:
        """Whether a round of this kind brings anything that is missing. Larger groups that die as a whole
        have no quota, and their turn as long as there is one to meet."""
        missing = self.missing(tally)
        if kind is Kind.ALL_DOWN and sites == SMALL_GROUP:
            return "all down" in missing
        return any(name != "all down" for name in missing)
