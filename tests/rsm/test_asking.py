"""Questions to the application beside one replica: over the network and not, and what goes wrong."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from ordering.errors import BulkLost
from ordering.transports.bulk_tcp import BulkStream
from rsm import asking
from rsm.asking import BYTES_MAX, UNDER_WAY_MAX, Asker
from rsm.client import Client, ClientConfig
from rsm.errors import AnswerFailed, AskRefused, NotAnswered, RsmError, Unreachable
from rsm.links import Frames
from rsm.replica import Replica
from tests.rsm.machines import Counter
from tests.rsm.test_replica import crash, group_of, play

SECONDS = 10.0


async def shout(question: bytes) -> bytes:
    return question.upper()


async def never(question: bytes) -> bytes:
    await asyncio.Event().wait()
    return question


def client_of(*replicas: Replica[Any]) -> Client[Counter]:
    addresses = tuple(replica.address for replica in replicas)
    return Client(Counter, ClientConfig(group="tested", replicas=addresses, insecure=True))


def test_when_members_and_clients_ask_then_that_replica_answers_and_nothing_is_ordered() -> None:
    async def main() -> None:
        async with group_of(Counter) as (one, two, three):
            for replica in (one, two, three):
                replica.answer("who", partial(answered, replica.address))
            client = client_of(one)
            async with client:
                before = max(replica.executor.applied for replica in (one, two, three))
                for asker in (one, two, three, client):
                    for asked in (one, two, three):
                        found = await asker.ask(asked.address, "who", b"", SECONDS)
                        assert found == asked.address.encode()
                assert one.executor.applied - before < 30  # the ring's own
                assert one.answers.connections == 3  # it does not ask itself over the network

    async def answered(address: str, _: bytes) -> bytes:
        return address.encode()

    play(main())


def test_when_thousands_are_asked_at_once_then_each_gets_its_own_answer_over_one_connection() -> None:
    async def main() -> None:
        async with group_of(Counter, 2) as (one, two):
            two.answer("shout", shout)
            words = [b"a%d" % n for n in range(UNDER_WAY_MAX)]
            for _ in range(3):
                asked = [one.ask(two.address, "shout", word, SECONDS) for word in words]
                assert await asyncio.gather(*asked) == [word.upper() for word in words]
            assert two.answers.connections == 1
            large = bytes(BYTES_MAX)
            assert await one.ask(two.address, "shout", large, SECONDS) == large

    play(main())


@pytest.mark.parametrize("is_local", [True, False])
def test_when_there_is_no_answer_then_it_is_said_why(is_local: bool) -> None:
    async def fail(question: bytes) -> bytes:
        raise LookupError("no such thing")

    async def grow(question: bytes) -> bytes:
        return bytes(BYTES_MAX + 1)

    async def main() -> None:
        async with group_of(Counter, 2) as (one, two):
            asked = one if is_local else two
            asked.answer("fail", fail)
            asked.answer("grow", grow)
            asked.answer("never", never)
            with pytest.raises(AnswerFailed, match="no such thing") as told:
                await one.ask(asked.address, "fail", b"", SECONDS)
            assert told.value.kind == "LookupError"
            with pytest.raises(AskRefused, match="nobody answers 'fly' here; there are: fail, grow, never"):
                await one.ask(asked.address, "fly", b"", SECONDS)
            with pytest.raises(AskRefused, match="the answer has 4194305 bytes, more than 4194304"):
                await one.ask(asked.address, "grow", b"", SECONDS)
            with pytest.raises(AskRefused, match="the question has 4194305 bytes"):
                await one.ask(asked.address, "fail", bytes(BYTES_MAX + 1), SECONDS)
            with pytest.raises(NotAnswered, match=r"within"):
                await one.ask(asked.address, "never", b"", 0.05)
            asked.answer("fail", None)
            with pytest.raises(AskRefused, match="nobody answers 'fail'"):
                await one.ask(asked.address, "fail", b"", SECONDS)
            assert asked.answers.under_way == 0
            with pytest.raises(RsmError, match="grow: is answered by somebody here already"):
                asked.answer("grow", grow)

    play(main())


def test_when_too_much_is_under_way_then_it_is_refused_and_the_rest_is_answered() -> None:
    async def main() -> None:
        async with group_of(Counter, 2) as (one, two):
            free = asyncio.Event()

            async def wait(question: bytes) -> bytes:
                await free.wait()
                return question

            two.answer("wait", wait)
            waiting = [
                asyncio.ensure_future(one.ask(two.address, "wait", b"", SECONDS))
                for _ in range(UNDER_WAY_MAX)
            ]
            await until(lambda: two.answers.under_way == UNDER_WAY_MAX)
            with pytest.raises(AskRefused, match="1024 questions of 0 bytes to"):
                await one.ask(two.address, "wait", b"", SECONDS)
            with pytest.raises(AskRefused, match="1024 questions of 0 bytes are under way here"):
                await two.ask(two.address, "wait", b"", SECONDS)
            free.set()
            assert await asyncio.gather(*waiting) == [b""] * UNDER_WAY_MAX
            assert await one.ask(two.address, "wait", b"x", SECONDS) == b"x"

            free.clear()
            large = bytes(BYTES_MAX)
            waiting = [asyncio.ensure_future(one.ask(two.address, "wait", large, SECONDS)) for _ in range(16)]
            await until(lambda: two.answers.under_way == 16)
            with pytest.raises(AskRefused, match="16 questions of 67108864 bytes"):
                await one.ask(two.address, "wait", b"x", SECONDS)
            free.set()
            await asyncio.gather(*waiting)
            assert two.answers.bytes_under_way == 0

    play(main())


@pytest.mark.parametrize("bound", ["UNSENT_ANSWERS_MAX", "UNSENT_ANSWERS_MAX_IN_ALL"])
def test_when_an_asker_does_not_read_then_no_more_than_so_many_bytes_are_kept_for_it(
    monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(asking, bound, 4 * BYTES_MAX)

    async def main() -> None:
        async with group_of(Counter, 2) as (one, two):
            free, sent, questions = asyncio.Event(), asyncio.Event(), 64
            refused, most = 0, 0

            async def grow(_: bytes) -> bytes:
                await free.wait()
                return bytes(BYTES_MAX)

            send = BulkStream.send

            async def hold_up(stream: BulkStream, data: Any) -> None:
                if len(data) >= BYTES_MAX:  # an answer
                    await sent.wait()
                await send(stream, data)

            monkeypatch.setattr(BulkStream, "send", hold_up)
            two.answer("grow", grow)
            waiting = [
                asyncio.ensure_future(one.ask(two.address, "grow", b"", SECONDS)) for _ in range(questions)
            ]
            await until(lambda: two.answers.under_way == questions)
            free.set()
            await until(lambda: two.answers.under_way == 0)
            most = two.answers.bytes_unsent
            assert 4 * BYTES_MAX <= most < 6 * BYTES_MAX
            sent.set()
            for each in await asyncio.gather(*waiting, return_exceptions=True):
                if isinstance(each, AskRefused):
                    assert "bytes to this asker are not sent yet" in str(each)
                    refused += 1
                else:
                    assert each == bytes(BYTES_MAX)
            assert refused == questions - 4
            assert two.answers.bytes_unsent == 0

    play(main())


def test_when_more_bytes_are_asked_than_may_be_under_way_then_the_asker_is_refused() -> None:
    async def main() -> None:
        async with group_of(Counter, 2) as (one, two):
            two.answer("never", never)
            waiting = [
                asyncio.ensure_future(one.ask(two.address, "never", bytes(BYTES_MAX), SECONDS))
                for _ in range(asking.UNDER_WAY_BYTES_MAX // BYTES_MAX)
            ]
            await asyncio.sleep(0)
            with pytest.raises(AskRefused, match="16 questions of 67108864 bytes to"):
                await one.ask(two.address, "never", b"x", SECONDS)
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            two.answer("shout", shout)
            assert await one.ask(two.address, "shout", b"x", SECONDS) == b"X"

    play(main())


@pytest.mark.parametrize(
    ("words", "told_words"), [("x" * 2 * BYTES_MAX, "x" * asking.WORDS_MAX), ("odd: \udcff", r"odd: \udcff")]
)
def test_when_what_was_raised_cannot_be_sent_as_it_is_then_it_is_told_all_the_same(
    words: str, told_words: str
) -> None:
    async def fail(_: bytes) -> bytes:
        raise LookupError(words)

    async def main() -> None:
        async with group_of(Counter, 2) as (one, two):
            two.answer("fail", fail)
            with pytest.raises(AnswerFailed) as told:
                await one.ask(two.address, "fail", b"", SECONDS)
            assert str(told.value).endswith(told_words)

    play(main())


async def until(holds: Any) -> None:
    while not holds():
        await asyncio.sleep(0.001)


def test_when_nobody_waits_any_more_then_the_handler_is_cancelled_and_the_connection_stays() -> None:
    async def main() -> None:
        async with group_of(Counter, 2) as (one, two):
            two.answer("never", never)
            two.answer("shout", shout)
            waiting = asyncio.ensure_future(one.ask(two.address, "never", b"", SECONDS))
            await until(lambda: two.answers.under_way == 1)
            channel = one.asker._channels[two.address]
            waiting.cancel()
            await until(lambda: two.answers.under_way == 0)
            assert await one.ask(two.address, "shout", b"x", SECONDS) == b"X"
            assert one.asker._channels[two.address] is channel

    play(main())


def test_when_a_connection_breaks_midway_then_it_is_asked_once_more_and_no_oftener() -> None:
    async def main() -> None:
        async with group_of(Counter, 2) as (one, two):
            asked: list[bytes] = []
            breaks = 1

            async def cut(question: bytes) -> bytes:
                nonlocal breaks
                asked.append(question)
                if breaks:
                    breaks -= 1
                    for stream in two._bulk._serving:
                        stream.abort(BulkLost("cut"))
                    await asyncio.Event().wait()
                return question

            two.answer("cut", cut)
            assert await one.ask(two.address, "cut", b"x", SECONDS) == b"x"
            assert asked == [b"x", b"x"]
            breaks = 2
            with pytest.raises(Unreachable, match=r"cut: 127\.0\.0\.1"):
                await one.ask(two.address, "cut", b"y", SECONDS)
            assert asked == [b"x", b"x", b"y", b"y"]
            assert await one.ask(two.address, "cut", b"z", SECONDS) == b"z"

    play(main())


def test_when_the_replica_is_gone_then_it_is_unreachable() -> None:
    async def main() -> None:
        async with group_of(Counter, 2) as (one, two):
            two.answer("shout", shout)
            two.answer("never", never)
            assert await one.ask(two.address, "shout", b"x", SECONDS) == b"X"
            waiting = asyncio.ensure_future(one.ask(two.address, "never", b"", SECONDS))
            await until(lambda: two.answers.under_way == 1)
            await crash(two)
            with pytest.raises(Unreachable):
                await waiting
            with pytest.raises(Unreachable, match="cannot be reached"):
                await one.ask(two.address, "shout", b"x", SECONDS)

    play(main())


def test_when_a_replica_is_paused_then_the_question_is_given_up_and_the_next_has_another_connection() -> None:
    async def main() -> None:
        async with group_of(Counter, 2) as (one, two):
            two.answer("shout", shout)
            await one.ask(two.address, "shout", b"x", SECONDS)
            channel = one.asker._channels[two.address]
            paused: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            serving = two.answers.answer

            async def pause(_: Any) -> Any:
                await paused

            two.answers.answer = pause  # type: ignore[assignment,method-assign]
            with pytest.raises(NotAnswered, match=r"has not answered within 0\.05 s"):
                await one.ask(two.address, "shout", b"x", 0.05)
            two.answers.answer = serving  # type: ignore[method-assign]
            assert await one.ask(two.address, "shout", b"x", SECONDS) == b"X"
            assert one.asker._channels[two.address] is not channel

    play(main())


def test_when_nobody_shakes_hands_there_then_it_is_unreachable() -> None:
    async def main() -> None:
        connected: list[Any] = []
        silent = await asyncio.start_server(lambda *each: connected.append(each), "127.0.0.1", 0)
        async with silent, group_of(Counter, 1) as (one,):
            address = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
            with pytest.raises(Unreachable, match="did not shake hands"):
                await one.ask(address, "shout", b"", SECONDS)
            with pytest.raises(NotAnswered):
                await one.ask(address, "shout", b"", 0.05)
        for _, writer in connected:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    play(main())


def test_when_nothing_is_asked_for_a_while_then_the_connection_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "IDLE_SECONDS", 0.05)

    async def main() -> None:
        async with group_of(Counter, 2) as (one, two):
            two.answer("shout", shout)
            for _ in range(2):
                assert await one.ask(two.address, "shout", b"x", SECONDS) == b"X"
                assert two.answers.connections == 1
                await until(lambda: two.answers.connections == 0)
                await until(lambda: not one.asker._channels)  # its end of it may hear of that a moment later

    play(main())


def test_when_a_question_takes_long_then_pulses_keep_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "PULSE_SECONDS", 0.01)

    async def main() -> None:
        async with group_of(Counter, 2) as (one, two):
            pulses: list[Any] = []
            pulsed = asyncio.Event()
            take = Frames.take

            def note(frames: Frames, chunk: bytes) -> Iterator[Any]:
                for each in take(frames, chunk):
                    if isinstance(each, asking.Pulse):
                        pulses.append(each)
                        pulsed.set()
                    yield each

            async def slow(question: bytes) -> bytes:
                await pulsed.wait()
                return question

            monkeypatch.setattr(Frames, "take", note)
            two.answer("slow", slow)
            assert await one.ask(two.address, "slow", b"x", SECONDS) == b"x"
            assert pulses

    play(main())


def test_when_there_are_too_many_connections_then_one_more_is_told_so_by_silence() -> None:
    async def main() -> None:
        async with group_of(Counter, 1) as (one,):
            one.answer("shout", shout)
            askers = [Asker(one.peer) for _ in range(asking.CONNECTIONS_MAX + 1)]
            try:
                for asker in askers[:-1]:
                    assert await asker.ask(one.address, "shout", b"x", SECONDS) == b"X"
                with pytest.raises(Unreachable):
                    await askers[-1].ask(one.address, "shout", b"x", SECONDS)
                await askers[0].close()
                await until(lambda: one.answers.connections < asking.CONNECTIONS_MAX)
                assert await askers[-1].ask(one.address, "shout", b"x", SECONDS) == b"X"
                with pytest.raises(RsmError, match="was closed"):
                    await askers[0].ask(one.address, "shout", b"x", SECONDS)
            finally:
                for asker in askers:
                    await asker.close()

    play(main())
