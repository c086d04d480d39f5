"""Whatever arrives at the port, the driver counts it and goes on."""

import asyncio
import socket
from random import Random

import pytest

from ordering import codec
from ordering.driver import Driver, run
from ordering.packets import Confirm, Head
from ordering.transports.addresses import parse_endpoint
from ordering.views import SiteId
from tests.driver.replica import House, Replica, all_applied, submit_all


def spray(datagrams: list[bytes], *drivers: Driver) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for datagram in datagrams:
            for driver in drivers:
                sock.sendto(datagram, tuple(parse_endpoint(driver.address)))


def stranger(group: int) -> bytes:
    return codec.encode(Confirm(Head(group, 1, SiteId(7), 9, 1, 0, 0, 0, 0)), 1)


async def still_works(replicas: list[Replica]) -> None:
    await submit_all(replicas[0], "after", 100)
    await all_applied(replicas, 100)


def test_when_garbage_arrives_then_it_is_counted_by_reason_and_harmless() -> None:
    async def main() -> None:
        async with House() as house:
            replicas = await house.found()
            good = stranger(replicas[0].group._engine.site.group)
            spray([b"", b"hello", bytes(60_000), good[:-1], good + b"x", stranger(12345)], *house.drivers)
            await still_works(replicas)
            for driver in house.drivers:
                stats = driver.stats()
                assert stats.wire_drops["truncated"] == 3
                assert stats.wire_drops["foreign"] == 1
                assert stats.wire_drops["oversized"] == 1
                assert stats.group_drops["dropped: group not open"] == 1
                assert stats.groups_stopped == 0

    run(main())


def test_when_datagrams_are_damaged_at_random_then_the_group_goes_on() -> None:
    async def main() -> None:
        async with House() as house:
            replicas = await house.found()
            rng = Random(5)
            good = stranger(replicas[0].group._engine.site.group)
            damaged = []
            for _ in range(300):
                datagram = bytearray(good + rng.randbytes(rng.randrange(40)))
                for _ in range(rng.randrange(1, 6)):
                    datagram[rng.randrange(len(datagram))] = rng.randrange(256)
                damaged.append(bytes(datagram))
            spray(damaged, *house.drivers)
            await still_works(replicas)
            for driver in house.drivers:
                assert sum(driver.stats().wire_drops.values()) > 100

    run(main())


def test_when_reading_a_datagram_has_a_defect_then_the_driver_survives_and_its_log_does_not_fill(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with House() as house:
            replicas = await house.found()
            wire = house.drivers[0]._wire
            whole = wire.unpack

            def defective(datagram: bytes) -> object:
                if datagram == b"planted":
                    raise RecursionError("planted")
                return whole(datagram)

            monkeypatch.setattr(wire, "unpack", defective)
            spray([b"planted"] * 50, house.drivers[0])
            await still_works(replicas)
            assert house.drivers[0].stats().wire_drops["unreadable"] == 50

    run(main())
    assert caplog.text.count("a datagram could not be read") == 1


def test_when_a_flood_arrives_then_the_application_gets_its_turn() -> None:
    async def main() -> None:
        async with House() as house:
            replicas = await house.found()
            turns = 0
            spray([b"x" * 1_000] * 2_000, house.drivers[0])
            while sum(house.drivers[0].stats().wire_drops.values()) < 1_000:
                turns += 1
                assert turns < 10_000
                await asyncio.sleep(0)
            assert turns > 2
            await still_works(replicas)

    run(main(), uvloop=False)
