"""Calls and answers that fit no datagram, whatever becomes of the replica that has them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from ordering.errors import MessageTooLarge
from ordering.naming import group_id
from ordering.packets import NonMemberReply, Packet
from ordering.transports.bulk_tcp import BulkLimits
from rsm import envelope
from rsm.client import Client, ClientConfig
from rsm.envelope import Announce, Checkpoint, Language
from rsm.errors import CommandFailed, OutcomeUnknown, Refusal, Refused
from rsm.far_calls import ANSWERS_MAX
from rsm.methods import Catalogue
from rsm.proxy import Proxy
from rsm.sessions import SessionLimits
from rsm.transfer import CallWanted, Peer
from tests.cli.test_replica import first_line, free_addresses, rsm, start
from tests.rsm.machines import Echo, Hoard
from tests.rsm.test_client import client_of, sealed_group
from tests.rsm.test_replica import group_of, play

LARGE = 200_000
NETWORK = {"packet_bytes": 1_400}  # as between machines
MOST = SessionLimits().reply_bytes_max


def test_when_a_result_fits_no_datagram_then_a_client_gets_it_all_the_same() -> None:
    async def main() -> None:
        async with group_of(Hoard) as replicas, client_of(replicas, Hoard) as hoard:
            for _ in range(4):
                await hoard.keep(b"x" * 50_000)
            assert await hoard.take() == b"x" * LARGE
            assert await hoard.look() == b"x" * LARGE
            assert await hoard.count() == 5
            assert await hoard.make(MOST - 100) == bytes(MOST - 100)
            assert await hoard.imagine(MOST - 100) == bytes(MOST - 100)

    play(main())


def test_when_a_result_is_more_than_sessions_keep_then_it_is_said_and_the_group_goes_on() -> None:
    async def main() -> None:
        async with group_of(Hoard) as replicas, client_of(replicas, Hoard) as hoard:
            for proxy in (hoard, replicas[0].proxy):
                with pytest.raises(CommandFailed, match="ResultTooLarge: it was executed"):
                    await proxy.make(MOST)
            with pytest.raises(CommandFailed, match="ResultTooLarge"):
                await hoard.imagine(MOST)
            assert await hoard.count() == 2
            assert len({replica.executor.group.digest for replica in replicas}) == 1

    play(main())


@pytest.mark.parametrize("ring", [{}, NETWORK])
@pytest.mark.parametrize("size", [1_200, 1_500, 60_000, 70_000, (1 << 20) - 100])
def test_when_a_call_fits_no_datagram_then_it_is_executed_once_all_the_same(
    ring: dict[str, Any], size: int
) -> None:
    async def main() -> None:
        async with group_of(Hoard, ring=ring) as replicas, client_of(replicas, Hoard, ring=ring) as hoard:
            assert await hoard.measure(b"x" * size) == size
            assert await hoard.length(b"x" * size) == size
            assert await asyncio.gather(*(hoard.measure(b"y" * n) for n in (size, 1, size, 2))) == [
                *(size, 1, size, 2)
            ]
            assert await hoard.count() == 5

    play(main())


def test_when_a_call_is_more_than_is_allowed_then_it_is_refused_before_anything_is_sent() -> None:
    async def main() -> None:
        async with group_of(Echo) as replicas, client_of(replicas, Echo) as echo:
            with pytest.raises(MessageTooLarge, match="message_bytes_max"):
                await echo.apply(b"x" * (2 << 20))
            assert await echo.apply(b"x" * 1_000_000) == b"x" * 1_000_000

    play(main())


@pytest.mark.parametrize("size", [100_000, 2_000_000])
def test_when_a_call_is_more_than_the_replicas_allow_then_they_refuse_it_at_once(size: int) -> None:
    """The client's own limit is above theirs; the larger call is more than they read of a question."""

    async def main() -> None:
        settings = {"message_bytes_max": 80_000}
        async with (
            group_of(Hoard, **settings) as replicas,
            client_of(replicas, Hoard, message_bytes_max=4_000_000, ring={"call_ms": 5_000}) as hoard,
        ):
            for call in (hoard.measure, hoard.length):
                with pytest.raises(
                    Refused, match="message_bytes_max of this replica allows 80000"
                ) as refusal:
                    await call(bytes(size))
                assert refusal.value.refusal is Refusal.TOO_LARGE
            assert await hoard.measure(bytes(70_000)) == 70_000
            assert await hoard.count() == 1

    play(main())


