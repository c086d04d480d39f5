"""A person's machine in the simulator: what is sound passes, and each kind of mistake is found."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, ClassVar

import pytest

from rsm.errors import InvalidCall, MachineError, Refusal
from rsm.sessions import Answer, Session, Sessions
from rsm.state_machine import StateMachine, command, query
from rsm.testing import Report, simulate
from rsm.testing.clients import calls_of
from rsm.testing.simulation import Options, replay_line
from tests.rsm.machines import Counter, Echo, Ledger, Timers

pytest_plugins = ["rsm.testing.plugin"]

QUIET: dict[str, Any] = {"sites": 3, "faults": "none", "seconds": 1, "seeds": [1]}


def count(rng: Random) -> tuple[str, Any]:
    draw = rng.random()
    if draw < 0.3:
        return "get", ()
    if draw < 0.4:
        return "subtract", (rng.randrange(20),)
    return "add", (rng.randrange(1, 10),)


def press(rng: Random) -> tuple[str, Any]:
    return "press", (rng.choice(("red", "green", "blue", "white", "black")),)


class Gambler(StateMachine):
    def __init__(self) -> None:
        self.luck = 0

    @command
    def press(self, name: str) -> int:
        self.luck = random.randrange(1 << 40)
        return len(name)


class Timekeeper(StateMachine):
    def __init__(self) -> None:
        self.pressed = 0

    @command
    def press(self, name: str) -> int:
        self.pressed = time.time_ns()
        return self.pressed


class Bag(StateMachine):
    """It answers in the order of a set."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    @command
    def press(self, name: str) -> str:
        self.names.add(name)
        return " ".join(self.names)


class Shared(StateMachine):
    """Its state is that of the class, not of the instance."""

    total: ClassVar[list[int]] = [0]

    @command
    def press(self, name: str) -> int:
        self.total[0] += 1
        return self.total[0]


class Forgetful(StateMachine):
    """Its snapshot leaves something out."""

    def __init__(self) -> None:
        self.pressed = 0

    @command
    def press(self, name: str) -> int:
        self.pressed += 1
        return self.pressed

    def snapshot(self) -> Iterator[bytes]:
        yield b"nothing"

    def restore(self, chunks: Any) -> None:
        list(chunks)


class Unreadable(Forgetful):
    """Only its first state can be read again."""

    def snapshot(self) -> Iterator[bytes]:
        yield b"some" if self.pressed else b"nothing"

    def restore(self, chunks: Any) -> None:
        if b"".join(chunks) != b"nothing":
            raise ValueError("no idea what this is")


class Hopeless(Forgetful):
    def restore(self, chunks: Any) -> None:
        raise ValueError("no idea what this is")


class Sly(Counter):
    """Its query changes the state, of one replica only."""

    @query
    def get(self) -> int:
        self.value += 1
        return self.value


def text_of(report: Report) -> str:
    assert not report.ok
    return "\n".join(violation for failure in report.failures for violation in failure.violations)


# -- what is sound -------------------------------------------------------------------------------


def test_when_a_machine_is_sound_then_ten_seeds_of_faults_find_nothing() -> None:
    report = simulate(Counter, count, seeds=range(10), seconds=3).check()
    assert report.seeds == 10
    assert report.operations > 500
    assert report.executed > 300
    assert report.repeated > 10
    assert sum(report.faults.values()) > 20
    assert report.notes == {}


@pytest.mark.parametrize("durable", [False, True])
def test_when_a_machine_uses_its_context_and_undoes_commands_then_nothing_is_found(durable: bool) -> None:
    def calls(rng: Random) -> tuple[str, Any]:
        accounts = ("a", "b", "c")
        some: list[tuple[str, Any]] = [
            ("note", ()),
            ("draw", ()),
            ("move", (rng.choice(accounts), rng.choice(accounts), rng.randrange(8))),
        ]
        return rng.choice(some)

    report = simulate(Ledger, calls, seeds=range(4), seconds=3, durable=durable).check()
    assert any("the machine uses context" in note for note in report.notes)


def test_when_time_alone_changes_a_machine_then_all_that_went_off_is_explained() -> None:
    def calls(rng: Random) -> tuple[str, Any]:
        return ("went_off", ()) if rng.random() < 0.5 else ("set", (rng.choice("abc"), rng.randrange(300)))

    simulate(Timers, calls, seeds=range(3), seconds=3).check()


def test_when_a_machine_takes_raw_bytes_then_they_are_executed_and_checked() -> None:
    report = simulate(Echo, lambda rng: ("apply", (rng.randbytes(5),)), **QUIET).check()
    assert report.executed > 20


def test_when_a_seed_is_played_again_then_it_is_the_same_run() -> None:
    first = simulate(Counter, count, seeds=[5], seconds=2, other_hashes=False)
    again = simulate(Counter, count, seeds=[5], seconds=2, other_hashes=False)
    assert first.traces == again.traces
    assert (first.operations, first.executed, first.unknown) == (
        again.operations,
        again.executed,
        again.unknown,
    )


def test_when_the_hash_seed_is_another_then_a_seed_is_still_the_same_run() -> None:
    code = (
        "from rsm.testing import simulate; from tests.rsm.test_testing import Counter, count;"
        "r = simulate(Counter, count, seeds=[3, 4], seconds=1, other_hashes=False); print(r, r.traces)"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] != b""


# -- mistakes of machines ------------------------------------------------------------------------


