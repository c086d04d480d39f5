"""How a demo's gateway reaches its supervisor: a Unix socket that only this user can open; ``api.control``
is the other side."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from api.control import LINE_BYTES_MAX, Answer, DemoShape, Order, Question, Refusal
from cli.crew import RESTART_SECONDS, Crew

QUESTION_SECONDS: Final = 5.0


@asynccontextmanager
async def controlled(crew: Crew, *, restart: bool) -> AsyncIterator[None]:
    """The crew's gateway is told where to ask. The folder's name is random, and nobody else may look into
    it; a path in the demo's own directory might be longer than a socket's may be."""
    with tempfile.TemporaryDirectory(prefix="rsm-demo-") as folder:
        path = Path(folder) / "control"

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                async with asyncio.timeout(QUESTION_SECONDS):
                    writer.write(msgspec.json.encode(_answer(crew, await reader.readline(), restart=restart)))
                    await writer.drain()
            except (OSError, TimeoutError, ValueError):
                pass  # it is told nothing, and asks again
            finally:
                writer.close()

        server = await asyncio.start_unix_server(answer, path, limit=LINE_BYTES_MAX)
        path.chmod(0o600)
        crew.control = path
        try:
            yield
        finally:
            crew.control = None
            server.close()


def _answer(crew: Crew, line: bytes, *, restart: bool) -> Answer:
    try:
        question = msgspec.json.decode(line, type=Question)
    except msgspec.MsgspecError as error:
        return Answer(refusal=Refusal("bad_request", str(error)))
    if question.order is not None:
        if question.member not in crew.replicas:
            known = ", ".join(crew.replicas)
            return Answer(refusal=Refusal("member_not_found", f"{question.member!r}: there are {known}"))
        words = _carry_out(crew, question.order, question.member)
        if words:
            return Answer(refusal=Refusal("order_refused", words))
    return Answer(demo=_shape(crew, restart=restart))


def _carry_out(crew: Crew, order: Order, name: str) -> str:
    """Why not; empty if it is done, or has begun."""
    state = crew.state_of(name)
    match order:
        case "pause" if state == "running":
            crew.pause(name)
        case "resume" if state == "paused":
            crew.resume(name)
        case "kill" if state != "down":
            crew.strike(name)
        case "restart" if state not in {"starting", "stopping"}:
            crew.restart(name)
        case _:
            return f"{name} is {state}"
    return ""


def _shape(crew: Crew, *, restart: bool) -> DemoShape:
    return {
        "members": [
            {
                "name": name,
                "address": address,
                "pid": None if crew.state_of(name) == "down" else crew.running[name].pid,
                "state": crew.state_of(name),
            }
            for name, address in crew.addresses().items()
        ],
        "restart_s": RESTART_SECONDS if restart else None,
    }
