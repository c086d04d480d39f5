"""What the log says: fixed words and fields, in any program's format and in ours; nothing floods it."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ordering import logs as ordering_logs
from ordering.logs import Event, Throttle
from rsm.config import ReplicaConfig
from rsm.errors import Diverged
from rsm.logs import LogFormat, LogLevel, configure, logger
from rsm.replica import Replica
from tests.rsm.machines import Counter
from tests.rsm.test_durable import Cluster
from tests.rsm.test_replica import crash, group_of, play

KEY = "5f" * 32


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def configured() -> Iterator[None]:
    """Whatever a test configures, the others do not see."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def events(caplog: pytest.LogCaptureFixture) -> list[Event]:
    return [record.msg for record in caplog.records if isinstance(record.msg, Event)]


def named(caplog: pytest.LogCaptureFixture, *names: str) -> list[Event]:
    return [event for event in events(caplog) if event["event"] in names]


# -- formats -------------------------------------------------------------------------------------


def test_when_a_program_has_a_log_of_its_own_then_fields_are_in_its_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        logger("rsm.somewhere").bind(group="orders").info(
            "view installed", view="3.0", why="a b", ring=["x:1"]
        )
        logger("rsm.somewhere").debug("too quiet")
    (record,) = caplog.records
    assert record.getMessage() == "view installed group=orders view=3.0 why='a b' ring=['x:1']"
    assert (record.name, record.levelname) == ("rsm.somewhere", "INFO")
    assert record.filename == Path(__file__).name


def test_when_nobody_has_configured_logging_then_importing_us_does_not() -> None:
    assert logging.getLogger("rsm").handlers == []
    assert logging.getLogger("ordering").handlers == []


@pytest.mark.usefixtures("configured")
def test_when_a_machine_reads_then_each_event_is_a_line_of_json_with_its_trace() -> None:
    stream = io.StringIO()
    configure(LogFormat.AUTO, LogLevel.INFO, stream)
    try:
        raise ValueError("odd\nlines")
    except ValueError:
        logger("rsm.somewhere").exception("broken", slot=7, raw=b"\xff")
    logging.getLogger("another.library").warning("%d things", 3)
    ours, theirs = map(json.loads, stream.getvalue().splitlines())
    assert (ours["event"], ours["slot"], ours["level"]) == ("broken", 7, "error")
    assert "ValueError: odd" in ours["exception"]
    assert ours["timestamp"].endswith("Z")
    assert (theirs["event"], theirs["logger"]) == ("3 things", "another.library")


@pytest.mark.usefixtures("configured")
def test_when_a_person_reads_then_the_event_comes_first_and_fields_follow() -> None:
    stream = Terminal()
    configure(LogFormat.AUTO, LogLevel.WARNING, stream)
    logger("rsm.somewhere").info("unsaid")
    logger("rsm.somewhere").warning("suspected", members=["a:1"])
    (line,) = stream.getvalue().splitlines()
    assert line.index("suspected") < line.index("members")


@pytest.mark.usefixtures("configured")
def test_when_configured_twice_then_nothing_is_said_twice() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure(LogFormat.JSON, LogLevel.INFO, first)
    configure(LogFormat.JSON, LogLevel.INFO, second)
    logger("rsm.somewhere").info("once")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


# -- floods --------------------------------------------------------------------------------------


def test_when_the_same_happens_again_and_again_then_it_is_said_once_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.1
    monkeypatch.setattr(ordering_logs, "monotonic", lambda: now)
    throttle = Throttle(10.0)
    assert throttle.admits("unreadable") == {}
    assert [throttle.admits("unreadable") for _ in range(5)] == [None] * 5
    assert throttle.admits("other") == {}
    now += 10.5
    assert throttle.admits("unreadable") == {"unsaid": 5}
    for key in range(10 * ordering_logs.KEYS_MAX):
        throttle.admits(key)
    assert len(throttle._known) == ordering_logs.KEYS_MAX


# -- events of a life ----------------------------------------------------------------------------


def test_when_a_replica_is_lost_then_the_others_say_whom_they_miss_and_why_the_view_is_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with group_of(Counter) as (one, two, three):
            await one.proxy.add(1)
            assert len(named(caplog, "joined")) == 3
            lost = three.address
            await crash(three)
            await two.proxy.add(1)
            await one.proxy.add(1)
            changed = [event for event in named(caplog, "view installed") if lost in event["why"]]
            assert {event["site"] for event in changed} == {f"{each.member.site:x}" for each in (one, two)}
            for event in changed:
                assert event["group"] == "tested"
                assert lost not in event["ring"]
                assert lost in event["electorate"]
                assert event["view"] == one.status().view
            missed = named(caplog, "suspected", "the ring does not move")
            assert missed
            assert {address for event in missed for address in event["members"]} <= {lost}

    with caplog.at_level(logging.INFO):
        play(main())
    assert len(named(caplog, "stopped")) == 3
    assert named(caplog, "halted") == []


def test_when_a_majority_is_lost_then_the_last_one_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with group_of(Counter) as (one, two, three):
            await one.proxy.add(1)
            await two.stop()
            await three.stop()
            while not named(caplog, "no majority is heard"):
                await asyncio.sleep(0.02)

    with caplog.at_level(logging.INFO):
        play(main())


def test_when_a_replica_is_back_from_its_disk_then_the_views_of_its_log_are_no_news(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            for _ in range(2):
                await cluster.stop(2)
                await cluster.replicas[0].proxy.add(1)
                await cluster.start(2)
                await cluster.ready()
            caplog.clear()
            await cluster.stop(0, 1, 2)
            await cluster.start(0, 1, 2)
            await cluster.ready()
            status = cluster.replicas[0].status()
            told = named(caplog, "view installed")
            assert [each.view for each in status.views] == [
                event["view"] for event in told if event["site"] == status.site
            ]
            assert "restarted" in status.views[0].why
            assert int(status.views[0].view.partition(".")[0]) > 2
            assert {event["how"] for event in named(caplog, "joining")} == {"disk"}

    with caplog.at_level(logging.INFO):
        play(main())


def test_when_a_replica_halts_then_the_reason_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with group_of(Counter) as (one, *_):
            one._fail(Diverged("it differs", 4096, alone=True))

    with caplog.at_level(logging.INFO):
        play(main())
    (halted,) = named(caplog, "halted")
    assert (halted["kind"], halted["why"]) == ("Diverged", "it differs")


def test_when_a_whole_life_is_logged_at_any_level_then_neither_key_nor_command_is_in_it(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    key = tmp_path / "group.key"
    key.write_text(KEY + "\n")

    async def main() -> None:
        settings: dict[str, Any] = {"insecure": False, "key_file": key}
        async with group_of(Counter, **settings) as (one, two, three):
            await one.proxy.add(271_828_182)
            await three.stop()
            await two.proxy.add(1)
            late: Replica[Counter] = Replica(
                Counter, ReplicaConfig(group="tested", bind="127.0.0.1:0", key_file=key)
            )
            await late.open()
            late.join((), (one.address, two.address))
            await late.ready()
            await late.stop()

    with caplog.at_level(logging.DEBUG, "rsm"), caplog.at_level(logging.DEBUG, "ordering"):
        play(main())
    assert named(caplog, "the state was fetched")
    assert named(caplog, "the state was given")
    for secret in (KEY, "271828182"):
        assert secret not in caplog.text
