"""What the replicas of a simulated machine did, and whether it was the same everywhere."""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from ordering.effects import Delivery, InstallView, Tick
from ordering.simulator.checkers.base import Checker
from ordering.simulator.process import Process
from ordering.views import SiteId
from rsm.envelope import Language, Unread
from rsm.executor import Executor
from rsm.linearizability import (
    RAW,
    Executed,
    Installed,
    Passed,
    Slot,
    describe_call,
    describe_reply,
    outcome_of,
    same_reply,
)
from rsm.methods import Catalogue
from rsm.state_machine import GroupView
from rsm.testing.hosting import Host, MachineReplica

DIGEST_BYTES: Final = 12
STATE_BYTES_PER_SLOT: Final = 4096  # of a larger state a digest is taken less often
Heard: TypeAlias = Delivery | InstallView | Tick


class Applied(NamedTuple):
    """A message, and what the first replica that applied it made of it."""

    message: bytes
    reply: bytes
    repeats: int  # the slot where it was executed before, or 0
    time_ns: int
    site: SiteId


class States(NamedTuple):
    """Digests of a replica behind one delivery."""

    machine: bytes
    group: bytes
    first_ts: int
    site: SiteId


class Difference(NamedTuple):
    ts: int
    text: str


def states_of(executor: Executor) -> tuple[bytes, bytes]:
    """The machine's state, and what the replicas keep around it."""
    group, *machine = executor.snapshot()
    digests = []
    for chunks in (machine, [group]):
        digest = blake2b(digest_size=DIGEST_BYTES)
        for chunk in chunks:
            digest.update(chunk)
        digests.append(digest.digest())
    return digests[0], digests[1]


class Judge(Checker):
    """Watches the hosts, and keeps the one history that all must share."""

    name = "machine"

    def __init__(self, catalogue: Catalogue, hosts: dict[str, Host]) -> None:
        super().__init__()
        self.catalogue = catalogue
        self.hosts = hosts
        self.language = Language(catalogue)
        self.log: dict[int, Applied] = {}
        self.history: dict[int, Heard] = {}
        self.states: dict[int, States] = {}
        self.differences: list[Difference] = []
        self._state_bytes = 0

    # -- hosts -----------------------------------------------------------------------------------

    def on_start(self, process: Process, now: int) -> None:
        self.hosts[process.address].process = process

    def on_crash(self, process: Process, now: int) -> None:
        self.hosts[process.address].crash()

    def on_restored(self, process: Process, donor: Process, now: int) -> None:
        if isinstance(process.replica, MachineReplica):
            process.replica.transferred()

    # -- what replicas do ------------------------------------------------------------------------

    def heard(self, effect: InstallView | Tick) -> None:
        self.history.setdefault(effect.ts, effect)

    def applied(self, site: SiteId, delivery: Delivery, replies: list[bytes], executor: Executor) -> None:
        """Compare with who was first. An empty reply is to what the state contained already."""
        self.history.setdefault(delivery.first_ts, delivery)
        time, last = executor.group.time, 0
        for ts, (message, reply) in enumerate(
            zip(delivery.messages, replies, strict=True), delivery.first_ts
        ):
            if not reply:
                continue
            last = ts
            known = self.log.get(ts)
            if known is None:
                self.log[ts] = Applied(message, reply, executor.repeats.get(ts, 0), time, site)
            elif not same_reply(known.reply, reply):
                self.differ(
                    ts,
                    f"site {site} answered {describe_reply(reply)},"
                    f" site {known.site} answered {describe_reply(known.reply)}",
                )
        if last and last % (1 + self._state_bytes // STATE_BYTES_PER_SLOT) == 0:
            self._compare_states(site, delivery.first_ts, last, executor)

    def _compare_states(self, site: SiteId, first: int, last: int, executor: Executor) -> None:
        mine = States(*states_of(executor), first, site)
        known = self.states.setdefault(last, mine)
        if last % 64 == 0 or not self._state_bytes:
            self._state_bytes = sum(map(len, executor.machine.snapshot()))
        if known.machine != mine.machine:
            self.differ(last, f"sites {known.site} and {site} have different states after it")
        elif known.group != mine.group:
            self.differ(last, f"sites {known.site} and {site} differ in sessions or other common state")

    def differ(self, ts: int, text: str) -> None:
        self.differences.append(Difference(ts, text))

    # -- the end ---------------------------------------------------------------------------------

    def divergence(self) -> list[str]:
        """The first slot at which replicas differ; all that comes after it is a consequence."""
        if not self.differences:
            return []
        first = min(self.differences, key=lambda each: each.ts)
        return [f"diverged: first at slot {first.ts}, {self._title(first.ts)}: {first.text}"]

    def _title(self, ts: int) -> str:
        applied = self.log.get(ts)
        read: Any = None if applied is None else self.language.decode(applied.message)
        if type(read) is self.language.execute:
            name, arguments = self._call_of(read.command)
            return f"{self.catalogue.name}.{describe_call(name, arguments)}"
        return type(read).__name__

    def _call_of(self, command: object) -> tuple[str, bytes]:
        if isinstance(command, bytes):
            return RAW, msgspec.msgpack.encode(command)
        method = self.catalogue.by_struct[type(command)]  # type: ignore[index]
        return method.name, msgspec.msgpack.encode(command)

    def order(self) -> Iterator[Slot]:
        """Everything that was executed, repetitions left out as the replicas left them out."""
        for ts, heard in self.history.items():
            if isinstance(heard, InstallView):
                view = GroupView.of(ts, heard.chain, heard.view)
                yield Installed(ts, view, heard.time, heard.locks_only)
            elif isinstance(heard, Delivery):
                for slot in range(ts, ts + len(heard.messages)):
                    yield self._executed(slot) or Passed(slot, heard.time)

    def _executed(self, ts: int) -> Executed | None:
        applied = self.log.get(ts)
        if applied is None or applied.repeats or outcome_of(applied.reply) is None:
            return None
        read = self.language.decode(applied.message)
        assert not isinstance(read, Unread)
        if type(read) is not self.language.execute:
            return None
        name, arguments = self._call_of(read.command)
        return Executed(ts, read.session, read.number, name, arguments, applied.time_ns)
