"""A database's part: what it promises, and that it keeps it whenever its process dies."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine
from sqlalchemy import text as sql

from apps.actions.errors import NotPrepared, OperationDefect, OperationFailed, ParticipantError, ResultChanged
from apps.actions.operations import Operations, seen_of
from apps.actions.participant import Prepared, Recovered, Unit
from apps.actions.sql import TOGETHER_MAX, SqlParticipant
from apps.actions.types import Operation
from rsm.errors import Rejected
from tests.apps.actions.bank import (
    balances,
    bank,
    credit,
    debit,
    fill,
    look,
    misspell,
    run,
    spoil,
    spoil_in_sql,
    sqlite,
    total,
)
from tests.apps.actions.sql_child import OPERATIONS, UNIT
from tests.rsm.postgres_kit import Server, postgres

ROOT = Path(__file__).resolve().parents[3]
OTHER = Unit("transfer", 7)  # the same name in another chain


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgres(max_prepared_transactions=20) as running:
        yield running


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Alice has 15, Bob 0."""
    if request.param == "sqlite":
        return sqlite(tmp_path / "bank.db", alice=15, bob=0)
    return in_postgres(request.getfixturevalue("server"))


def in_postgres(server: Server) -> str:
    return fill(server.new_schema()[0], alice=15, bob=0)


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[SqlParticipant]:
    participant = SqlParticipant(url, bank, **options)
    await participant.open()
    try:
        yield participant
    finally:
        await participant.close()


def play(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 60))


# -- what it promises ----------------------------------------------------------------------------


def test_when_operations_are_attempted_then_their_results_come_and_nothing_is_changed(url: str) -> None:
    async def main() -> None:
        async with opened(url) as participant:
            calls = [debit("alice", 10), credit("bob", 5), total()]
            for _ in range(3):
                results = await participant.attempt([call.at("a") for call in calls])
                assert [c.result(each) for c, each in zip(calls, results, strict=True)] == [5, 5, 10]
            assert await participant.recover() == Recovered()
        assert balances(url) == {"alice": 15, "bob": 0}

    play(main())


def test_when_a_unit_is_prepared_and_committed_then_it_is_visible_once_and_not_before(url: str) -> None:
    async def main() -> None:
        async with opened(url) as participant:
            for _ in range(2):
                await participant.prepare(UNIT, OPERATIONS)
            assert balances(url)["alice"] == 15
            assert await participant.recover() == Recovered((Prepared(UNIT, OPERATIONS),))
            for _ in range(2):
                await participant.commit(UNIT, OPERATIONS)
                assert balances(url)["alice"] == 5
                assert await participant.recover() == Recovered((), (UNIT,))
            await participant.forget([UNIT, OTHER])
            assert await participant.recover() == Recovered()
            with pytest.raises(NotPrepared, match="neither prepared nor applied"):
                await participant.commit(UNIT, OPERATIONS)

    play(main())


def test_when_a_unit_is_aborted_then_nothing_is_left_and_others_can_have_the_rows(url: str) -> None:
    async def main() -> None:
        async with opened(url) as participant:
            await participant.prepare(UNIT, OPERATIONS)
            for _ in range(2):
                await participant.abort(UNIT)
            assert await participant.recover() == Recovered()
            assert balances(url)["alice"] == 15
            run(url, "UPDATE accounts SET balance = 3 WHERE name = 'alice'")
            with pytest.raises(NotPrepared):
                await participant.commit(UNIT, OPERATIONS)

    play(main())


@pytest.mark.parametrize("chains", [(UNIT, OTHER), (OTHER, UNIT)])
def test_when_a_name_is_used_in_two_chains_then_each_goes_its_own_way(
    url: str, chains: tuple[Unit, Unit]
) -> None:
    first, second = chains

    async def main() -> None:
        async with opened(url) as participant:
            await participant.prepare(first, [debit("alice", 10).at("a")])
            await participant.prepare(second, [credit("bob", 1).at("a")])
            await participant.abort(second)
            assert [each.unit for each in (await participant.recover()).prepared] == [first]
            await participant.commit(first, [debit("alice", 10).at("a")])
            with pytest.raises(NotPrepared):
                await participant.commit(second, [credit("bob", 1).at("a")])
        assert balances(url) == {"alice": 5, "bob": 0}

    play(main())


