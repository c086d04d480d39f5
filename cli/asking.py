"""What commands that ask a running group have in common: refusing, and asking everybody who is there."""

import asyncio
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from ordering.errors import OrderingError
from ordering.naming import group_id
from rsm.config import ReplicaConfig
from rsm.status import MemberStatus, ReplicaStatus, Standing
from rsm.transfer import Peer

WRONG, UNKNOWN = 2, 4
STATUS_SECONDS: Final = 3.0
ROUNDS_MAX: Final = 3

messages = Console(stderr=True, highlight=False)

SiteFile = Annotated[Path, typer.Option("--config", "-c", help="Any site's TOML file of the group.")]
Output = Annotated[str, typer.Option("--output", "-o", help="table or json.")]
Answers = dict[str, ReplicaStatus | None]


def refuse(words: str, code: int = WRONG) -> NoReturn:
    messages.print(f"error: {words}", markup=False, style="red", soft_wrap=True)
    raise typer.Exit(code)


def load_site(path: Path) -> ReplicaConfig:
    try:
        site = ReplicaConfig.load(path)
        site.keyring()
    except OrderingError as error:
        refuse(str(error))
    return site


def check_output(output: str) -> None:
    if output not in {"table", "json"}:
        refuse(f"--output: {output!r} must be table or json")


def peer_at(site: ReplicaConfig, address: str) -> Peer:
    return Peer(address, site.keyring(), group_id(site.group), secrets.randbits(128))


async def ask(site: ReplicaConfig, address: str) -> ReplicaStatus | None:
    try:
        async with asyncio.timeout(STATUS_SECONDS):
            return await peer_at(site, address).status()
    except TimeoutError:
        return None


async def ask_all(site: ReplicaConfig, addresses: Iterable[str]) -> Answers:
    addresses = list(addresses)
    return dict(zip(addresses, await asyncio.gather(*(ask(site, each) for each in addresses)), strict=True))


async def survey(site: ReplicaConfig) -> Answers:
    """Everybody who is configured, and everybody whom those name as a member."""
    found: Answers = {}
    wanted = dict.fromkeys((*site.founders, *site.contacts, site.advertise or site.bind))
    for _ in range(ROUNDS_MAX):
        found |= await ask_all(site, wanted)
        answers = [each for each in found.values() if each is not None]
        named = dict.fromkeys(member.address for each in answers for member in each.members)
        wanted = {address: None for address in named if address not in found}
        if not wanted:
            break
    return found


class Picture(msgspec.Struct, frozen=True):
    """The group as those who answered have it; ``latest`` is who has the latest view of the chain."""

    answers: Answers
    chain: str
    latest: ReplicaStatus | None

    @property
    def members(self) -> list[MemberStatus]:
        return [] if self.latest is None else self.latest.members

    @property
    def voters(self) -> list[MemberStatus]:
        return [member for member in self.members if member.voter]

    def answer_of(self, member: MemberStatus) -> ReplicaStatus | None:
        """What the member itself says: the same site, in the same chain; or one that is just back from its
        disk, and has not executed so much yet that it knows the chain."""
        found = self.answers.get(member.address)
        if found is None or found.site != member.site or found.chain not in {self.chain, ""}:
            return None
        return found

    @property
    def present(self) -> list[MemberStatus]:
        """Voters that answer, and serve."""
        found = [(each, self.answer_of(each)) for each in self.voters]
        return [each for each, said in found if said is not None and said.standing == Standing.SERVING]

    @property
    def has_majority(self) -> bool:
        voters = self.voters
        return bool(voters) and len(self.present) > len(voters) // 2


def picture_of(answers: Answers) -> Picture:
    """Of several chains the one that has its majority, else the one that most are in."""
    said = [each for each in answers.values() if each is not None and each.members]
    chains = [each.chain for each in said]
    pictures = [
        Picture(answers, chain, max((each for each in said if each.chain == chain), key=_view_of))
        for chain in dict.fromkeys(chains)
    ]
    nobody = Picture(answers, "", None)
    return max(pictures, key=lambda each: (each.has_majority, chains.count(each.chain)), default=nobody)


def _view_of(status: ReplicaStatus) -> tuple[int, ...]:
    return (*map(int, status.view.split(".")), status.applied)


def fitting_table(console: Console, titles: list[str], rows: Iterable[list[str]]) -> Table:
    """As many columns, from the left, as the terminal has room for: a cut address tells nothing."""
    rows = [row + [""] * (len(titles) - len(row)) for row in rows]
    unbounded = console.options.update(max_width=10_000)  # else what is too wide measures as wide as there is
    count = len(titles)
    while True:
        table = Table()
        for title in titles[:count]:
            table.add_column(title, no_wrap=True)
        for row in rows:
            table.add_row(*row[:count])
        if count == 1 or console.measure(table, options=unbounded).maximum <= console.width:
            return table
        count -= 1