@pytest.mark.parametrize("machine", [Gambler, Timekeeper, Bag, Shared])
def test_when_a_machine_depends_on_more_than_the_order_then_the_first_differing_slot_is_named(
    machine: type[StateMachine],
) -> None:
    Shared.total[0] = 0
    report = simulate(machine, press, **QUIET)
    assert "diverged: first at slot " in text_of(report)
    assert f"{machine.__name__}.press(" in text_of(report)


def test_when_sets_cannot_be_tried_in_another_order_then_the_report_says_so() -> None:
    class Local(Bag):
        pass

    report = simulate(Local, press, **QUIET)
    assert any("cannot be imported" in note for note in report.notes)


def test_when_a_query_changes_the_state_then_the_replicas_are_found_to_differ() -> None:
    assert "diverged: first at slot " in text_of(simulate(Sly, count, **QUIET))


def test_when_a_snapshot_is_incomplete_then_some_seed_finds_the_replica_that_took_it_over() -> None:
    report = simulate(Forgetful, press, seeds=range(3), seconds=3, durable=False, other_hashes=False)
    assert "diverged: first at slot" in text_of(report)


def test_when_a_snapshot_cannot_be_restored_then_the_site_that_halts_is_named() -> None:
    report = simulate(Unreadable, press, seeds=range(3), seconds=3, durable=False, other_hashes=False)
    assert "halted: s" in text_of(report)
    assert "no idea what this is" in text_of(report)


def test_when_not_even_the_first_state_can_be_restored_then_nothing_is_simulated() -> None:
    with pytest.raises(MachineError, match="Hopeless: a snapshot of its first state cannot be taken"):
        simulate(Hopeless, press, **QUIET)


# -- mistakes of the framework -------------------------------------------------------------------


def test_when_sessions_do_not_know_repetitions_then_a_double_execution_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def use(
        self: Sessions, session: int, number: int, acknowledged: int, time: int
    ) -> Session | Answer | Refusal:
        return self._open.get(session, Refusal.SESSION_UNKNOWN)

    monkeypatch.setattr(Sessions, "use", use)
    report = simulate(Counter, count, other_hashes=False, **{**QUIET, "seeds": range(3)})
    assert "was executed twice" in text_of(report)


def test_when_replies_are_mixed_up_then_witness_and_search_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = Session.keep

    def forget(self: Session, number: int, ts: int, reply: bytes) -> None:
        keep(self, number, ts, next(iter(self.replies.values())).reply if self.replies else reply)

    monkeypatch.setattr(Session, "keep", forget)

    def acknowledge(self: Session, number: int) -> None:
        self.acknowledged = number

    monkeypatch.setattr(Session, "acknowledge", acknowledge)
    report = simulate(Counter, count, other_hashes=False, **{**QUIET, "seeds": range(3), "seconds": 3})
    assert "witness: " in text_of(report)
    assert "black box: no order explains" in text_of(report)


def test_when_queries_do_not_wait_for_the_order_then_a_stale_read_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rsm.sessions import Answer
    from rsm.testing.hosting import Host

    def query(self: Host, bound: Any, answered: Any) -> None:
        executor = self.replica.intake.executor if self.replica is not None else None
        answered(None if executor is None else Answer(executor.applied, executor.query(bound)))

    monkeypatch.setattr(Host, "query", query)
    report = simulate(Counter, count, seeds=range(3), seconds=3, other_hashes=False)
    assert "had returned" in text_of(report)


# -- use -----------------------------------------------------------------------------------------


def test_when_a_seed_fails_then_its_line_replays_it_with_the_same_options() -> None:
    report = simulate(Gambler, press, **QUIET)
    (failure,) = report.failures
    assert failure.replay == (
        'python -c "from tests.rsm.test_testing import Gambler; from tests.rsm.test_testing import press;'
        " from rsm.testing import simulate;"
        " print(simulate(Gambler, press, sites=3, faults='none', seconds=1, seeds=[1]))\""
    )
    assert failure.replay in str(report)
    with pytest.raises(AssertionError, match="diverged"):
        report.check()


def test_when_the_workload_has_no_name_then_the_replay_is_the_call() -> None:
    assert (
        replay_line(Counter, lambda rng: ("get", ()), Options(), 3)
        == "simulate(Counter, <workload>, seeds=[3])"
    )


def test_when_calls_are_listed_or_generated_then_each_client_makes_them_in_order() -> None:
    def three(rng: Random) -> Iterator[tuple[str, Any]]:
        for _ in range(3):
            yield "add", {"n": 1}

    listed = simulate(Counter, [("add", (1,)), ("get", ())], clients=4, **QUIET).check()
    assert (listed.operations, listed.executed) == (8, 4)
    generated = simulate(Counter, three, clients=4, **QUIET).check()
    assert (generated.operations, generated.executed) == (12, 12)
    assert next(calls_of(count, Random(1)))[0] in {"get", "add", "subtract"}


def test_when_a_call_is_wrong_then_it_raises_where_it_was_made() -> None:
    with pytest.raises(InvalidCall, match=r"Counter\.add: missing argument"):
        simulate(Counter, lambda rng: ("add", ()), **QUIET)


def test_when_the_fixture_is_used_then_it_gives_the_report_or_fails_the_test(
    rsm_simulate: Callable[..., Report],
) -> None:
    assert rsm_simulate(Counter, count, **QUIET).ok
    with pytest.raises(pytest.fail.Exception, match="diverged"):
        rsm_simulate(Gambler, press, **QUIET)