def test_when_what_was_seen_has_changed_then_it_is_not_prepared(url: str) -> None:
    async def main() -> None:
        async with opened(url) as participant:
            (seen,) = await participant.attempt([debit("alice", 10).at("a")])
            operation = debit("alice", 10).at("a", seen_of(seen))
            run(url, "UPDATE accounts SET balance = 14 WHERE name = 'alice'")
            with pytest.raises(ResultChanged):
                await participant.prepare(UNIT, [operation])
            run(url, "UPDATE accounts SET balance = 15 WHERE name = 'alice'")
            await participant.prepare(UNIT, [operation])
            await participant.commit(UNIT, [operation])
        assert balances(url)["alice"] == 5

    play(main())


@pytest.mark.parametrize(
    ("operation", "kind", "words"),
    [
        (debit("alice", 16).at("a"), Rejected, "too little is there"),
        (credit("alice", 990).at("a"), OperationFailed, "(?i)credit: IntegrityError: .*check"),
        (misspell().at("a"), OperationFailed, "misspell: .*SELEKT"),
        (Operation("a", "fly", b"\x91\xa3fly"), OperationFailed, "fly: is no operation of this site"),
        (spoil().at("a"), OperationFailed, "must neither commit nor roll back"),
    ],
)
def test_when_an_operation_raises_then_it_is_said_and_nothing_is_changed_or_prepared(
    url: str, operation: Operation, kind: type[Exception], words: str
) -> None:
    async def main() -> None:
        async with opened(url) as participant:
            for work in (
                participant.attempt([credit("bob", 1).at("a"), operation]),
                participant.prepare(UNIT, [credit("bob", 1).at("a"), operation]),
            ):
                with pytest.raises(kind, match=words):
                    await work
            assert await participant.recover() == Recovered()
            await participant.prepare(UNIT, [credit("bob", 1).at("a")])  # nothing is held
        assert balances(url) == {"alice": 15, "bob": 0}

    play(main())


def test_when_an_operation_ends_the_transaction_in_sql_then_it_is_a_defect(url: str) -> None:
    async def main() -> None:
        async with opened(url) as participant:
            with pytest.raises(OperationDefect, match="has ended the transaction"):
                await participant.attempt([spoil_in_sql().at("a")])
            await participant.attempt([debit("alice", 1).at("a")])

    play(main())


def test_when_two_sites_share_a_database_then_the_second_does_not_take_the_intent_for_its_own(
    url: str,
) -> None:
    async def main() -> None:
        async with opened(url) as one, opened(url) as two:
            await one.prepare(UNIT, OPERATIONS)
            with pytest.raises(ParticipantError, match="give each site a database, or a schema"):
                await two.prepare(UNIT, [credit("bob", 1).at("b")])

    play(main())


def test_when_somebody_locks_the_database_then_a_preparation_fails_in_time_and_works_after(url: str) -> None:
    async def main() -> None:
        async with opened(url, lock_ms=50) as participant:
            async with opened(url) as other:
                held = asyncio.Event()
                release = asyncio.Event()
                loop = asyncio.get_running_loop()

                def hold() -> None:
                    seat = other._side.work
                    with seat.transaction(other._side.begin):
                        seat.say("UPDATE accounts SET balance = 14 WHERE name = 'alice'")
                        loop.call_soon_threadsafe(held.set)
                        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()

                holding = asyncio.ensure_future(other._side.work.run(hold))
                await held.wait()
                with pytest.raises(Exception, match=r"(?i)lock"):
                    await participant.prepare(UNIT, OPERATIONS)
                release.set()
                await holding
            await participant.prepare(UNIT, OPERATIONS)
            await participant.commit(UNIT, OPERATIONS)
        assert balances(url)["alice"] == 5

    play(main())


def test_when_the_database_cannot_be_opened_then_it_is_said_why(tmp_path: Path) -> None:
    for url, words in (
        (f"sqlite:///{tmp_path}/none/bank.db", "cannot be opened: unable to open database file"),
        ("sqlite://", "in memory keeps nothing"),
        ("mysql+pymysql://h/db", "use sqlite"),
        ("nonsense", "use sqlite"),
    ):

        async def main(url: str = url) -> None:
            async with opened(url):
                pass

        with pytest.raises(ParticipantError, match=words):
            play(main())


# -- SQLite --------------------------------------------------------------------------------------


def test_when_a_committed_operation_fails_then_it_is_told_and_can_be_tried_again(tmp_path: Path) -> None:
    url = sqlite(tmp_path / "bank.db", alice=15)

    async def main() -> None:
        async with opened(url) as participant:
            await participant.prepare(UNIT, OPERATIONS)
            run(url, "UPDATE accounts SET balance = 9")  # beside the actions
            with pytest.raises(Rejected, match="too little"):
                await participant.commit(UNIT, OPERATIONS)
            assert (await participant.recover()).prepared == (Prepared(UNIT, OPERATIONS),)
            run(url, "UPDATE accounts SET balance = 12")
            await participant.commit(UNIT, OPERATIONS)
        assert balances(url) == {"alice": 2}

    play(main())


