"""A demo's supervisor, as its gateway asks it: which processes there are, and to pause, kill or restart one.

The supervisor listens at a Unix socket that only its own user can open. A question and its answer are a line
of JSON each::

    {"order": "kill", "member": "replica 2"}
    {"members": [{"name": "replica 2", "address": "127.0.0.1:7401", "pid": 17, "state": "down"}, …], …}
"""

import asyncio
from pathlib import Path
from typing import Final, Literal

import msgspec
from typing_extensions import TypedDict

from api.problems import Problem

ANSWER_SECONDS: Final = 2.0
LINE_BYTES_MAX: Final = 1 << 16

Order = Literal["pause", "resume", "kill", "restart"]
State = Literal["starting", "running", "paused", "stopping", "down"]


class DemoMemberShape(TypedDict):
    """``pid`` is null while it is down."""

    name: str
    address: str
    pid: int | None
    state: State


class DemoShape(TypedDict):
    """``restart_s``: what is killed comes back after so many seconds; null: it stays down."""

    members: list[DemoMemberShape]
    restart_s: float | None


class Question(msgspec.Struct, frozen=True):
    order: Order | None = None
    member: str = ""


class Refusal(msgspec.Struct, frozen=True):
    """``code`` is that of a problem."""

    code: str
    words: str


class Answer(msgspec.Struct, frozen=True):
    demo: DemoShape | None = None
    refusal: Refusal | None = None


class Supervisor:
    """Whoever started this gateway."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def state(self) -> DemoShape:
        return await self._ask(Question())

    async def order(self, order: Order, member: str) -> DemoShape:
        """Begins it; a process that is to come back needs its time."""
        return await self._ask(Question(order, member))

    async def _ask(self, question: Question) -> DemoShape:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await self._exchange(msgspec.json.encode(question))
        except (OSError, TimeoutError, ValueError, msgspec.MsgspecError) as error:
            raise Problem("no_supervisor", f"the demo's supervisor does not answer: {error}") from None
        if answer.refusal is not None:
            raise Problem(answer.refusal.code, answer.refusal.words)
        assert answer.demo is not None
        return answer.demo

    async def _exchange(self, question: bytes) -> Answer:
        reader, writer = await asyncio.open_unix_connection(self._path, limit=LINE_BYTES_MAX)
        try:
            writer.write(question + b"\n")
            return msgspec.json.decode(await reader.readline(), type=Answer)
        finally:
            writer.close()
