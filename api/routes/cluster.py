"""The group itself: who is in it, its log, its snapshots."""

from typing import Annotated, Any, Final, NotRequired

import msgspec
from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from api.cluster import ClusterShape
from api.description import documented, problems
from api.parameters import FORCE, INT_MAX, LIMIT, Parameter, known, number_of, percent_decoded
from api.parts import Parts, asked_of, json_answer, parts_of
from api.problems import Problem
from api.protocol import CONNECTION
from api.routes.watch import STREAM
from api.streams import EventStream
from rsm import survey
from rsm.operations import Progress

router = APIRouter(prefix="/v1", tags=["cluster"])

PAGE: Final = 100
REMOVAL_SECONDS: Final = 30.0
AFTER_SLOT: Final = Parameter(
    "since",
    lambda text: number_of(text, 0),
    "Behind this slot.",
    {"type": "integer", "format": "int64", "minimum": 0, "maximum": INT_MAX},
    0,
)
_NOTHING: Final = known()
_LOGGED: Final = known(AFTER_SLOT, LIMIT)
_FORCED: Final = known(FORCE)


class RemovedShape(TypedDict):
    member: str
    slot: int


class SnapshotShape(TypedDict):
    """``slot`` is that of the state that is saved, null if there is none."""

    member: str
    slot: int | None
    bytes: int | None
    age_s: float | None
    mode: str
    saved: NotRequired[bool]
    words: NotRequired[str]


class SnapshotsShape(TypedDict):
    items: list[SnapshotShape]


class MessageShape(TypedDict):
    slot: int
    kind: str
    source: str
    size: int
    method: NotRequired[str]
    arguments: NotRequired[Any]
    session: NotRequired[int]
    number: NotRequired[int]
    words: NotRequired[str]


class LogShape(TypedDict):
    """Ask for what is behind ``next``; the log begins behind ``begin``."""

    items: list[MessageShape]
    begin: int
    next: int


@router.get("/cluster", summary="How the group stands", response_model=ClusterShape, responses=problems())
async def cluster(request: Request) -> Response:
    asked_of(request, _NOTHING)
    return json_answer(await parts_of(request).surveys.shape())


@router.get(
    "/cluster/events",
    summary="The same whenever it changes, and figures of every second",
    status_code=200,
    response_class=EventStream,
    responses={**STREAM, **problems()},
)
async def cluster_events(request: Request) -> Response:
    asked_of(request, _NOTHING)
    parts = parts_of(request)
    parts.watches.check_room()
    parts.watches.others += 1
    viewer = parts.board.join(request.scope[CONNECTION].abort)

    async def leave() -> None:
        parts.watches.others -= 1
        await parts.board.leave(viewer)

    return EventStream(viewer.chunks, leave)


@router.post(
    "/cluster/members/{name}:remove",
    summary="Take a member that is gone out of the electorate",
    response_model=RemovedShape,
    responses=problems("member_not_found", "member_runs", "order_refused"),
    openapi_extra=documented(FORCE),
)
async def remove(
    request: Request, name: Annotated[str, Path(min_length=1, examples=["127.0.0.1:7401"])]
) -> Response:
    asked = asked_of(request, _FORCED)
    parts = parts_of(request)
    member = percent_decoded(name.encode()).decode(errors="replace")
    outcome = await parts.access.group.remove(member, REMOVAL_SECONDS, force=asked.get(FORCE) or False)
    shape: RemovedShape = {"member": member, "slot": outcome.ts}
    return json_answer(shape)


@router.get(
    "/log",
    summary="The order itself, message by message",
    response_model=LogShape,
    responses=problems("no_log"),
    openapi_extra=documented(AFTER_SLOT, LIMIT),
)
async def log(request: Request) -> Response:
    asked = asked_of(request, _LOGGED)
    parts = parts_of(request)
    picture = await parts.surveys.picture()
    peer = parts.access.group.peer
    page = await survey.log(picture, peer, asked.get(AFTER_SLOT) or 0, asked.get(LIMIT) or PAGE)
    if page is None:
        raise Problem("no_log", "the replicas run in memory mode; a durable one keeps a log")
    shape: LogShape = {"items": msgspec.to_builtins(page.items), "begin": page.begin, "next": page.next}
    return json_answer(shape)


@router.get(
    "/snapshots", summary="What each replica has saved", response_model=SnapshotsShape, responses=problems()
)
async def list_snapshots(request: Request) -> Response:
    asked_of(request, _NOTHING)
    return json_answer(await _snapshots(parts_of(request)))


@router.post(
    "/snapshots",
    summary="Have every replica save its state",
    response_model=SnapshotsShape,
    responses=problems(),
)
async def save(request: Request) -> Response:
    asked_of(request, _NOTHING)
    parts = parts_of(request)
    outcomes = await survey.save(await parts.surveys.picture(), parts.access.group.peer)
    parts.surveys.forget()
    shape = await _snapshots(parts)
    for each in shape["items"]:
        outcome = outcomes.get(each["member"])
        each["saved"] = outcome is not None and outcome.progress is Progress.DONE
        each["words"] = "it did not answer" if outcome is None else outcome.words
    return json_answer(shape)


async def _snapshots(parts: Parts) -> SnapshotsShape:
    picture = await parts.surveys.picture()
    items: list[SnapshotShape] = []
    for member in picture.members:
        said = picture.answer_of(member)
        found = None if said is None else said.snapshot
        items.append(
            {
                "member": member.address,
                "slot": None if found is None else found.slot,
                "bytes": None if found is None else found.bytes,
                "age_s": None if found is None else found.age_s,
                "mode": "" if said is None else said.mode,
            }
        )
    return {"items": items}
