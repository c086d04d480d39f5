"""Who owes a reply dies with it: whoever holds the handler lock then answers the repetition."""

import asyncio
from typing import Any

import pytest

from rsm import envelope
from rsm.config import HANDLER
from rsm.errors import OutcomeUnknown
from rsm.replica import Replica
from tests.rsm.machines import Counter
from tests.rsm.test_client import client_of
from tests.rsm.test_replica import crash, group_of, play
from tests.rsm.test_replica_lives import group_in

SECONDS = 10


def holder_of(replicas: list[Replica[Any]]) -> Replica[Any]:
    holder = group_in(replicas[0]).handler(HANDLER)
    return next(replica for replica in replicas if replica.member.site == holder)


def dies_instead_of_answering(replica: Replica[Any], monkeypatch: pytest.MonkeyPatch) -> "asyncio.Task[None]":
    """It executes what comes next, and is gone."""
    owed = asyncio.Event()

    async def die() -> None:
        await owed.wait()
        await crash(replica)

    monkeypatch.setattr(replica, "_answer", lambda delivery, replies: owed.set())
    return asyncio.ensure_future(die())


@pytest.mark.parametrize("before", [0, 1], ids=["opens a session", "executes a command"])
def test_when_a_replica_dies_before_it_says_what_it_did_then_the_client_hears_it_from_another(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call of a client opens its session. What was executed is not executed again."""

    async def main() -> None:
        async with group_of(Counter) as replicas, client_of(replicas) as counter:
            for number in range(before):
                assert await counter.add(1) == number + 1
            dying = dies_instead_of_answering(holder_of(replicas), monkeypatch)
            async with asyncio.timeout(SECONDS):
                assert await counter.add(1) == before + 1
                await dying

    play(main())


def test_when_a_refusal_is_lost_with_its_replica_then_the_client_hears_of_it_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its session has ended: what became of a call that was sent twice, nobody can tell."""

    async def main() -> None:
        async with group_of(Counter) as replicas:
            client = client_of(replicas)
            async with client as counter:
                await counter.add(1)
                await replicas[0]._calls.send(envelope.encode(envelope.Close(client._calls._session)))
                dying = dies_instead_of_answering(holder_of(replicas), monkeypatch)
                async with asyncio.timeout(SECONDS):
                    with pytest.raises(OutcomeUnknown, match="the session ended"):
                        await counter.add(1)
                    await dying
                    assert await counter.add(1) == 2

    play(main())
