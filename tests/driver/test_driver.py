"""Several drivers on real sockets in one event loop."""

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from ordering import (
    Config,
    Ending,
    EndMembership,
    InvariantViolation,
    NotMember,
    Overloaded,
    SubmitError,
)
from ordering.driver import Driver, Group, Notice, Stopped, run
from ordering.errors import ConfigurationError, DriverClosed, GroupError
from tests.driver.replica import House, all_applied, submit_all

Main = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def on_loop(request: pytest.FixtureRequest) -> Callable[[Main], None]:
    return lambda main: run(main(), uvloop=request.param == "uvloop")


def ipv6_here() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


def fill_window(group: Group, message: bytes) -> int:
    """Submit until no more is accepted; a site with the token makes room once, by ordering its own."""
    accepted = 0
    try:
        while accepted < 10 * group.stats().window.messages_max:
            accepted += group.submit((message,) * 20).count
    except Overloaded:
        return accepted
    pytest.fail("the window has no end")


@pytest.mark.parametrize("bind", ["127.0.0.1:0", "[::1]:0"])
def test_when_all_of_three_submit_then_all_apply_the_same_in_one_order(
    on_loop: Callable[[Main], None], bind: str
) -> None:
    if bind.startswith("[") and not ipv6_here():
        pytest.skip("this machine has no ::1")

    async def main() -> None:
        async with House() as house:
            replicas = await house.found(bind=bind)
            await asyncio.gather(*(submit_all(r, f"site {n}", 3_334) for n, r in enumerate(replicas)))
            await all_applied(replicas, 3 * 3_334)
            for driver in house.drivers:
                assert not driver.stats().wire_drops["unreadable"]

    on_loop(main)


def test_when_one_is_closed_without_leaving_then_the_rest_go_on_and_it_comes_back(
    on_loop: Callable[[Main], None],
) -> None:
    async def main() -> None:
        async with House() as house:
            first, second, third = await house.found()
            await submit_all(first, "before", 100)
            await all_applied([first, second, third], 100)
            address = house.drivers[2].address
            house.drivers[2].close()
            assert isinstance(await third.group.ended, Stopped)
            await submit_all(first, "without", 100)
            await all_applied([first, second], 200)

            driver = await house.open(address)
            founders = tuple(d.address for d in house.drivers[:3])
            back = house.join(driver, Config(group="orders", founders=founders))
            await back.until(lambda r: r.votes)
            await submit_all(back, "back", 100)
            await all_applied([first, second, back], 300)

    on_loop(main)


def test_when_a_member_leaves_then_its_membership_ends_and_it_may_join_again() -> None:
    async def main() -> None:
        async with House() as house:
            first, second, third = await house.found()
            await submit_all(third, "mine", 10)
            third.group.leave()
            ended = await third.group.ended
            assert isinstance(ended, EndMembership)
            assert ended.ending is Ending.LEFT
            with pytest.raises(NotMember):
                third.group.submit((b"late",))
            third.group.leave()  # does nothing any more
            founders = tuple(driver.address for driver in house.drivers)
            config = Config(group="orders", founders=founders)
            again = house.join(house.drivers[2], config, founder=False)
            await again.until(lambda r: r.votes)
            await submit_all(again, "again", 10)
            await all_applied([first, second, again], 20)

    run(main())


def test_when_the_window_is_full_then_submit_when_free_waits_in_order() -> None:
    async def main() -> None:
        async with House() as house:
            drivers = [await house.open() for _ in range(3)]
            founders = tuple(driver.address for driver in drivers)
            config = Config(group="orders", founders=founders, window_messages=100)
            replicas = [house.join(driver, config) for driver in drivers]
            for replica in replicas:
                await replica.until(lambda r: r.view is not None)
            group = replicas[0].group
            before = fill_window(group, b"x")
            with pytest.raises(Overloaded):
                await group.submit_when_free((b"z",) * 101)
            order: list[int] = []
            queue = 0

            async def submit(number: int) -> None:
                nonlocal queue
                queue = max(queue, group.stats().window.waiting)
                await group.submit_when_free((b"w",) * 60)
                order.append(number)
                assert group.stats().window.messages <= 100

            waiting = [asyncio.ensure_future(submit(number)) for number in range(50)]
            await asyncio.sleep(0)
            waiting[25].cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            assert queue > 40
            assert order == [*range(25), *range(26, 50)]
            await all_applied(replicas, before + 49 * 60)

    run(main())


