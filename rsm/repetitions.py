"""What a request is answered that somebody has delivered, and whose reply has not come to its caller.

The replica that owed the reply may have died with it. Who holds the handler lock now was told of the request
too, or has it as part of a state.
"""

import asyncio
from typing import Any, Protocol

import msgspec

from rsm.envelope import REFUSED, Language, Open
from rsm.errors import Refusal
from rsm.executor import Executor
from rsm.sessions import Answer


class Host(Protocol):
    """What a replica must have to answer for."""

    @property
    def executor(self) -> Executor: ...

    @property
    def is_serving(self) -> bool: ...

    def caught_up(self) -> "asyncio.Future[None]": ...

    async def read(self, query: msgspec.Struct) -> Answer: ...


async def answer_again(message: bytes, host: Host, language: Language) -> Answer | None:
    """What was executed has its reply in the session; what has none there, when all that is final by now is
    executed here too, was refused. A query is read once more: where in the order it was is not known here,
    and this replica may be far behind that."""
    read: Any = language.decode(message)
    if type(read) is language.ask:
        return await host.read(read.query)
    answer = _kept(read, host)
    if answer is None:
        await host.caught_up()
        answer = _kept(read, host) or _refusal(read, host)
    return answer


def _kept(read: Any, host: Host) -> Answer | None:
    session, number = getattr(read, "session", 0), getattr(read, "number", 0)
    return host.executor.sessions.reply_to(session, number) if number and host.is_serving else None


def _refusal(read: Any, host: Host) -> Answer | None:
    """Which session was opened for whom is not known any more: who asked for one asks for another."""
    executor = host.executor
    if not host.is_serving:
        return None
    if isinstance(read, Open):
        return Answer(executor.applied, REFUSED[Refusal.NOT_READY])
    if getattr(read, "number", 0) and not executor.sessions.has(read.session):
        return Answer(executor.applied, REFUSED[Refusal.SESSION_UNKNOWN])
    return None
