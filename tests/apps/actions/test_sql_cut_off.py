"""A connection to PostgreSQL that breaks while the server prepares: it goes on, and nobody hears of it."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine
from sqlalchemy import text as sql
from sqlalchemy.exc import OperationalError

from apps.actions.operations import Operations
from apps.actions.participant import Recovered, Unit
from apps.actions.sql import SqlParticipant
from tests.apps.actions.bank import run
from tests.rsm.postgres_kit import Server, postgres

UNIT = Unit("slow@1", 1)
LOCK_MS = 100  # less than a preparation takes
slowly = Operations()


@slowly.operation
def dawdle(connection: Connection) -> None:
    connection.execute(sql("INSERT INTO slow VALUES (1)"))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgres(max_prepared_transactions=20) as running:
        yield running


@pytest.fixture
def url(server: Server) -> str:
    """PREPARE TRANSACTION takes a while there."""
    made, _ = server.new_schema()
    run(
        made,
        "CREATE TABLE slow (n INT)",
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_sleep(1); RETURN NULL; END'",
        "CREATE CONSTRAINT TRIGGER dawdles AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION dawdle()",
    )
    return made


def count(url: str, what: str) -> int:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = connection.scalar(sql(f"SELECT count(*) FROM {what}"))
    engine.dispose()
    return int(found)


@asynccontextmanager
async def cut_off(url: str) -> AsyncIterator[SqlParticipant]:
    """Its connection is lost within PREPARE TRANSACTION, which the server is still about."""
    participant = SqlParticipant(url, slowly, lock_ms=LOCK_MS)
    await participant.open()
    preparing = asyncio.ensure_future(participant.prepare(UNIT, [dawdle().at("a")]))
    active = "pg_stat_activity WHERE state = 'active' AND query LIKE 'PREPARE TRANSACTION%'"
    while not await asyncio.to_thread(count, url, active):
        assert not preparing.done()
    connection: Any = participant._side.work.connection.connection.driver_connection
    with socket.socket(fileno=os.dup(connection.fileno())) as other:
        other.shutdown(socket.SHUT_RDWR)
    with pytest.raises(OperationalError, match="PREPARE TRANSACTION"):
        await preparing
    assert await asyncio.to_thread(count, url, active)
    try:
        yield participant
    finally:
        await participant.close()


def play(main: Any) -> None:
    asyncio.run(asyncio.wait_for(main, 60))


def test_when_a_connection_breaks_while_the_server_prepares_then_the_abort_waits_for_that(url: str) -> None:
    async def main() -> None:
        async with cut_off(url) as participant:
            with pytest.raises(OperationalError, match="lock timeout"):
                await participant.abort(UNIT)
            while True:
                try:
                    await participant.abort(UNIT)
                    break
                except OperationalError:
                    assert count(url, "rsm_intents") == 1
            assert count(url, "pg_prepared_xacts") == 0
            assert await participant.recover() == Recovered()

    play(main())


def test_when_a_process_is_back_while_the_server_prepares_then_it_finds_that(url: str) -> None:
    async def main() -> None:
        async with cut_off(url):
            pass
        participant = SqlParticipant(url, slowly, lock_ms=LOCK_MS)
        await participant.open()
        with pytest.raises(OperationalError, match="lock timeout"):
            await participant.recover()
        found = Recovered()
        while not found.prepared:
            try:
                found = await participant.recover()
            except OperationalError:
                assert count(url, "rsm_intents") == 1
        assert [each.unit for each in found.prepared] == [UNIT]
        await participant.abort(UNIT)
        assert count(url, "pg_prepared_xacts") == 0
        await participant.close()

    play(main())
