"""Named locks: one holder in the group, and a token that tells an old one."""

import asyncio

import pytest

from ordering.errors import LockError
from tests.rsm.machines import Counter
from tests.rsm.test_replica import group_of, play


def test_when_replicas_want_one_lock_then_they_have_it_one_after_the_other() -> None:
    async def main() -> None:
        inside: list[int] = []
        tokens: list[int] = []
        async with group_of(Counter) as replicas:

            async def work(number: int) -> None:
                async with replicas[number % 3].lock("job") as grant:
                    assert not inside
                    inside.append(number)
                    tokens.append(grant.fencing_token)
                    await replicas[number % 3].proxy.add(1)
                    assert not grant.is_lost
                    inside.remove(number)

            await asyncio.gather(*(work(number) for number in range(9)))
            assert tokens == sorted(set(tokens))
            assert len(tokens) == 9

    play(main())


def test_when_a_lease_ends_then_the_holder_is_told_and_another_gets_the_lock() -> None:
    async def main() -> None:
        async with group_of(Counter) as (one, two, _), one.lock("job", lease_ms=50) as first:
            async with two.lock("job") as second:
                assert second.fencing_token > first.fencing_token
            await first.lost
            assert first.is_lost

    play(main())


def test_when_the_holder_is_removed_from_the_group_then_another_gets_the_lock() -> None:
    async def main() -> None:
        async with group_of(Counter, 5, ring={"remove_ms": 600}) as replicas:
            holding = replicas[4].lock("job")
            first = await holding.__aenter__()
            await replicas[4].stop()
            async with replicas[0].lock("job") as second:
                assert second.fencing_token > first.fencing_token
            await holding.__aexit__(None, None, None)

    play(main())


def test_when_a_replica_stops_then_who_waits_for_its_lock_is_told() -> None:
    async def main() -> None:
        async with group_of(Counter) as (one, two, _), one.lock("job"):

            async def wait() -> None:
                async with two.lock("job"):
                    pass

            waiting = asyncio.ensure_future(wait())
            await two.proxy.add(1)
            await two.stop()
            with pytest.raises(LockError, match="lost its place"):
                await waiting
            with pytest.raises(LockError):
                await wait()

    play(main())


def test_when_a_name_is_no_name_then_it_is_refused_at_once() -> None:
    async def main() -> None:
        async with group_of(Counter) as (one, *_):
            with pytest.raises(LockError, match="name"):
                async with one.lock(""):
                    pass
            async with one.lock("job"):
                pass

    play(main())