def test_when_a_result_changed_behind_the_preparation_then_the_commit_is_done_and_that_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = sqlite(tmp_path / "bank.db", alice=15)

    async def main() -> None:
        async with opened(url) as participant:
            (seen,) = await participant.attempt([debit("alice", 10).at("a")])
            operations = [debit("alice", 10).at("a", seen_of(seen))]
            await participant.prepare(UNIT, operations)
            run(url, "UPDATE accounts SET balance = 20")
            await participant.commit(UNIT, operations)
        assert balances(url) == {"alice": 10}

    play(main())
    assert "beside the actions" in caplog.text


def test_when_the_disk_is_full_then_it_is_not_prepared_and_later_it_is(tmp_path: Path) -> None:
    url = sqlite(tmp_path / "bank.db", alice=15)

    async def main() -> None:
        async with opened(url) as participant:
            side = participant._side

            def limited(pages: int) -> None:
                side.work.say(f"PRAGMA max_page_count={pages}")

            await side.work.run(limited, 1)  # no less than it has
            large = [Operation("a", "credit", credit("alice", 1).arguments, ("x" * 100_000,))]
            with pytest.raises(Exception, match="full"):
                await participant.prepare(UNIT, large)
            assert await participant.recover() == Recovered()
            await side.work.run(limited, 1_000_000)
            await participant.prepare(UNIT, large)
            await participant.commit(UNIT, large)
        assert balances(url) == {"alice": 16}

    play(main())


def test_when_many_units_come_at_once_then_they_share_transactions_and_each_has_its_own_end(
    tmp_path: Path,
) -> None:
    url = sqlite(tmp_path / "bank.db", **{f"k{n}": n for n in range(40)})
    units = [(Unit(f"u{n}", 1), [debit(f"k{n}", 20).at("a")]) for n in range(40)]

    async def main() -> None:
        async with opened(url) as participant:
            seat = participant._side.work
            said: list[str] = []
            say = seat.say

            def note(statement: str) -> None:
                said.append(statement)
                say(statement)

            seat.say = note  # type: ignore[method-assign]
            ends = await asyncio.gather(
                *(participant.prepare(*each) for each in units), return_exceptions=True
            )
            assert [isinstance(end, Rejected) for end in ends] == [n < 20 for n in range(40)]
            assert said.count("COMMIT") < 5
            prepared = {each.unit for each in (await participant.recover()).prepared}
            assert prepared == {unit for unit, _ in units[20:]}
            ends = await asyncio.gather(
                *(participant.commit(*each) for each in units), return_exceptions=True
            )
            assert [isinstance(end, NotPrepared) for end in ends] == [n < 20 for n in range(40)]
            assert said.count("COMMIT") < 10
        assert balances(url) == {f"k{n}": n if n < 20 else n - 20 for n in range(40)}

    play(main())


def test_when_a_shared_transaction_is_lost_then_all_in_it_are_told(tmp_path: Path) -> None:
    url = sqlite(tmp_path / "bank.db", alice=15, bob=0)

    async def main() -> None:
        async with opened(url) as participant:
            seat = participant._side.work
            say = seat.say

            def fail(statement: str) -> None:
                if statement == "COMMIT":
                    raise OSError("the disk is gone")
                say(statement)

            seat.say = fail  # type: ignore[method-assign]
            units = [(UNIT, OPERATIONS), (OTHER, (credit("bob", 1).at("a"),))]
            ends = await asyncio.gather(
                *(participant.prepare(*each) for each in units), return_exceptions=True
            )
            assert [str(end) for end in ends] == ["the disk is gone"] * 2
            seat.say = say  # type: ignore[method-assign]
            assert await participant.recover() == Recovered()
            await asyncio.gather(*(participant.prepare(*each) for each in units))
            assert len((await participant.recover()).prepared) == 2

    play(main())


# -- PostgreSQL ----------------------------------------------------------------------------------


def test_when_the_server_keeps_no_prepared_transactions_then_the_remedy_is_named() -> None:
    async def main(url: str) -> None:
        async with opened(url):
            pass

    with postgres() as bare, pytest.raises(ParticipantError, match="ALTER SYSTEM SET max_prepared"):
        play(main(bare.uri))


