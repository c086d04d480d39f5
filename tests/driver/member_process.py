"""One member in a process of its own, led by the test through a pipe; states travel over TCP."""

import asyncio
import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from ordering import Config, RequestState
from ordering.driver import Driver, run
from ordering.transports.addresses import parse_address
from ordering.transports.multicast import MulticastSettings
from tests.driver.replica import PATIENCE_S, Replica, Saved, submit_all

Order = tuple[str, tuple[Any, ...]]


class Process:
    """The test's end."""

    def __init__(
        self, bind: str = "127.0.0.1:0", *, uvloop: bool = True, multicast: MulticastSettings | None = None
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, end = context.Pipe()
        self._process = context.Process(target=_main, args=(end, bind, uvloop, multicast))
        self._process.start()
        end.close()
        self.address: str = self.answer()

    def ask(self, order: str, *arguments: Any) -> None:
        self._pipe.send((order, arguments))

    def answer(self) -> Any:
        assert self._pipe.poll(PATIENCE_S + 10), "the process does not answer"
        return self._pipe.recv()

    def kill(self) -> None:
        self._process.kill()
        self._process.join(PATIENCE_S)
        self._process.close()
        self._pipe.close()


def ask_all(processes: Sequence[Process], order: str, *arguments: Any) -> list[Any]:
    """At the same time."""
    for process in processes:
        process.ask(order, *arguments)
    return [process.answer() for process in processes]


def _main(pipe: Connection, bind: str, uvloop: bool, multicast: MulticastSettings | None) -> None:
    run(_lead(pipe, bind, multicast), uvloop=uvloop)


async def _lead(pipe: Connection, bind: str, multicast: MulticastSettings | None) -> None:
    loop = asyncio.get_running_loop()
    async with await Driver.open(bind=bind, insecure=True, multicast=multicast) as driver:
        replica = Replica(_fetch)

        async def donate(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if replica.has_state:
                writer.write(msgspec.json.encode(replica.state))
            writer.close()

        server = await asyncio.start_server(donate, *parse_address(driver.address).endpoint)
        pipe.send(driver.address)
        async with server:
            while True:
                try:
                    order, arguments = await loop.run_in_executor(None, pipe.recv)
                except EOFError:  # the test is over
                    return
                pipe.send(await _obey(driver, replica, order, arguments))


async def _obey(driver: Driver, replica: Replica, order: str, arguments: tuple[Any, ...]) -> Any:
    match order:
        case "join":
            replica.join(driver, *arguments)
            await replica.until(lambda r: r.votes)
        case "submit":
            await submit_all(replica, *arguments)
        case "apply":
            await replica.until(lambda r: r.state.applied >= arguments[0])
            return replica.state.applied, replica.state.digest
        case "figures":
            return driver.stats()
    return None


async def _fetch(replica: Replica, wanted: RequestState) -> Saved | None:
    for donor in wanted.donors:
        address = replica.group.address_of(donor)
        if address is None:
            continue
        try:
            reader, writer = await asyncio.open_connection(*parse_address(address).endpoint)
        except OSError:
            continue
        body = await reader.read()
        writer.close()
        if body:
            return msgspec.json.decode(body, type=Saved)
    return None


def config_of(processes: Sequence[Process], group: str = "orders", **settings: Any) -> Config:
    return Config(group=group, founders=tuple(process.address for process in processes), **settings)
