"""What the dashboard shows, told to all who look: one survey a second, however many they are.

::

    event: cluster   how the group stands (``GET /v1/cluster``), whenever it changes
    event: locks     who holds which lock of the key-value store, whenever it changes
    event: sites     the sites of actions, whenever they change; a group runs the one or the other
    event: demo      the processes of a demo, whenever they change
    event: error     nobody in the group answers: a problem; then no ``cluster`` until somebody does
    event: history   first of all: the seconds before, oldest first
    event: second    every second: rates, percentiles, and the token's way

While nobody looks nobody is asked. Everything is encoded once. A viewer that does not read is dropped when
too much waits for it; nobody else waits.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from time import time
from typing import Any, Final, TypeAlias

import msgspec

from api.cluster import shape_of
from api.control import DemoShape, Supervisor
from api.figures import Place, Reading, SecondShape, ToldSecondShape, path_of, reading_of, second_of
from api.metrics import Metrics
from api.problems import Problem, problem_of
from api.store import Access
from ordering.errors import OrderingError
from rsm.errors import RsmError
from rsm.survey import Picture

SECONDS_BETWEEN: Final = 1.0
PATIENCE_SECONDS: Final = 1.0  # who has not answered by then is shown as silent
SECONDS_KEPT: Final = 120
VIEWER_BYTES_MAX: Final = 1 << 20

_FAILURES: Final = (Problem, OrderingError, RsmError, TimeoutError)

Look: TypeAlias = Callable[[], Awaitable[tuple[str, Any]]]


class Viewer:
    """One who looks. ``abort`` leaves a connection that is not read from."""

    def __init__(self, abort: Callable[[], None]) -> None:
        self._abort = abort
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._woken = asyncio.Event()
        self.is_over = False

    def take(self, text: bytes) -> None:
        if self.is_over:
            return
        self._waiting.append(text)
        self._bytes += len(text)
        self._woken.set()
        if self._bytes > VIEWER_BYTES_MAX:
            self._waiting.clear()
            self.end(Problem("overloaded", "this viewer reads too slowly"))
            self._abort()

    def end(self, problem: Problem) -> None:
        if not self.is_over:
            self._waiting.append(_text("error", problem.shape()))
            self.is_over = True
            self._woken.set()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        while True:
            await self._woken.wait()
            self._woken.clear()
            over = self.is_over
            text, self._waiting, self._bytes = b"".join(self._waiting), [], 0
            yield text
            if over:
                return


class Board:
    """Of one gateway."""

    def __init__(
        self, access: Access[Any], look: Look, metrics: Metrics, supervisor: Supervisor | None
    ) -> None:
        """``look``: an event of the application's own, as some replica has it."""
        self._access = access
        self._look = look
        self._metrics = metrics
        self.supervisor = supervisor
        self._viewers: dict[Viewer, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._said: dict[str, bytes] = {}  # the latest of each kind
        self._seconds: deque[SecondShape] = deque(maxlen=SECONDS_KEPT)
        self._before: Reading | None = None
        self._chain = ""
        self._told: Place = (0, 0)

    def join(self, abort: Callable[[], None]) -> Viewer:
        """It is told at once what is known, and then whatever comes."""
        viewer = Viewer(abort)
        viewer.take(_text("history", {"seconds": list(self._seconds)}))
        for text in self._said.values():
            viewer.take(text)
        self._viewers[viewer] = None
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch())
            self._task.add_done_callback(self._ended)
        return viewer

    async def leave(self, viewer: Viewer) -> None:
        self._viewers.pop(viewer, None)
        task = self._task
        if task is not None and not self._viewers:
            self._task = None
            self._said.clear()
            self._before = None
            task.cancel()
            await asyncio.wait([task])

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """By a defect: viewers are told so, and who comes next finds it begun anew."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._task = None
            for viewer in self._viewers:
                viewer.end(problem_of(error))

    def stop(self) -> None:
        """Viewers are told, and come again elsewhere."""
        for viewer in self._viewers:
            viewer.end(Problem("stopping", "this gateway stops; ask another one"))

    # -- looking ---------------------------------------------------------------------------------

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            picture, *_ = await asyncio.gather(self._survey(), self._look_at_app(), self._look_at_demo())
            self._count(picture)
            await asyncio.sleep(max(began + SECONDS_BETWEEN - loop.time(), 0))

    async def _survey(self) -> Picture | None:
        try:
            picture = await self._access.group.survey(PATIENCE_SECONDS)
            if picture.latest is None:
                raise Problem("no_primary", "no replica answers")
        except _FAILURES as error:
            self._said.pop("cluster", None)
            self._tell("error", problem_of(error).shape())
            return None
        self._said.pop("error", None)
        self._tell("cluster", shape_of(picture, picture.latest, self._access.app))
        return picture

    async def _look_at_app(self) -> None:
        """A moment old, and without a word to the ring."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                kind, shape = await self._look()
        except _FAILURES:
            return
        self._tell(kind, shape)

    async def _look_at_demo(self) -> None:
        if self.supervisor is not None:
            try:
                self.show_demo(await self.supervisor.state())
            except Problem:
                self._said.pop("demo", None)

    def show_demo(self, shape: DemoShape) -> None:
        self._tell("demo", shape)

    def _count(self, picture: Picture | None) -> None:
        if picture is not None and picture.chain != self._chain:
            self._chain, self._told = picture.chain, (0, 0)  # another order, with slots of its own
        now = asyncio.get_running_loop().time()
        before = self._before
        self._before = after = reading_of(now, time(), self._metrics.answered(), picture)
        path, self._told = path_of(before or after, after, self._told)
        if before is None:
            return
        second = second_of(before, after)
        self._seconds.append(second)
        told: ToldSecondShape = {**second, "token": path}
        self._publish(_text("second", told))

    # -- telling ---------------------------------------------------------------------------------

    def _tell(self, kind: str, shape: Any) -> None:
        text = _text(kind, shape)
        if self._said.get(kind) != text:
            self._said[kind] = text
            self._publish(text)

    def _publish(self, text: bytes) -> None:
        for viewer in list(self._viewers):
            viewer.take(text)


def _text(kind: str, shape: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(shape))
