"""Members that are processes of their own, and die as processes die."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.ports import free_ports
from tests.driver.member_process import Process, ask_all, config_of


@contextmanager
def processes(count: int, *, uvloop: bool) -> Iterator[list[Process]]:
    started: list[Process] = []
    try:
        for port in free_ports(count):
            address = f"127.0.0.1:{port}"
            started.append(Process(address, uvloop=uvloop))
        yield started
    finally:
        for process in started:
            process.kill()


def applied_alike(members: list[Process], count: int) -> None:
    answers = ask_all(members, "apply", count)
    assert answers == [(count, answers[0][1])] * len(members)


@pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])
def test_when_a_process_is_killed_then_the_rest_go_on_and_it_comes_back(uvloop: bool) -> None:
    with processes(3, uvloop=uvloop) as members:
        config = config_of(members)
        ask_all(members, "join", config)
        for number, member in enumerate(members):
            member.ask("submit", f"site {number}", 3_334)
        for member in members:
            member.answer()
        applied_alike(members, 10_002)

        address = members[0].address
        members.pop(0).kill()
        ask_all(members, "submit", "without", 500)
        applied_alike(members, 11_002)

        members.append(Process(address, uvloop=uvloop))
        ask_all(members[2:], "join", config)
        ask_all(members, "submit", "again", 500)
        applied_alike(members, 12_502)
        assert not any(figures.groups_stopped for figures in ask_all(members, "figures"))
