"""Feeds for programs without an event loop."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rsm.client import BlockingClient, ClientConfig
from rsm.errors import Rejected, RsmError
from rsm.replica import Replica
from tests.rsm.test_links import Journal
from tests.rsm.test_replica import group_of, play


def until(condition: Callable[[], bool]) -> None:
    late = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < late
        time.sleep(0.01)


def blocking(replicas: list[Replica[Any]]) -> BlockingClient[Journal]:
    addresses = tuple(replica.address for replica in replicas)
    return BlockingClient(Journal, ClientConfig(group="tested", replicas=addresses, insecure=True))


def test_when_a_program_has_no_event_loop_then_it_follows_a_feed_all_the_same() -> None:
    def program(client: BlockingClient[Journal]) -> None:
        with pytest.raises(RsmError, match="not open yet"):
            client.follow(Journal.since, 0)
        with client as journal, client.follow(Journal.since, 0, limit=2) as feeds:
            for text in ("a", "b", "c"):
                journal.note(text)
            texts: list[str] = []
            for feed in feeds:
                texts += [text for _, text in feed.events]
                if len(texts) == 3:
                    journal.note("d")
                if len(texts) == 4:
                    break
            assert texts == ["a", "b", "c", "d"]
            feeds.close()
            assert list(feeds) == []
            assert client._client._link._reads == {}
            journal.forget()
            forgotten = client.follow(Journal.since, 0)
            with pytest.raises(Rejected, match="compacted"):
                next(forgotten)
            assert list(forgotten) == []

    async def main() -> None:
        async with group_of(Journal) as replicas:
            await asyncio.to_thread(program, blocking(replicas))

    play(main())


def test_when_a_blocking_feed_or_its_client_is_closed_by_another_thread_then_who_waits_is_told() -> None:
    def program(client: BlockingClient[Journal]) -> None:
        with ThreadPoolExecutor(2) as pool:
            with client as journal:
                closed, left = client.follow(Journal.since, 0), client.follow(Journal.since, 0)
                ends, fails = pool.submit(next, closed, None), pool.submit(next, left, None)
                until(lambda: len(client._client._link._reads) == 2)
                closed.close()
                assert ends.result(10) is None
                assert journal.count() == 0
            with pytest.raises(RsmError, match="was closed"):
                fails.result(10)
            left.close()

    async def main() -> None:
        async with group_of(Journal) as replicas:
            await asyncio.to_thread(program, blocking(replicas))

    play(main())


@pytest.mark.parametrize("before", [False, True], ids=["while it goes on", "after it has ended"])
def test_when_a_wait_for_a_blocking_feed_is_interrupted_then_the_page_comes_next(before: bool) -> None:
    """``before``: the page comes before it is asked for again."""

    def program(client: BlockingClient[Journal]) -> None:
        with client as journal, client.follow(Journal.since, 0) as feeds:
            interrupted = asyncio.run_coroutine_threadsafe(feeds._arrived(), client._loop)
            with pytest.raises(TimeoutError):
                interrupted.result(0.05)
            journal.note("a")
            if before:
                interrupted.result(10)
            assert [text for _, text in next(feeds).events] == ["a"]
            journal.note("b")
            assert [text for _, text in next(feeds).events] == ["b"]

    async def main() -> None:
        async with group_of(Journal) as replicas:
            await asyncio.to_thread(program, blocking(replicas))

    play(main())
