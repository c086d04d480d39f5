"""Simulated clients. Each makes one call at a time, and notes when it called and what came back.

A *resident* is part of the program at one site: its calls go through that program's ``Calls``, and die with
it. A *traveller* has a session of its own, asks any site, and asks another one under the same number when no
answer comes in time; now and then it asks two at once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any, Final, TypeAlias

import msgspec

from ordering.config import MS
from ordering.errors import MessageTooLarge, SubmitError
from ordering.simulator.cluster import Cluster
from rsm import envelope
from rsm.calls import Call
from rsm.errors import CallError, InvalidCall, Refusal, Refused, RsmError
from rsm.linearizability import NEVER, RAW, Operation, Outcome, describe_call, outcome_of
from rsm.methods import Catalogue
from rsm.sessions import Answer
from rsm.testing.hosting import Host

PATIENCE: Final = 400 * MS
RETRY: Final = 30 * MS
HEDGE: Final = 0.15  # the share of requests that a traveller sends twice

MadeCall: TypeAlias = tuple[str, Any]
Workload: TypeAlias = Callable[[Random], Any] | Iterable[MadeCall]


class Bound:
    """A call with its arguments checked."""

    __slots__ = ("arguments", "is_query", "method", "value")

    def __init__(self, catalogue: Catalogue, made: MadeCall) -> None:
        name, given = made
        args, named = ((), given) if isinstance(given, dict) else (tuple(given), {})
        self.method = name
        self.is_query = name in catalogue.queries
        self.value: Any
        if name == RAW and name not in catalogue.commands:
            if not catalogue.takes_raw:
                raise InvalidCall(f"{catalogue.name}: takes no raw commands")
            self.value = bytes(*args)
        else:
            method = catalogue.query(name) if self.is_query else catalogue.command(name)
            self.value = method.bind(args, named)
        self.arguments = msgspec.msgpack.encode(self.value)


def calls_of(workload: Workload, rng: Random) -> Iterator[MadeCall]:
    """A client's calls: of a function of chance, one at a time or all of them; or the same for every one."""
    if not callable(workload):
        yield from workload
        return
    first = workload(rng)
    if not isinstance(first, tuple):
        yield from first
        return
    yield first
    while True:
        yield workload(rng)


class Client:
    """What both kinds do: think, call, note."""

    def __init__(self, crew: "Crew", number: int, rng: Random) -> None:
        self.crew = crew
        self.number = number
        self.rng = rng
        self.cluster = crew.cluster
        self.calls = calls_of(crew.workload, rng)
        self.current: Bound | None = None
        self.called_at = 0
        self.reads = 0

    def think(self) -> None:
        self.current = None
        self.cluster.clock.after(1 + int(self.rng.expovariate(1.0) * self.crew.think_ns), self._go_on)

    def _go_on(self) -> None:
        made = next(self.calls, None) if self.crew.active else None
        if made is not None:
            self.current = Bound(self.crew.catalogue, made)
            self.called_at = self.cluster.clock.now
            self.crew.submitted += 1
            self.begin(self.current)

    def begin(self, bound: Bound) -> None:
        raise NotImplementedError

    @property
    def is_waiting(self) -> bool:
        return self.current is not None

    def note(self, bound: Bound, client: int, request: int, answer: Answer | None) -> None:
        """An answer, or None: nobody knows."""
        if answer is not None and not answer.reply:
            name = describe_call(bound.method, bound.arguments)
            self.crew.complaints.append(f"{name} at slot {answer.ts} was answered with nothing at all")
            answer = None
        outcome = Outcome.UNKNOWN if answer is None else outcome_of(answer.reply)
        if outcome is None:
            self.crew.refused += 1
        else:
            self.crew.operations.append(self._operation(bound, client, request, answer, outcome))

    def _operation(
        self, bound: Bound, client: int, request: int, answer: Answer | None, outcome: Outcome
    ) -> Operation:
        if bound.is_query:
            self.reads += 1
            client, request = -self.number, self.reads
        return Operation(
            client=client,
            request=request,
            method=bound.method,
            arguments=bound.arguments,
            call_ns=self.called_at,
            return_ns=NEVER if answer is None else self.cluster.clock.now,
            outcome=outcome,
            ts=0 if answer is None else answer.ts,
            reply=b"" if answer is None else answer.reply,
        )

    def under_way(self) -> Operation | None:
        """A command that was sent and has no answer."""
        bound, (client, request) = self.current, self.sent_as()
        if bound is None or bound.is_query or not client:
            return None
        return self._operation(bound, client, request, None, Outcome.UNKNOWN)

    def sent_as(self) -> tuple[int, int]:
        """Session and number of the command under way."""
        raise NotImplementedError


