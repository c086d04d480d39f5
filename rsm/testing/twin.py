"""The same history in another process, whose sets have another order.

All sites of a simulation live in one process, hence under one ``PYTHONHASHSEED``: a command that goes by the
order of a set would do the same at each of them, and not in a real group. So the history of each run is
executed once more elsewhere.
"""

import os
import subprocess
import sys
from importlib import import_module
from operator import attrgetter
from runpy import run_path
from struct import Struct as Layout
from types import TracebackType
from typing import IO, Any, Final, Self

import msgspec

from ordering.effects import Delivery, InstallView, Tick
from ordering.views import LockTable, View
from rsm.envelope import Language
from rsm.executor import Executor
from rsm.linearizability import describe_reply, same_reply
from rsm.methods import Catalogue
from rsm.state_machine import StateMachine
from rsm.testing.judge import Judge, states_of

_LENGTH: Final = Layout(">I")
_MAIN: Final = "from rsm.testing.twin import main; main()"
_HASH_SEEDS: Final = ("101", "102")
_WAIT_SECONDS: Final = 60
_OPTIONS: Final = ("-W", "ignore")


class Who(msgspec.Struct):
    """Where a machine's class is."""

    module: str
    name: str
    file: str


class Step(msgspec.Struct):
    """One of them."""

    delivery: Delivery | None = None
    view: InstallView | None = None
    tick: Tick | None = None
    boots: list[bytes] = []  # of the view's members: as numbers they are too long for MessagePack


class History(msgspec.Struct):
    steps: list[Step]
    slots: list[int]  # behind which the state is compared


class Reading(msgspec.Struct):
    """What came of a history, or why nothing did."""

    replies: dict[int, bytes] = {}
    states: dict[int, bytes] = {}
    error: str = ""


def where(machine: type[StateMachine]) -> Who | None:
    """None if another process cannot import it."""
    if "<" in machine.__qualname__:
        return None
    module = sys.modules.get(machine.__module__)
    return Who(machine.__module__, machine.__qualname__, getattr(module, "__file__", None) or "")


class Twin:
    """The other process. It is started once, and given one history after the other."""

    def __init__(self, who: Who) -> None:
        seed = next(each for each in _HASH_SEEDS if each != os.environ.get("PYTHONHASHSEED"))
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        self._process = subprocess.Popen(
            [sys.executable, *_OPTIONS, "-c", _MAIN],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._who = who
        self._introduced = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(_WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def compare(self, judge: Judge) -> str:
        """Tell the judge where the twin differs. Returns why it could not, if so."""
        steps = [_step(heard) for _, heard in sorted(judge.history.items(), key=lambda item: item[0])]
        try:
            reading = self._ask(History(steps, list(judge.states)))
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            return f"the process that executes with another order of sets has died: {error}"
        if reading.error:
            return reading.error
        for ts, reply in reading.replies.items():
            known = judge.log.get(ts)
            if known is not None and not same_reply(known.reply, reply):
                judge.differ(
                    ts,
                    f"answered {describe_reply(known.reply)} here, {describe_reply(reply)} under another"
                    " PYTHONHASHSEED; does it go by the order of a set?",
                )
        for ts, state in reading.states.items():
            if judge.states[ts].machine != state:
                judge.differ(
                    ts,
                    "the state is another under another PYTHONHASHSEED; does it go by the order of a set?",
                )
        return ""

    def _ask(self, history: History) -> Reading:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if not self._introduced:
            self._introduced = True
            _write(self._process.stdin, self._who)
        _write(self._process.stdin, history)
        return msgspec.msgpack.decode(_read(self._process.stdout), type=Reading)


def _step(heard: Delivery | InstallView | Tick) -> Step:
    match heard:
        case Delivery():
            return Step(delivery=heard)
        case InstallView(view=view):
            members = tuple(msgspec.structs.replace(member, boot=0) for member in view.members)
            plain = msgspec.structs.replace(view, members=members, locks=LockTable())  # no machine sees locks
            boots = [member.boot.to_bytes(16) for member in view.members]
            return Step(view=msgspec.structs.replace(heard, view=plain), boots=boots)
        case Tick():
            return Step(tick=heard)


def _view_of(step: Step, installed: InstallView) -> View:
    members = tuple(
        msgspec.structs.replace(member, boot=int.from_bytes(boot))
        for member, boot in zip(installed.view.members, step.boots, strict=True)
    )
    return msgspec.structs.replace(installed.view, members=members)


def _write(stream: IO[bytes], value: object) -> None:
    data = msgspec.msgpack.encode(value)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes:
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError("nothing came")
    (length,) = _LENGTH.unpack(head)
    return stream.read(length)


# -- in the other process ------------------------------------------------------------------------


def main() -> None:
    """Answer histories until there are no more. What the machine prints goes to stderr."""
    source, out = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        who = msgspec.msgpack.decode(_read(source), type=Who)
    except EOFError:
        return
    try:
        catalogue: Catalogue | None = Catalogue(_load(who))
        failure = ""
    except Exception as error:  # noqa: BLE001 - said to who asked
        catalogue, failure = None, f"sets were not tried in another order: {type(error).__name__}: {error}"
    while True:
        try:
            history = msgspec.msgpack.decode(_read(source), type=History)
        except EOFError:
            return
        _write(out, Reading(error=failure) if catalogue is None else execute(catalogue, history))


def _load(who: Who) -> type[StateMachine]:
    if who.module == "__main__":
        root: Any = type("Main", (), run_path(who.file, run_name="__rsm_twin__"))
    else:
        root = import_module(who.module)
    machine: type[StateMachine] = attrgetter(who.name)(root)
    return machine


def execute(catalogue: Catalogue, history: History) -> Reading:
    executor = Executor(catalogue.machine(), catalogue, Language(catalogue))
    reading, slots = Reading(), set(history.slots)
    for step in history.steps:
        if step.view is not None:
            view = step.view
            installed = _view_of(step, view)
            executor.install(view.ts, view.chain, installed, view.time, locks_only=view.locks_only)
        elif step.tick is not None:
            executor.pass_slot(step.tick.ts, step.tick.time)
        elif step.delivery is not None:
            first = step.delivery.first_ts
            reading.replies.update(enumerate(executor.deliver(step.delivery), first))
            if executor.applied in slots:
                reading.states[executor.applied] = states_of(executor)[0]
    return reading