def test_when_a_replica_refuses_what_another_may_have_taken_then_the_outcome_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Replicas with different limits: the first is lost on the way, the second does not take so much."""

    async def main() -> None:
        async with group_of(Hoard) as replicas, (client := client_of(replicas, Hoard)) as hoard:
            assert await hoard.measure(b"x") == 1
            asked: list[str] = []
            ask = client._far._ask

            async def lost_once(address: str, *arguments: Any) -> Any:
                asked.append(address)
                answer = await ask(address, *arguments)
                for replica in replicas:
                    replica._desk.bytes_max = 80_000
                return answer if len(asked) > 1 else None

            monkeypatch.setattr(client._far, "_ask", lost_once)
            with pytest.raises(OutcomeUnknown, match="may have been executed"):
                await hoard.measure(bytes(LARGE))
            assert len(asked) == 2
            assert await hoard.count() == 2

    play(main())


def test_when_other_calls_are_answered_meanwhile_then_the_answer_is_kept_until_it_is_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is acknowledged is forgotten; so it must not be acknowledged before it is here."""

    async def main() -> None:
        async with group_of(Hoard) as replicas:
            client = client_of(replicas, Hoard)
            hoard = await client.__aenter__()
            fetches: list[Callable[[], None]] = []
            asked = asyncio.Event()
            send = client._far.send

            def later(*arguments: Any) -> None:
                fetches.append(lambda: send(*arguments))
                asked.set()

            monkeypatch.setattr(client._far, "send", later)
            large = asyncio.ensure_future(hoard.make(LARGE))
            await asked.wait()
            for _ in range(50):
                await hoard.make(1)
            fetches[0]()
            assert await large == bytes(LARGE)
            assert await hoard.make(1) == b"\0"  # acknowledges all before it
            sessions = replicas[0].executor.sessions.dump()
            assert max(session.reply_bytes for session in sessions) < 1000
            client.close()

    play(main())


@contextlib.asynccontextmanager
async def processes(directory: Path) -> AsyncIterator[tuple[Client[Hoard], dict[int, Any]]]:
    """Three durable replicas as processes, by site, and a client of theirs."""
    addresses = free_addresses(3)
    made = await asyncio.to_thread(rsm, "init", str(directory), "--sites", ",".join(addresses))
    assert made.returncode == 0, made.stderr
    machine = "tests.rsm.machines:Hoard"
    running = [start(directory / f"site-{number}.toml", machine) for number in (1, 2, 3)]
    try:
        lines = [await asyncio.to_thread(first_line, process) for process in running]
        sites = {
            int(line.split(" site ")[1].split(",")[0], 16): p for line, p in zip(lines, running, strict=True)
        }
        config = ClientConfig(group="demo", replicas=tuple(addresses), key_file=directory / "group.key")
        client = Client(Hoard, config)
        await client.open()
        yield client, sites
        client.close()
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.mark.parametrize("kind", ["command", "query"])
def test_when_the_replica_that_answered_is_killed_before_the_fetch_then_another_gives_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async def main() -> None:
        async with processes(tmp_path / "g") as (client, running):
            await client.proxy.keep(b"x" * LARGE)
            answered: list[int] = []
            receive, send = client._caller._caller._receive, client._far.send

            def noting(packet: Packet) -> None:
                if isinstance(packet, NonMemberReply):
                    answered.append(packet.head.sender)
                receive(packet)

            def after_a_kill(*arguments: Any) -> None:
                running[answered[-1]].kill()
                running[answered[-1]].wait()
                send(*arguments)

            monkeypatch.setattr(client._caller._caller, "_receive", noting)
            monkeypatch.setattr(client._far, "send", after_a_kill)
            took = await (client.proxy.take() if kind == "command" else client.proxy.look())
            assert took == b"x" * LARGE
            assert [process.poll() is None for process in running.values()].count(False) == 1
            assert await client.proxy.count() == (2 if kind == "command" else 1)

    play(main())