class Resident(Client):
    """It waits for as long as its program lives."""

    def __init__(self, crew: "Crew", number: int, rng: Random, host: Host) -> None:
        super().__init__(crew, number, rng)
        self.host = host
        self._call: Call | None = None
        host.residents.append(self)

    def begin(self, bound: Bound) -> None:
        if not self.host.is_up:
            self.cluster.clock.after(RETRY, partial(self._retry, bound))
            return
        self.host.loop.call_soon(self._send, bound)

    def _retry(self, bound: Bound) -> None:
        if self.current is bound:
            self.begin(bound)

    def _send(self, bound: Bound) -> None:
        if self.current is not bound:
            return
        calls = self.host.calls
        try:
            if bound.is_query:
                self.host.query(bound.value, partial(self._read, bound))
                return
            future = calls.execute(bound.value)
        except SubmitError:
            self.crew.refused += 1
            self.think()
            return
        self._call = calls.latest
        future.add_done_callback(partial(self._done, bound))

    def _done(self, bound: Bound, future: Any) -> None:
        try:
            answer = future.result()
        except SubmitError:
            self.crew.refused += 1  # never sent
            self._call = None
            self.think()
        except RsmError:
            self.died()
        else:
            self._answered(bound, answer)

    def _read(self, bound: Bound, answer: Answer | None) -> None:
        if answer is not None:
            self._answered(bound, answer)
        elif self.current is bound:
            self.cluster.clock.after(RETRY, partial(self._retry, bound))

    def _answered(self, bound: Bound, answer: Answer) -> None:
        if self.current is bound:
            self.note(bound, *self.sent_as(), answer)
            self._call = None
            self.think()

    def sent_as(self) -> tuple[int, int]:
        return (0, 0) if self._call is None else (self._call.session, self._call.number)

    def died(self) -> None:
        """What had a number may have been executed, or may still be."""
        bound, (session, number) = self.current, self.sent_as()
        self._call = None
        if bound is None:
            return
        if number:
            self.note(bound, session, number, None)
        self.think()


class Traveller(Client):
    """It never gives up."""

    def __init__(self, crew: "Crew", number: int, rng: Random) -> None:
        super().__init__(crew, number, rng)
        self.session = 0
        self.request = 0

    def sent_as(self) -> tuple[int, int]:
        return self.session, self.request

    def begin(self, bound: Bound) -> None:
        self.request += 1
        self._ask(bound)
        if self.session and not bound.is_query and self.rng.random() < HEDGE:
            self._ask_one(bound)

    def _ask(self, bound: Bound) -> None:
        if self.current is bound:
            self._ask_one(bound)
            patience = int(PATIENCE * (1 + self.rng.random()))
            self.cluster.clock.after(patience, partial(self._ask, bound))

    def _ask_one(self, bound: Bound) -> None:
        up = [host for host in self.crew.hosts if host.is_up]
        if up:
            host = self.rng.choice(up)
            host.loop.call_soon(self._send, host, bound, self.session)

    def _send(self, host: Host, bound: Bound, session: int) -> None:
        if self.current is not bound:
            return
        try:
            if bound.is_query:
                host.query(bound.value, partial(self._read, bound))
                return
            if not session:
                host.calls.send(envelope.OPEN).add_done_callback(partial(self._opened, bound))
                return
            message = host.language.encode(session, self.request, self.request - 1, bound.value)
            host.calls.send(message).add_done_callback(partial(self._done, bound, session))
        except SubmitError:
            return  # patience

    def _opened(self, bound: Bound, future: Any) -> None:
        if self.session or self.current is not bound:
            return
        try:
            self.session = envelope.session_of(future.result().reply)
        except (CallError, RsmError, SubmitError):
            return
        self.request = 1
        self._ask_one(bound)

    def _read(self, bound: Bound, answer: Answer | None) -> None:
        if self.current is bound and answer is not None:
            self.note(bound, 0, 0, answer)
            self.think()

    def _done(self, bound: Bound, session: int, future: Any) -> None:
        if self.current is not bound or session != self.session:
            return
        try:
            answer = future.result()
        except MessageTooLarge:
            self.crew.refused += 1
            self.think()
            return
        except (RsmError, SubmitError):
            return  # patience: another site will know
        try:
            if answer.reply:
                envelope.value_of(answer.reply)
        except Refused as refused:
            self._refused(bound, refused.refusal)
        except CallError:
            self._answered(bound, answer)
        else:
            self._answered(bound, answer)

    def _answered(self, bound: Bound, answer: Answer) -> None:
        self.note(bound, self.session, self.request, answer)
        self.think()

    def _refused(self, bound: Bound, refusal: Refusal) -> None:
        match refusal:
            case Refusal.NOT_READY:
                return
            case Refusal.SESSION_UNKNOWN:
                self.note(bound, self.session, self.request, None)
                self.session = 0
            case Refusal.OLD:
                self.crew.complaints.append(
                    f"request {self.request} of session {self.session} has no answer, and was refused as old"
                )
            case _:
                self.crew.refused += 1
        self.think()


class Crew:
    """All clients of a run."""

    def __init__(
        self,
        cluster: Cluster,
        catalogue: Catalogue,
        hosts: Sequence[Host],
        workload: Workload,
        rng: Random,
        *,
        clients: int,
        rate: int,
    ) -> None:
        self.cluster = cluster
        self.catalogue = catalogue
        self.hosts = hosts
        self.workload = workload
        self.think_ns = 1000 * MS * clients // rate
        self.active = True
        self.submitted = 0
        self.refused = 0
        self.operations: list[Operation] = []
        self.complaints: list[str] = []
        self.clients: list[Client] = []
        for number in range(1, clients + 1):
            chance = Random(rng.getrandbits(64))
            if number % 2:
                self.clients.append(Traveller(self, number, chance))
            else:
                host = hosts[number // 2 % len(hosts)]
                self.clients.append(Resident(self, number, chance, host))

    def start(self) -> None:
        for client in self.clients:
            client.think()
