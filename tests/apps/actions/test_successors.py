"""An old process that was paused beside its successor, on one database."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import Connection

from apps.actions.errors import ActionAborted, Superseded
from apps.actions.operations import Operations
from apps.actions.participant import Unit
from apps.actions.sql import SqlParticipant
from tests.apps.actions.bank import balances, bank, credit, debit, fill, sqlite
from tests.apps.actions.sites import banks, carry_out, until
from tests.rsm.postgres_kit import Server, postgres
from tests.rsm.test_replica import play


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgres(max_prepared_transactions=20) as running:
        yield running


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return sqlite(tmp_path / "shared.db", b=100)
    server: Server = request.getfixturevalue("server")
    return fill(server.new_schema()[0], b=100)


@pytest.mark.parametrize("step", ["prepare", "prepared"])
def test_when_a_preparation_ends_in_the_time_of_a_successor_then_it_is_undone(
    tmp_path: Path, url: str, step: str
) -> None:
    async def main() -> None:
        async with banks(tmp_path, names="a", offers=False) as made:
            made.urls["b"] = url
            first = await made.start("b")
            old = made.participants["b"]
            came = old.hold(step)
            half = asyncio.ensure_future(
                carry_out(made.managers["a"].action("half"), a=debit("a", 1), b=credit("b", 1))
            )
            await came.wait()
            try:
                await made.start("b", made.replicas[2])
                with pytest.raises(ActionAborted, match="b was registered anew"):
                    await half
                with pytest.raises(Superseded):
                    await first.ended()
                old.release(step)
                await until(lambda: ("aborted", "half") in old.calls)
                assert not (await old.recover()).prepared
                await carry_out(made.managers["a"].action("next"), b=credit("b", 5))
                await made.managers["a"].finished("next")
            finally:
                await first.__aexit__()
        assert balances(url) == {"b": 105}

    play(main())


@pytest.mark.parametrize("step", ["commit", "committed", "abort", "aborted"])
def test_when_the_end_of_a_unit_comes_in_the_time_of_a_successor_then_it_is_as_it_was_decided(
    tmp_path: Path, url: str, step: str
) -> None:
    is_commit = step.startswith("commit")

    async def main() -> None:
        async with banks(tmp_path, names="a", offers=False) as made:
            made.urls["b"] = url
            first = await made.start("b")
            old, manager = made.participants["b"], made.managers["a"]
            came = old.hold(step)
            action = manager.action("old")
            with suppress(ActionAborted):
                await carry_out(action, a=debit("a", 1 if is_commit else 1000), b=credit("b", 1))
            await came.wait()
            try:
                await made.start("b", made.replicas[2])
                if is_commit:
                    await action.finished()  # by the successor; the mark may be forgotten from here on
                    await made.participants["b"].forget((await old.recover()).applied)
                await carry_out(manager.action("new"), b=credit("b", 10))
                old.release(step)
                await until(lambda: not first._at_work)
                await carry_out(manager.action("newer"), b=credit("b", 100))
                await manager.finished("newer")
            finally:
                await first.__aexit__()
            assert not (await made.participants["b"].recover()).prepared
        assert balances(url) == {"b": 211 if is_commit else 210}

    play(main())


def test_when_a_process_was_killed_behind_such_a_preparation_then_its_successor_finds_it(
    tmp_path: Path, server: Server
) -> None:
    async def main() -> None:
        async with banks(tmp_path, names="a", offers=False) as made:
            made.urls["b"] = fill(server.new_schema()[0], b=100)
            second = await made.start("b")
            killed = SqlParticipant(made.urls["b"], bank)
            await killed.open()
            await killed.prepare(Unit("half@1", second._chain), [credit("b", 1).at("b")])
            await killed.close()
            with pytest.raises(ActionAborted, match="lock timeout"):
                await carry_out(made.managers["a"].action(), b=credit("b", 5))
            await until(lambda: ("aborted", "half") in made.participants["b"].calls)
            await carry_out(made.managers["a"].action(), b=credit("b", 5))
            await second.finished((await second.ledger.actions())[-1].id)
            assert balances(made.urls["b"]) == {"b": 105}

    play(main())


def test_when_a_process_is_paused_within_a_transaction_then_the_server_ends_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.actions.sql.IDLE_MS", 200)
    url = fill(server.new_schema()[0], b=100)
    operations, came, goes_on = Operations(), threading.Event(), threading.Event()

    @operations.operation(keys=())
    def pause(connection: Connection) -> None:
        credit.function(connection, "b", 1)
        came.set()
        goes_on.wait()

    async def main() -> None:
        old, new = SqlParticipant(url, operations), SqlParticipant(url, bank, lock_ms=20_000)
        await old.open()
        await new.open()
        try:
            paused = asyncio.ensure_future(old.prepare(Unit("old", 1), [pause().at("b")]))
            await asyncio.to_thread(came.wait)
            await new.prepare(Unit("new", 1), [credit("b", 10).at("b")])
            await new.commit(Unit("new", 1), [])
            goes_on.set()
            with pytest.raises(Exception, match=r"idle-in-transaction|closed"):
                await paused
            assert not (await new.recover()).prepared
        finally:
            goes_on.set()
            await old.close()
            await new.close()
        assert balances(url) == {"b": 110}

    play(main())
