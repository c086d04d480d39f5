"""The processes of a demo, for its dashboard: pause one, kill one, and see what the ring does.

Only a gateway that a demo has started has these paths.
"""

from typing import Annotated, Final

from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response

from api.control import DemoShape, Order, Supervisor
from api.description import problems
from api.parameters import known, percent_decoded
from api.parts import asked_of, json_answer, parts_of

router = APIRouter(prefix="/v1/demo", tags=["demo"])

_NOTHING: Final = known()


@router.get("", summary="Its processes", response_model=DemoShape, responses=problems("no_supervisor"))
async def demo(request: Request) -> Response:
    asked_of(request, _NOTHING)
    return json_answer(await _supervisor(request).state())


@router.post(
    "/members/{name}:{order}",
    summary="Pause, resume, kill or restart a replica",
    response_model=DemoShape,
    responses=problems("member_not_found", "order_refused", "no_supervisor"),
)
async def give(
    request: Request,
    name: Annotated[str, Path(min_length=1, examples=["replica 1"])],
    order: Order,
) -> Response:
    asked_of(request, _NOTHING)
    member = percent_decoded(name.encode()).decode(errors="replace")
    shape = await _supervisor(request).order(order, member)
    parts_of(request).board.show_demo(shape)
    return json_answer(shape)


def _supervisor(request: Request) -> Supervisor:
    found = parts_of(request).board.supervisor
    assert found is not None  # else these routes are not there
    return found