def test_when_names_are_long_or_odd_then_units_are_told_apart(server: Server) -> None:
    url = in_postgres(server)
    units = [Unit("x" * 1000 + end, chain) for end in ("", "y") for chain in (0, 1)]
    units += [Unit("it's ünusual\n\\", 1), Unit("", 1)]

    async def main() -> None:
        async with opened(url) as participant:
            for unit in units:
                await participant.prepare(unit, [])
        async with opened(url) as participant:
            assert {each.unit for each in (await participant.recover()).prepared} == set(units)
            for unit in units[::2]:
                await participant.commit(unit, [])
            for unit in units[1::2]:
                await participant.abort(unit)
            assert set((await participant.recover()).applied) == set(units[::2])

    play(main())


def test_when_two_sites_are_on_one_server_then_each_finds_its_own(server: Server) -> None:
    urls = [in_postgres(server), in_postgres(server)]

    async def main() -> None:
        async with opened(urls[0]) as one, opened(urls[1]) as two:
            await one.prepare(UNIT, OPERATIONS)
            assert (await two.recover()).prepared == ()
            await two.prepare(UNIT, OPERATIONS)
            await two.commit(UNIT, OPERATIONS)
            await one.abort(UNIT)
        assert [balances(url)["alice"] for url in urls] == [15, 5]

    play(main())


def test_when_an_attempt_meets_what_is_prepared_then_it_sees_what_becomes_of_that(server: Server) -> None:
    url = in_postgres(server)

    async def main() -> None:
        async with opened(url, lock_ms=20_000) as participant:
            await participant.prepare(UNIT, OPERATIONS)
            attempting = asyncio.ensure_future(participant.attempt([debit("alice", 1).at("a")]))
            while not await waiting(url):
                assert not attempting.done()
            await participant.prepare(OTHER, [credit("bob", 1).at("a")])  # nothing else waits with it
            await participant.commit(UNIT, OPERATIONS)  # it is not behind the attempt
            (result,) = await attempting
            assert debit("alice", 1).result(result) == 4

    play(main())


async def waiting(url: str) -> bool:
    """Whether somebody waits for a lock."""

    def look() -> bool:
        engine = create_engine(url)
        with engine.connect() as connection:
            found = connection.scalar(
                sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
            )
        engine.dispose()
        return bool(found)

    return await asyncio.to_thread(look)


def test_when_connections_are_lost_then_calls_fail_and_the_next_ones_do_not(server: Server) -> None:
    url = in_postgres(server)

    async def main() -> None:
        async with opened(url) as participant:
            await participant.prepare(UNIT, OPERATIONS)
            await participant.abort(OTHER)
            await participant.attempt([look("bob").at("a")])  # all connections are there
            server.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                " AND backend_type = 'client backend'"
            )
            with pytest.raises(Exception, match=r"(?i)connection|terminat"):
                await participant.prepare(OTHER, [credit("bob", 1).at("a")])
            with pytest.raises(Exception, match=r"(?i)connection|terminat"):
                await participant.commit(UNIT, OPERATIONS)
            with pytest.raises(Exception, match=r"(?i)connection|terminat"):
                await participant.attempt([look("bob").at("a")])
            await participant.attempt([look("bob").at("a")])
            await participant.prepare(OTHER, [credit("bob", 1).at("a")])
            await participant.commit(UNIT, OPERATIONS)
            await participant.commit(OTHER, [])
        assert balances(url) == {"alice": 5, "bob": 1}

    play(main())


def test_when_the_answer_to_a_preparation_is_lost_then_it_is_undone(server: Server) -> None:
    url = in_postgres(server)

    async def main() -> None:
        async with opened(url) as participant:
            seat = participant._side.work
            say = seat.say

            def lose(statement: str) -> None:
                say(statement)
                if statement.startswith("PREPARE TRANSACTION"):
                    seat.say = say  # type: ignore[method-assign]
                    raise ConnectionError("no answer")

            seat.say = lose  # type: ignore[method-assign]
            with pytest.raises(ConnectionError):
                await participant.prepare(UNIT, OPERATIONS)
            assert await participant.recover() == Recovered()
            run(url, "UPDATE accounts SET balance = 3 WHERE name = 'alice'")  # nothing is held

    play(main())


# -- many in one transaction ---------------------------------------------------------------------


@asynccontextmanager
async def held_up(participant: SqlParticipant) -> AsyncIterator[None]:
    """Its thread does nothing until this is left; what comes meanwhile shares a transaction."""
    gate = threading.Event()
    blocked = asyncio.ensure_future(participant._side.work.run(gate.wait))
    await asyncio.sleep(0)
    try:
        yield
    finally:
        gate.set()
        await blocked