def test_when_there_is_always_room_then_submit_when_free_still_lets_the_loop_turn() -> None:
    async def main() -> None:
        async with House() as house:
            replicas = await house.found()
            turns = 0

            async def count_turns() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            counting = asyncio.ensure_future(count_turns())
            await asyncio.sleep(0)
            await submit_all(replicas[0], "single", 3_000, at_once=1)
            counting.cancel()
            assert turns > 3
            await all_applied(replicas, 3_000)

    run(main())


def test_when_the_driver_closes_then_who_waits_for_room_is_refused() -> None:
    async def main() -> None:
        async with House() as house:
            driver = await house.open()
            config = Config(group="alone", founders=(driver.address, "127.0.0.1:9"), window_messages=10)
            replica = house.join(driver, config)
            with pytest.raises(NotMember):
                await replica.group.submit_when_free((b"early",))
            drivers = [await house.open() for _ in range(3)]
            founders = tuple(each.address for each in drivers)
            config = Config(group="orders", founders=founders, window_messages=100)
            replicas = [house.join(each, config) for each in drivers]
            for each in replicas:
                await each.until(lambda r: r.view is not None)
            drivers[1].close()
            drivers[2].close()
            group = replicas[0].group
            fill_window(group, b"m")
            waiting = [asyncio.ensure_future(group.submit_when_free((b"n",) * 20)) for _ in range(3)]
            await asyncio.sleep(0)
            assert group.stats().window.waiting == 3
            drivers[0].close()
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(result) for result in results] == [NotMember] * 3
            with pytest.raises(DriverClosed):
                drivers[0].join(config, print)

    run(main())


def test_when_a_driver_is_in_two_groups_then_each_has_its_own_order() -> None:
    async def main() -> None:
        async with House() as house:
            orders = await house.found("orders")
            config = Config(group="stock", founders=tuple(driver.address for driver in house.drivers))
            stock = [house.join(driver, config) for driver in house.drivers]
            for replica in stock:
                await replica.until(lambda r: r.view is not None)
            with pytest.raises(GroupError):
                house.drivers[0].join(config, print)
            await asyncio.gather(
                *(submit_all(r, f"order {n}", 500) for n, r in enumerate(orders)),
                *(submit_all(r, f"item {n}", 700) for n, r in enumerate(stock)),
            )
            await all_applied(orders, 1500)
            await all_applied(stock, 2100)
            stock[0].group.leave()
            await stock[0].group.ended
            await submit_all(orders[0], "more", 10)
            await all_applied(orders, 1510)

    run(main())


def test_when_an_engine_breaks_then_only_its_group_stops_and_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with House() as house:
            orders = await house.found("orders")
            config = Config(group="stock", founders=tuple(driver.address for driver in house.drivers))
            stock = [house.join(driver, config) for driver in house.drivers]
            for replica in stock:
                await replica.until(lambda r: r.view is not None)
            engine = stock[0].group._engine

            def broken(*_: object) -> None:
                raise InvariantViolation("planted")

            monkeypatch.setattr(engine.submission, "submit", broken)
            with pytest.raises(NotMember):
                stock[0].group.submit((b"m",))
            ended = await stock[0].group.ended
            assert isinstance(ended, Stopped)
            assert isinstance(ended.error, InvariantViolation)
            await stock[0].until(lambda r: r.notices[-1] == ended)
            await submit_all(orders[0], "order", 10)
            await all_applied(orders, 10)
            await submit_all(stock[1], "item", 10)
            await all_applied(stock[1:], 10)
            assert house.drivers[0].stats().groups_stopped == 1
            assert [group.group for group in house.drivers[0].stats().groups] == ["orders"]

    run(main())


def test_when_a_packet_cannot_be_written_then_its_group_stops_and_the_driver_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with House() as house:
            orders = await house.found("orders")
            site = orders[0].group._engine.site
            whole = site.head
            monkeypatch.setattr(site, "head", lambda: msgspec.structs.replace(whole(), held=-1))
            with pytest.raises(NotMember):
                orders[0].group.submit((b"m",))
            ended = await orders[0].group.ended
            assert isinstance(ended, Stopped)
            await submit_all(orders[1], "order", 10)
            await all_applied(orders[1:], 10)
            founders = tuple(driver.address for driver in house.drivers)
            back = house.join(house.drivers[0], Config(group="orders", founders=founders))
            await back.until(lambda r: r.votes)
            await all_applied([*orders[1:], back], 10)

    run(main())


