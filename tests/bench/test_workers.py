"""Processes of a benchmark: what goes wrong in them is told, and none outlives the run."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.errors import BenchError, WorkerFailed
from bench.workers import Crew, Link, Placement, Post

ROOT = Path(__file__).resolve().parents[2]


def answer(link: Link) -> None:
    while (number := link.hear()) is not None:
        link.say(number + 1)


def refuse(_: Link) -> None:
    raise BenchError("the reason")


def break_down(_: Link) -> None:
    raise ZeroDivisionError


def vanish(_: Link) -> None:
    os._exit(7)


def say_nothing(link: Link) -> None:
    link.hear()


def tell_cpus(link: Link) -> None:
    link.say(sorted(os.sched_getaffinity(0)))


def is_running(pid: int) -> bool:
    """Not dead, and not a zombie either, which only waits to be noticed."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_when_workers_are_asked_then_answers_come_in_their_order() -> None:
    with Crew() as crew:
        workers = [crew.start(f"worker {number}", answer) for number in range(2)]
        for number, worker in enumerate(workers):
            worker.tell(number)
        assert crew.hear_all(workers) == [1, 2]


def test_when_a_worker_refuses_then_its_reason_is_raised() -> None:
    with Crew() as crew, pytest.raises(WorkerFailed, match=r"^refuser: the reason$"):
        crew.hear(crew.start("refuser", refuse))


def test_when_a_worker_breaks_down_then_its_traceback_is_raised() -> None:
    with Crew() as crew, pytest.raises(WorkerFailed, match=r"(?s)broken: Traceback.*ZeroDivisionError"):
        crew.hear(crew.start("broken", break_down))


def test_when_a_worker_dies_then_its_exit_code_is_told() -> None:
    with Crew() as crew, pytest.raises(WorkerFailed, match="ghost: ended with exit code 7"):
        crew.hear(crew.start("ghost", vanish))


def test_when_a_worker_is_silent_then_patience_ends() -> None:
    with Crew() as crew, pytest.raises(WorkerFailed, match="mute: said nothing"):
        crew.hear(crew.start("mute", say_nothing), seconds=0.2)


def test_when_a_crew_ends_by_an_error_then_even_a_stopped_worker_is_gone() -> None:
    pids: list[int] = []

    def use() -> None:
        with Crew() as crew:
            pids.extend(crew.start(f"worker {number}", answer).pid for number in range(2))
            os.kill(pids[0], signal.SIGSTOP)
            raise BenchError

    with pytest.raises(BenchError):
        use()
    assert len(pids) == 2
    assert not any(is_running(pid) for pid in pids)


def test_when_a_worker_is_pinned_then_it_has_that_cpu_only() -> None:
    cpu = Placement.SPREAD.cpu(1)
    with Crew() as crew:
        assert crew.hear(crew.start("pinned", tell_cpus, post=Post(cpu=cpu))) == [cpu]


def children_of(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8")
    return [int(word) for word in listed.split()]


def wait_for(what: Callable[[], bool], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_when_a_command_is_interrupted_or_killed_then_no_process_is_left(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "cli.main", "bench", "raw", "--sizes", "64", "--seconds", "60"]
    # Started in the background, these tests have inherited that Ctrl-C is ignored, and would pass it on.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        signal.signal(signal.SIGINT, before)
        try:
            # the sender and its receivers, beside multiprocessing's own tracker
            wait_for(lambda: len(children_of(process.pid)) >= 4)
            children = children_of(process.pid)
            process.send_signal(number)
            process.wait(30)
        finally:
            process.kill()
        wait_for(lambda: not any(is_running(pid) for pid in children))
        if number is signal.SIGINT:
            assert process.returncode == 130
            assert process.stderr is not None
            assert b"interrupted" in process.stderr.read()
