"""How the group stands, for who asks over HTTP: a survey of all replicas, shared and kept for a moment."""

import asyncio
from collections import Counter
from typing import Any, Final

import msgspec
from typing_extensions import TypedDict

from api.problems import Problem
from api.settings import GatewaySettings
from api.store import App, Group
from rsm.status import FIRST_SEEN, MemberStatus, ReplicaStatus, ViewStatus
from rsm.survey import Picture

SURVEY_SECONDS: Final = 5.0
VIEWS_TOLD: Final = 32


class MemberShape(TypedDict):
    """``received``, ``held`` and ``applied`` are slots; what only the member itself knows is null if it did
    not answer."""

    name: str
    site: str
    voter: bool
    boot: str
    pid: int | None
    address: str
    role: str
    state: str
    received: int
    held: int
    applied: int | None
    lag: int
    log_bytes: int | None


class TokenShape(TypedDict):
    site: str
    address: str


class GroupLockShape(TypedDict):
    name: str
    handler: bool
    site: str
    address: str
    fence: int
    queue: int


class ViewShape(TypedDict):
    view: str
    slot: int
    at_s: float
    ring: list[str]
    electorate: list[str]
    learners: list[str]
    why: str


class ClusterShape(TypedDict):
    """``app``: what is served of it here."""

    group: str
    app: str
    chain: str
    primary: bool
    view: str
    views: list[ViewShape]
    members: list[MemberShape]
    token: TokenShape
    locks: list[GroupLockShape]
    counters: dict[str, int]


class Surveys:
    """Asks all replicas, at most once in ``survey_ms``, however many want to know."""

    def __init__(self, group: Group[Any], app: App, settings: GatewaySettings) -> None:
        self._group = group
        self._app = app
        self._seconds = settings.survey_ms / 1000
        self._latest: Picture | None = None
        self._at = 0.0
        self._asking: asyncio.Task[Picture] | None = None

    async def picture(self) -> Picture:
        loop = asyncio.get_running_loop()
        if self._latest is not None and loop.time() - self._at < self._seconds:
            return self._latest
        if self._asking is None:
            self._asking = loop.create_task(self._ask())
            self._asking.add_done_callback(self._asked)
        return await asyncio.shield(self._asking)

    async def _ask(self) -> Picture:
        async with asyncio.timeout(SURVEY_SECONDS):
            self._latest = await self._group.survey()
        self._at = asyncio.get_running_loop().time()
        return self._latest

    def _asked(self, task: "asyncio.Task[Picture]") -> None:
        self._asking = None
        if not task.cancelled():
            task.exception()  # whoever asked is told

    async def shape(self) -> ClusterShape:
        picture = await self.picture()
        latest = picture.latest
        if latest is None:
            raise Problem("no_primary", "no replica answers; try again")
        return shape_of(picture, latest, self._app)

    def forget(self) -> None:
        """Something was ordered: what was known before is old."""
        self._latest = None


def shape_of(picture: Picture, latest: ReplicaStatus, app: App) -> ClusterShape:
    """``latest`` has the latest view; counters are sums over all who answered."""
    counters: Counter[str] = Counter()
    for each in picture.answers.values():
        if each is not None:
            counters.update(each.counters)
    return {
        "group": latest.group,
        "app": app.value,
        "chain": picture.chain,
        "primary": picture.has_majority,
        "view": latest.view,
        "views": _plain(_views(picture, latest)),
        "members": [_member(each, picture.answer_of(each)) for each in picture.members],
        "token": {"site": latest.token, "address": latest.token_address},
        "locks": _plain(latest.locks),
        "counters": dict(sorted(counters.items())),
    }


def _views(picture: Picture, latest: ReplicaStatus) -> list[ViewStatus]:
    """Who came back has seen the last ones alone, so all who answer are heard; of the same view the one who
    was there before it knows why it came."""
    found: dict[tuple[int, ...], ViewStatus] = {}
    answers = [each for each in picture.answers.values() if each is not None]
    for each in (each for said in answers if said.chain == latest.chain for each in said.views):
        place = (*map(int, each.view.split(".")), each.slot)
        known = found.get(place)
        if known is None or known.why == FIRST_SEEN:
            found[place] = each
    return [found[place] for place in sorted(found)][-VIEWS_TOLD:]


def _member(seen: MemberStatus, said: ReplicaStatus | None) -> MemberShape:
    """What the member says of itself, and else what is seen of it."""
    return {
        "name": seen.name,
        "site": seen.site,
        "voter": seen.voter,
        "boot": seen.boot if said is None else said.boot,
        "pid": None if said is None else said.pid,
        "address": seen.address,
        "role": seen.role,
        "state": "silent" if said is None else said.standing,
        "received": seen.received if said is None else said.received,
        "held": seen.held if said is None else said.held,
        "applied": None if said is None else said.applied,
        "lag": seen.lag if said is None else said.lag,
        "log_bytes": None if said is None else said.log_bytes,
    }


def _plain(structs: Any) -> Any:
    return msgspec.to_builtins(structs)