def test_when_a_listener_raises_then_its_group_is_stopped() -> None:
    async def main() -> None:
        async with House() as house:
            driver = await house.open()

            def listener(_: list[Notice]) -> None:
                raise ValueError("planted")

            group = driver.join(Config(group="alone", founders=(driver.address,)), listener)
            ended = await group.ended
            assert isinstance(ended, Stopped)
            assert isinstance(ended.error, ValueError)
            assert not driver.stats().groups

    run(main())


def test_when_a_listener_submits_then_it_is_not_called_inside_itself() -> None:
    async def main() -> None:
        async with House() as house:
            driver = await house.open()
            depth = calls = 0
            heard: list[Notice] = []
            done = asyncio.Event()

            def listener(notices: list[Notice]) -> None:
                nonlocal depth, calls
                depth += 1
                assert depth == 1
                calls += 1
                heard.extend(notices)
                if calls < 20:
                    group.submit((b"again",))  # assigned before the first call
                else:
                    done.set()
                depth -= 1

            group = driver.join(Config(group="alone", founders=(driver.address,)), listener)
            async with asyncio.timeout(30):
                await done.wait()
            assert group.stats().submitted == 19

    run(main())


def test_when_a_member_is_asked_for_figures_then_they_add_up() -> None:
    async def main() -> None:
        async with House() as house:
            replicas = await house.found()
            for number in range(100):
                replicas[0].group.submit((f"message {number}".encode(),) * 3)
            await all_applied(replicas, 300)
            stats = house.drivers[0].stats()
            group = stats.groups[0]
            assert (group.submitted, group.delivered) == (300, 300)
            assert sum(group.latency) == 100
            assert group.majority >= 300
            assert group.view is not None
            assert group.window.messages == 0
            assert stats.datagrams_out > 100
            assert stats.bytes_out > stats.datagrams_out
            assert stats.sockets[0].receive_buffer_bytes > 0
            assert not stats.send_drops
            others = sum(driver.stats().datagrams_out for driver in house.drivers[1:])
            assert 0 < stats.datagrams_in <= others

    run(main())


def test_when_the_application_holds_the_loop_then_the_stall_is_counted() -> None:
    async def main() -> None:
        async with House() as house:
            replicas = await house.found()
            time.sleep(0.3)
            await submit_all(replicas[0], "after", 10)
            await all_applied(replicas, 10)
            stalls = [driver.stats().stalls for driver in house.drivers]
            assert max(stall.late_max_ns for stall in stalls) > 50_000_000
            assert max(stall.late[50] for stall in stalls) >= 1

    run(main())


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"bind": "127.0.0.1:0"}, "keyring"),
        ({"bind": "127.0.0.1", "insecure": True}, "bind"),
        ({"bind": "::1:0", "insecure": True}, "bind"),
        ({"bind": "localhost.invalid:0", "insecure": True}, "bind"),
        ({"bind": "192.0.2.1:0", "insecure": True}, "bind"),
        ({"bind": "0.0.0.0:0", "insecure": True}, "advertise"),
    ],
)
def test_when_a_driver_cannot_be_opened_then_the_error_names_the_setting(
    options: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^{field}: .*; "):
        run(Driver.open(**options))


def test_when_insecure_then_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        (await Driver.open(bind="0.0.0.0:0", advertise="127.0.0.1:0", insecure=True)).close()

    run(main())
    assert "INSECURE" in caplog.text


def test_when_a_message_is_larger_than_any_datagram_then_it_arrives_whole() -> None:
    async def main() -> None:
        async with House() as house:
            replicas = await house.found()
            large = bytes(range(256)) * 8_192  # 2 MiB
            await replicas[0].group.submit_when_free((large,))
            await submit_all(replicas[1], "small", 5)
            await all_applied(replicas, 6)

    run(main())


def test_when_a_call_makes_no_sense_then_it_is_refused_and_nothing_changes() -> None:
    async def main() -> None:
        async with House() as house:
            replicas = await house.found()
            group = replicas[0].group
            with pytest.raises(SubmitError):
                group.submit(())
            with pytest.raises(SubmitError, match="message_bytes_max"):
                group.submit((bytes(16 * 1024 * 1024 + 1),))
            with pytest.raises(GroupError):
                house.drivers[0].join(Config(group="orders", founders=("127.0.0.1:1",)), print)
            await submit_all(replicas[0], "fine", 5)
            await all_applied(replicas, 5)

    run(main())