async def begun(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    return task


def test_when_many_before_it_were_cancelled_then_what_is_prepared_is_there(tmp_path: Path) -> None:
    url = sqlite(tmp_path / "bank.db", alice=15)

    async def main() -> None:
        async with opened(url) as participant:
            async with held_up(participant):
                others = [await begun(participant.abort(Unit(str(n), 1))) for n in range(TOGETHER_MAX + 1)]
                for each in others:
                    each.cancel()
                await asyncio.wait(others)
                preparing = await begun(participant.prepare(UNIT, OPERATIONS))
            await preparing
            assert (await participant.recover()).prepared == (Prepared(UNIT, OPERATIONS),)

    play(main())


def test_when_an_operation_raises_no_exception_then_it_alone_has_failed(tmp_path: Path) -> None:
    url = sqlite(tmp_path / "bank.db", alice=15)
    odd = Operations()

    @odd.operation(keys=("how",))
    def leave(connection: Connection, how: str) -> None:
        if how == "oddly":
            raise asyncio.CancelledError

    async def main() -> None:
        participant = SqlParticipant(url, odd)
        await participant.open()
        async with held_up(participant):
            one = await begun(participant.prepare(UNIT, [leave("oddly").at("a")]))
            two = await begun(participant.prepare(OTHER, [leave("well").at("a")]))
        with pytest.raises(OperationDefect, match="has raised CancelledError"):
            await one
        await two
        assert [each.unit for each in (await participant.recover()).prepared] == [OTHER]
        await participant.close()

    play(main())


# -- crashes -------------------------------------------------------------------------------------

NOTHING, PREPARED, APPLIED = "nothing", "prepared", "applied"
SQLITE_POINTS = [
    ("prepare", "before", "BEGIN", NOTHING),
    ("prepare", "behind", "SAVEPOINT", NOTHING),
    ("prepare", "behind", "ROLLBACK TO", NOTHING),
    ("prepare", "before", "COMMIT", NOTHING),
    ("prepare", "behind", "COMMIT", PREPARED),
    ("commit", "before", "BEGIN", PREPARED),
    ("commit", "before", "COMMIT", PREPARED),
    ("commit", "behind", "COMMIT", APPLIED),
    ("abort", "before", "COMMIT", PREPARED),
    ("abort", "behind", "COMMIT", NOTHING),
]
POSTGRES_POINTS = [
    ("prepare", "before", "COMMIT", NOTHING),
    ("prepare", "behind", "COMMIT", NOTHING),
    ("prepare", "before", "PREPARE TRANSACTION", NOTHING),
    ("prepare", "behind", "PREPARE TRANSACTION", PREPARED),
    ("commit", "before", "COMMIT PREPARED", PREPARED),
    ("commit", "behind", "COMMIT PREPARED", APPLIED),
    ("commit", "before", "COMMIT", PREPARED),
    ("commit", "behind", "COMMIT", APPLIED),
    ("abort", "before", "ROLLBACK PREPARED", PREPARED),
    ("abort", "behind", "ROLLBACK PREPARED", NOTHING),
]


@pytest.mark.parametrize(("step", "side", "words", "left"), SQLITE_POINTS)
def test_when_a_process_with_sqlite_is_killed_then_what_was_promised_is_there(
    tmp_path: Path, step: str, side: str, words: str, left: str
) -> None:
    killed(sqlite(tmp_path / "bank.db", alice=15, bob=0), step, side, words, left)


@pytest.mark.parametrize(("step", "side", "words", "left"), POSTGRES_POINTS)
def test_when_a_process_with_postgres_is_killed_then_what_was_promised_is_there(
    server: Server, step: str, side: str, words: str, left: str
) -> None:
    killed(in_postgres(server), step, side, words, left)


def killed(url: str, step: str, side: str, words: str, left: str) -> None:
    command = [sys.executable, "-m", "tests.apps.actions.sql_child", url, step, side, words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    play(found(url, left))


async def found(url: str, left: str) -> None:
    """``left`` is what is found, and the unit can be finished either way."""
    assert balances(url)["alice"] == (5 if left == APPLIED else 15)
    async with opened(url) as participant:
        recovered = await participant.recover()
        assert recovered.prepared == ((Prepared(UNIT, OPERATIONS),) if left == PREPARED else ())
        assert recovered.applied == ((UNIT,) if left == APPLIED else ())
        if left == NOTHING:
            with pytest.raises(NotPrepared):
                await participant.commit(UNIT, OPERATIONS)
            await participant.abort(UNIT)
            await participant.prepare(UNIT, OPERATIONS)
        await participant.commit(UNIT, OPERATIONS)
    assert balances(url)["alice"] == 5
