"""The whole group as its members tell: who is in it, how each stands, and what an operator has them do.

One replica knows the view and what it has heard of the others; how the others stand only they can say. So
everybody is asked who is configured, and everybody whom those name.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import msgspec

from rsm.errors import OutcomeUnknown, RsmError
from rsm.logbook import LogPage, LogWanted
from rsm.operations import Order, Outcome, Progress, RemovalWanted, SaveWanted
from rsm.status import MemberStatus, ReplicaStatus, Standing
from rsm.transfer import Peer

STATUS_SECONDS: Final = 3.0
ROUNDS_MAX: Final = 3
RETRY_SECONDS: Final = 0.2

Answers: TypeAlias = dict[str, ReplicaStatus | None]
PeerAt: TypeAlias = Callable[[str], Peer]


class OrderRefused(RsmError):
    """Nothing was done. ``code`` is for programs: ``member_not_found``, ``member_runs``, ``no_primary`` or
    ``refused``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


async def ask(peer: Peer, patience_s: float = STATUS_SECONDS) -> ReplicaStatus | None:
    try:
        async with asyncio.timeout(patience_s):
            return await peer.status()
    except TimeoutError:
        return None


async def ask_all(peer_at: PeerAt, addresses: Iterable[str], patience_s: float = STATUS_SECONDS) -> Answers:
    addresses = list(addresses)
    asked = await asyncio.gather(*(ask(peer_at(each), patience_s) for each in addresses))
    return dict(zip(addresses, asked, strict=True))


async def survey(peer_at: PeerAt, addresses: Iterable[str], patience_s: float = STATUS_SECONDS) -> "Picture":
    """Everybody at these addresses, and everybody whom those name as a member."""
    found: Answers = {}
    wanted = dict.fromkeys(addresses)
    for _ in range(ROUNDS_MAX):
        found |= await ask_all(peer_at, wanted, patience_s)
        answers = [each for each in found.values() if each is not None]
        named = dict.fromkeys(member.address for each in answers for member in each.members)
        wanted = {address: None for address in named if address not in found}
        if not wanted:
            break
    return picture_of(found)


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


class Surveyor:
    """Who can ask the members of a group; a client and a replica can."""

    @property
    def addresses(self) -> tuple[str, ...]:
        raise NotImplementedError

    @property
    def linked_to(self) -> str:
        """Whom reads go to at present, empty for nobody; a replica reads its own state."""
        return next(iter(self.addresses), "")

    def peer(self, address: str) -> Peer:
        raise NotImplementedError

    async def survey(self, patience_s: float = STATUS_SECONDS) -> Picture:
        """How everybody in the group stands; who does not say so in that time is silent."""
        return await survey(self.peer, self.addresses, patience_s)

    async def remove(self, member: str, timeout: float, *, force: bool = False) -> Outcome:
        """Take a member that is gone for good out of the electorate, or ``OrderRefused``."""
        _, outcome = await remove(await self.survey(), member, self.peer, timeout, force=force)
        return outcome


async def log(picture: Picture, peer_at: PeerAt, since: int, limit: int) -> LogPage | None:
    """A page of the group's log, from a replica that keeps one; None if nobody does."""
    if not picture.present:
        raise OrderRefused("no_primary", "no replica serves; start the others")
    page: LogPage | None = None
    for member in sorted(picture.present, key=lambda each: each.site == _holder(picture)):
        page = await _page_of(peer_at(member.address), LogWanted(int(picture.chain, 16), since, limit))
        if page is not None and page.kept and page.chain == int(picture.chain, 16):
            return page
    if page is None:
        raise OrderRefused("no_primary", "no replica has answered; try again")
    return None


def _holder(picture: Picture) -> str:
    """Who answers clients, and has enough to do."""
    said = [each for each in picture.answers.values() if each is not None and each.handler]
    return said[0].site if said else ""


async def _page_of(peer: Peer, wanted: LogWanted) -> LogPage | None:
    try:
        async with asyncio.timeout(STATUS_SECONDS):
            return await peer.log(wanted)
    except TimeoutError:
        return None


# -- orders --------------------------------------------------------------------------------------


async def remove(
    picture: Picture, named: str, peer_at: PeerAt, timeout: float, *, force: bool = False
) -> tuple[MemberStatus, Outcome]:
    """Take a member, by its address or id, out of the electorate; ``force``: also one that runs."""
    member = _member(picture, named)
    if picture.answer_of(member) is not None and not force:
        raise OrderRefused(
            "member_runs",
            f"{member.address} runs, and would come back as a new member; stop it first, or force it",
        )
    helpers = [each.address for each in picture.present if each.site != member.site]
    if not picture.has_majority:
        raise OrderRefused(
            "no_primary",
            f"{len(picture.present)} of {len(picture.voters)} voters serve, and a removal is ordered by a"
            " majority; start the others, or see rsm cluster recover --help",
        )
    order = RemovalWanted(int(picture.chain, 16), int(member.site, 16))
    return member, await give(order, helpers, peer_at, timeout)


def _member(picture: Picture, named: str) -> MemberStatus:
    if picture.latest is None:
        raise OrderRefused("no_primary", "nobody answers; is a replica running?")
    found = [each for each in picture.members if named in {each.address, each.site}]
    if len(found) > 1:
        ids = ", ".join(each.site for each in found)
        raise OrderRefused("member_not_found", f"{named}: there are several; name one by its id: {ids}")
    if not found:
        known = ", ".join(f"{each.address} ({each.site})" for each in picture.members)
        raise OrderRefused("member_not_found", f"{named}: is no member; there are: {known}")
    return found[0]


async def save(picture: Picture, peer_at: PeerAt) -> dict[str, Outcome | None]:
    """Have every member that answers save its state now; by address, what became of it."""
    order = SaveWanted(int(picture.chain or "0", 16))
    there = [each.address for each in picture.members if picture.answer_of(each) is not None]
    outcomes = await asyncio.gather(*(peer_at(each).order(order) for each in there))
    return dict(zip(there, outcomes, strict=True))


async def give(
    order: Order, addresses: list[str], peer_at: PeerAt, timeout: float, patience: float = 0.0
) -> Outcome:
    """Ask one after the other until it is done, or somebody refuses. ``patience``: for so many seconds a
    refusal may be because of what the replica has not noticed yet."""
    began = time.monotonic()
    ends = began + timeout
    words = "nobody answered"
    while True:
        for address in addresses:
            outcome = await peer_at(address).order(order)
            if outcome is not None and outcome.progress is Progress.DONE:
                return outcome
            late = time.monotonic() - began >= patience
            if outcome is not None and outcome.progress is Progress.REFUSED and late:
                raise OrderRefused("refused", f"{address}: {outcome.words}")
            if outcome is not None:
                words = outcome.words
        if time.monotonic() > ends:
            raise OutcomeUnknown(f"not within {timeout:g} s: {words}; it may still happen, see rsm members")
        await asyncio.sleep(RETRY_SECONDS)