@pytest.mark.parametrize("place", [0, 1, 2])
def test_when_a_replica_stops_under_large_calls_then_each_is_executed_once(place: int) -> None:
    async def main() -> None:
        async with group_of(Hoard) as replicas, client_of(replicas, Hoard) as hoard:
            await hoard.count()
            calls = [asyncio.ensure_future(hoard.measure(bytes(100_000 + n))) for n in range(40)]
            await calls[3]
            await replicas[place].stop()
            assert await asyncio.gather(*calls) == [100_000 + n for n in range(40)]
            assert await hoard.count() == 40

    play(main())


def test_when_a_call_is_given_to_all_replicas_at_once_then_it_is_executed_once() -> None:
    async def main() -> None:
        async with group_of(Hoard) as replicas:
            session = envelope.session_of((await replicas[0].forward(envelope.OPEN).future).reply)
            catalogue = Catalogue(Hoard)
            bound = catalogue.command("measure").bind((b"z" * LARGE,), {})
            wanted = CallWanted(Language(catalogue).encode(session, 1, 0, bound))
            peers = [Peer(replica.address, None, group_id("tested"), 1) for replica in replicas]
            answers = await asyncio.gather(*(peer.ask(wanted) for peer in peers for _ in range(3)))
            assert None not in answers
            slots_and_replies = {bytes(answer[:8] + answer[9:]) for answer in answers if answer}
            assert len(slots_and_replies) == 1
            assert await replicas[1].proxy.count() == 1

    play(main())


@pytest.mark.parametrize(
    "message",
    [
        envelope.encode(Checkpoint(0, 1)),
        envelope.encode(Announce(b"b" * 16, "Hoard", {}, 1, SessionLimits())),
        envelope.encode(envelope.Activate(2)),
        b"\xff",
    ],
)
def test_when_a_client_wants_a_member_to_speak_for_it_then_nothing_reaches_the_ring(message: bytes) -> None:
    async def main() -> None:
        async with group_of(Hoard) as (one, *_):
            before = one.executor.applied
            peer = Peer(one.address, None, group_id("tested"), 1)
            assert await peer.ask(CallWanted(message)) == bytearray()
            await one.proxy.measure(b"")
            assert one.executor.applied - before < 10
            assert one.executor.group.machine == "Hoard"

    play(main())


def test_when_more_clients_ask_than_a_replica_answers_at_once_then_all_are_answered_in_the_end() -> None:
    async def main() -> None:
        async with group_of(Hoard) as replicas:
            clients = [client_of(replicas, Hoard) for _ in range(3 + 3 * ANSWERS_MAX // 8)]
            proxies: list[Proxy[Any]] = [await client.__aenter__() for client in clients]
            asked = [proxy.imagine(LARGE) for proxy in proxies for _ in range(10)]
            assert {len(answer) for answer in await asyncio.gather(*asked)} == {LARGE}
            for client in clients:
                client.close()

    play(main())


def test_when_the_session_has_ended_then_a_large_call_opens_another() -> None:
    async def main() -> None:
        async with group_of(Hoard, session_ms=300) as replicas, client_of(replicas, Hoard) as hoard:
            assert await hoard.measure(b"x") == 1
            await asyncio.sleep(0.7)  # of the group's time
            assert await hoard.measure(bytes(LARGE)) == LARGE
            assert await hoard.count() == 2

    play(main())


def test_when_keys_are_used_then_large_answers_are_for_those_who_have_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with sealed_group(tmp_path, Hoard) as (replicas, config, other):
            async with Client(Hoard, config) as hoard:
                assert await hoard.make(LARGE) == bytes(LARGE)
            stranger = Client(Hoard, other)
            patience = BulkLimits(handshake_ms=500)
            query = stranger._language.encode_query(stranger.catalogue.query("count").bind((), {}))
            peer = Peer(replicas[0].address, stranger._keyring, group_id("tested"), 1, patience)
            assert await peer.ask(CallWanted(query)) is None

    play(main())


def test_when_nobody_answers_a_large_call_then_its_outcome_is_unknown() -> None:
    async def main() -> None:
        async with group_of(Hoard) as replicas, client_of(replicas, Hoard, ring={"call_ms": 500}) as hoard:
            await hoard.measure(b"x")
            for replica in replicas:
                await replica.stop()
            with pytest.raises(OutcomeUnknown, match="may have been executed"):
                await hoard.measure(bytes(LARGE))

    play(main())
