"""Did every call take effect at one moment between its beginning and its end, as on a single machine?

Two checks of a history of operations (``docs/testing.md``).

*Witness.* The timestamps say in which order everything is claimed to have happened. That order is replayed
on one machine: every reply must come out again, and no operation may stand before one that had returned when
it was called. Linear in the number of operations.

*Black box.* Timestamps are not believed. A search (Wing and Gong; with Lowe's just-in-time points and cache)
looks for any order that explains the replies. Exponential at worst, hence for samples, with a limit.

An operation whose outcome is unknown may have taken effect at any moment after its call, or never.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias, cast

import msgspec

from rsm import envelope
from rsm.errors import Rejected
from rsm.journal import Journal
from rsm.methods import Catalogue, Method
from rsm.state_machine import Context, GroupView, StateMachine

NEVER: Final = (1 << 63) - 1
PROBLEMS_MAX: Final = 20
RAW: Final = "apply"
_ENCODER: Final = msgspec.msgpack.Encoder()
_REPLIES: Final = msgspec.msgpack.Decoder(envelope.Reply)


class Outcome(StrEnum):
    OK = "ok"
    REJECTED = "rejected"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Operation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One call, as its caller saw it. ``ts``: where it was executed, or, of a query, the last slot that the
    state it read contains; 0 if that is not known. ``client`` and ``request`` name a command for good."""

    client: int
    request: int
    method: str
    arguments: bytes  # what ``Method.bind`` gives, as MessagePack
    call_ns: int
    return_ns: int = NEVER
    outcome: Outcome = Outcome.UNKNOWN
    ts: int = 0
    reply: bytes = b""


class Executed(NamedTuple):
    """A command in the order in which replicas executed it, and the group's time there."""

    ts: int
    client: int
    request: int
    method: str
    arguments: bytes
    time_ns: int = 0


class Installed(NamedTuple):
    """A view in the same order, for machines that look at views."""

    ts: int
    view: GroupView
    time_ns: int = 0
    locks_only: bool = False


class Passed(NamedTuple):
    """A slot in the same order with a message that was no command, or no new one: an alarm may go off."""

    ts: int
    time_ns: int = 0


Slot: TypeAlias = Executed | Installed | Passed


class Judgement(StrEnum):
    LINEARIZABLE = "linearizable"
    VIOLATION = "violation"
    GAVE_UP = "gave up"


class Verdict(msgspec.Struct, frozen=True):
    """``states``: how many configurations were looked at."""

    judgement: Judgement
    explanation: str = ""
    states: int = 0


Key: TypeAlias = Callable[[str, tuple[Any, ...]], Hashable]


def outcome_of(reply: bytes) -> Outcome | None:
    """What a reply says; None: it was refused, and not executed."""
    said: envelope.Reply = _REPLIES.decode(reply)
    match said:
        case envelope.Ok():
            return Outcome.OK
        case envelope.RejectedReply():
            return Outcome.REJECTED
        case envelope.FailedReply():
            return Outcome.FAILED
        case envelope.RefusedReply():
            return None


def same_reply(one: bytes, other: bytes) -> bool:
    """The text of a failure may depend on the process; its kind may not."""
    if one == other:
        return True
    first, second = _REPLIES.decode(one), _REPLIES.decode(other)
    return (
        isinstance(first, envelope.FailedReply)
        and isinstance(second, envelope.FailedReply)
        and first.kind == second.kind
    )


def describe_reply(reply: bytes) -> str:
    said: envelope.Reply = _REPLIES.decode(reply)
    match said:
        case envelope.Ok(value):
            return _shorten(repr(msgspec.msgpack.decode(value)))
        case envelope.RejectedReply(message, detail):
            return _shorten(f"Rejected({message!r}, {detail!r})")
        case envelope.FailedReply(kind, message):
            return _shorten(f"{kind}({message!r})")
        case envelope.RefusedReply(refusal, _):
            return f"Refused({refusal.name})"


def describe_call(method: str, arguments: bytes) -> str:
    values = msgspec.msgpack.decode(arguments)
    inside = ", ".join(map(repr, values[1:])) if isinstance(values, list) else repr(values)
    return _shorten(f"{method}({inside})")


def describe(operation: Operation) -> str:
    reply = f" → {describe_reply(operation.reply)}" if operation.reply else " (outcome unknown)"
    name = f"client {operation.client}, request {operation.request}"
    return f"{describe_call(operation.method, operation.arguments)}{reply} [{name}]"


def _shorten(text: str, most: int = 200) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


class Model:
    """What a machine answers when nothing is between it and its caller: no ring, no sessions, no executor."""

    def __init__(self, machine_type: type[StateMachine]) -> None:
        self.catalogue = Catalogue(machine_type)
        self.machine_type = machine_type
        self._methods = {**self.catalogue.commands, **self.catalogue.queries}
        self._decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {
            name: msgspec.msgpack.Decoder(method.arguments) for name, method in self._methods.items()
        }
        self._decoders.setdefault(RAW, msgspec.msgpack.Decoder(bytes))

    def is_query(self, name: str) -> bool:
        return name in self.catalogue.queries

    def is_atomic(self, name: str) -> bool:
        method = self.catalogue.commands.get(name)
        return method is not None and method.mark.atomic

    def bind(self, name: str, arguments: bytes) -> Any:
        return self._decoders[name].decode(arguments)

    def call(self, machine: StateMachine, name: str, bound: Any) -> bytes:
        """The reply. What an atomic command did before it raised is left to who called."""
        method: Method | None = self._methods.get(name)
        try:
            if method is None:
                value: Any = machine.apply(bound)
            else:
                value = method.invoke(machine, bound, self.machine_type.version)
            return envelope.encode_reply(envelope.OkEncoded(value))
        except Rejected as refusal:
            try:
                return envelope.encode_reply(envelope.RejectedReply(refusal.message, refusal.detail))
            except (TypeError, ValueError, OverflowError):
                return envelope.encode_reply(envelope.FailedReply("TypeError", ""))
        except Exception as error:  # noqa: BLE001 - whatever a command raises is its result
            return envelope.encode_reply(envelope.FailedReply(type(error).__name__, str(error)[:100]))


# -- by timestamps -------------------------------------------------------------------------------


def witness(
    operations: Iterable[Operation],
    machine_type: type[StateMachine],
    *,
    executed: Iterable[Slot] | None = None,
) -> list[str]:
    """What is wrong with a history, at most twenty sentences; none: it is linearizable.

    ``executed`` is everything that replicas executed, in any order. Without it the operations themselves are
    taken for all there was, which is right only if no operation of unknown outcome took effect, and the
    machine has no alarms.
    """
    return _Witness(list(operations), machine_type).check(None if executed is None else list(executed))


class _Raised(Exception):
    """An atomic command has raised, and is to be undone."""


class _Witness:
    def __init__(self, operations: list[Operation], machine_type: type[StateMachine]) -> None:
        self.model = Model(machine_type)
        self.problems: list[str] = []
        is_query = self.model.is_query
        self.commands = [each for each in operations if not is_query(each.method)]
        self.reads = [each for each in operations if is_query(each.method) and each.reply]
        self.slots: dict[tuple[int, int], Executed] = {}

    def fail(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)

    def check(self, executed: list[Slot] | None) -> list[str]:
        order = self._from_operations() if executed is None else sorted(executed, key=lambda each: each.ts)
        self._check_once(order)
        self._check_found()
        self._replay(order)
        self._check_real_time()
        return self.problems

    def _from_operations(self) -> list[Slot]:
        known = [each for each in self.commands if each.ts]
        known.sort(key=lambda each: each.ts)
        return [Executed(each.ts, each.client, each.request, each.method, each.arguments) for each in known]

    def _check_once(self, order: Sequence[Slot]) -> None:
        """A slot has one command, and a request one slot."""
        last = 0
        for each in order:
            if not isinstance(each, Executed):
                continue
            if each.ts == last:
                self.fail(f"slot {each.ts} has two commands")
            last = each.ts
            name = (each.client, each.request)
            first = self.slots.setdefault(name, each)
            if first is not each:
                self.fail(
                    f"request {each.request} of client {each.client}, {_call_of(each)}, was executed twice:"
                    f" at {first.ts} and at {each.ts}"
                )

    def _check_found(self) -> None:
        """Every answer is the answer to something that was executed, where it says."""
        for each in self.commands:
            found = self.slots.get((each.client, each.request))
            if found is None:
                if each.outcome is not Outcome.UNKNOWN:
                    self.fail(f"{describe(each)} was answered, but nowhere executed")
            elif each.ts and each.ts != found.ts:
                self.fail(f"{describe(each)} says it was executed at {each.ts}; that was at {found.ts}")
            elif (each.method, each.arguments) != (found.method, found.arguments):
                self.fail(f"{describe(each)} was executed at {found.ts} as {_call_of(found)}")

    def _replay(self, order: Sequence[Slot]) -> None:
        model = self.model
        machine = model.machine_type()
        context = machine.context = Context()
        journal = Journal(ignored=("_context",))
        if any(method.mark.atomic for method in model.catalogue.commands.values()):
            journal.adopt(machine)
        answers = {(each.client, each.request): each for each in self.commands if each.reply}
        reads = iter(sorted(self.reads, key=lambda each: each.ts))
        read = next(reads, None)
        alarm_at = self._alarm(machine)
        for each in order:
            while read is not None and read.ts < each.ts:
                self._replay_read(machine, read)
                read = next(reads, None)
            context.timestamp, context.time_ns = each.ts, max(context.time_ns, each.time_ns)
            if isinstance(each, Installed):
                context.view, context.session = each.view, 0
                if not each.locks_only:
                    self._look(machine, each.view)
                    alarm_at = self._alarm(machine)
                continue
            if context.time_ns >= alarm_at:
                context.session = 0
                with suppress(Exception):  # nobody's answer
                    machine.on_alarm()
                alarm_at = self._alarm(machine)
            if isinstance(each, Passed):
                continue
            context.session = each.client
            reply = self._execute(machine, each, journal)
            alarm_at = self._alarm(machine)
            said = answers.pop((each.client, each.request), None)
            if said is not None and not same_reply(said.reply, reply):
                self.fail(f"slot {each.ts}: {describe(said)}; one machine gives {describe_reply(reply)}")
        context.session = 0
        while read is not None:
            self._replay_read(machine, read)
            read = next(reads, None)

    def _execute(self, machine: StateMachine, each: Executed, journal: Journal) -> bytes:
        model, reply = self.model, b""
        bound = model.bind(each.method, each.arguments)
        atomic = model.is_atomic(each.method)
        try:
            with journal.recording(machine) if atomic else nullcontext():
                reply = model.call(machine, each.method, bound)
                if atomic and outcome_of(reply) is not Outcome.OK:
                    raise _Raised
        except _Raised:
            pass
        except Exception as error:  # noqa: BLE001 - what cannot be undone has failed, as it does in replicas
            reply = envelope.encode_reply(envelope.FailedReply(type(error).__name__, ""))
        return reply

    @staticmethod
    def _alarm(machine: StateMachine) -> int:
        with suppress(Exception):
            at = machine.alarm()
            if type(at) is int:
                return at
        return NEVER

    @staticmethod
    def _look(machine: StateMachine, view: GroupView) -> None:
        with suppress(Exception):  # a result like any other, and nobody's answer
            machine.on_view(view)

    def _replay_read(self, machine: StateMachine, read: Operation) -> None:
        machine.context.timestamp = max(machine.context.timestamp, read.ts)
        reply = self.model.call(machine, read.method, self.model.bind(read.method, read.arguments))
        if not same_reply(read.reply, reply):
            self.fail(
                f"{describe(read)}, read at slot {read.ts}; one machine gives {describe_reply(reply)} there"
            )

    def _check_real_time(self) -> None:
        """Who returned before another was called stands before it."""
        placed = list(self._placed())
        returned = sorted((each for each in placed if each[1] < NEVER), key=lambda each: each[1])
        before = 0
        latest: tuple[int, Operation] | None = None
        for call_ns, _, ts, operation in sorted(placed, key=lambda each: each[0]):
            while before < len(returned) and returned[before][1] < call_ns:
                if latest is None or returned[before][2] > latest[0]:
                    latest = (returned[before][2], returned[before][3])
                before += 1
            if latest is None:
                continue
            # A query stands behind the slot it read.
            if ts < latest[0] or (ts == latest[0] and not self.model.is_query(operation.method)):
                self.fail(
                    f"{describe(operation)} stands at {ts}; when it was called, {describe(latest[1])} at"
                    f" {latest[0]} had returned"
                )

    def _placed(self) -> Iterator[tuple[int, int, int, Operation]]:
        """Call, return, slot: of all that have a place in the order."""
        for each in self.commands:
            found = self.slots.get((each.client, each.request))
            if found is not None:
                yield each.call_ns, each.return_ns, found.ts, each
        for each in self.reads:
            yield each.call_ns, each.return_ns, each.ts, each


def _call_of(each: Executed) -> str:
    return describe_call(each.method, each.arguments)


# -- by search -----------------------------------------------------------------------------------


def black_box(
    operations: Iterable[Operation],
    machine_type: type[StateMachine],
    *,
    states_max: int = 100_000,
    key: Key | None = None,
) -> Verdict:
    """Whether any order explains the replies; timestamps are not looked at.

    ``key(method, arguments)`` says what an operation is about, where operations on different keys do not
    affect each other: each key's history is then searched by itself, which is far cheaper. A machine that
    uses its context cannot be judged so, for nothing tells what the context was; nor can one with alarms.
    """
    if machine_type.alarm is not StateMachine.alarm:
        return Verdict(Judgement.GAVE_UP, "the machine changes with time alone")
    model = Model(machine_type)
    parts: dict[Hashable, list[Operation]] = {}
    for each in operations:
        about: Hashable = None
        if key is not None:
            bound = model.bind(each.method, each.arguments)
            values = (bound,) if isinstance(bound, bytes) else msgspec.structs.astuple(bound)
            about = key(each.method, values)
        parts.setdefault(about, []).append(each)
    states = 0
    gave_up = ""
    for part in parts.values():
        verdict = _Search(model, part, states_max).run()
        states += verdict.states
        if verdict.judgement is Judgement.VIOLATION:
            return Verdict(Judgement.VIOLATION, verdict.explanation, states)
        gave_up = gave_up or verdict.explanation
    return Verdict(Judgement.GAVE_UP if gave_up else Judgement.LINEARIZABLE, gave_up, states)


class _UsesContext(BaseException):
    """Not an ``Exception``: no machine may take it for a result."""


class _NoContext:
    def __getattr__(self, name: str) -> Any:
        raise _UsesContext(name)


class _Configuration(NamedTuple):
    """Before the return number ``at``, with the open operations of ``done`` (by bit) taken effect."""

    at: int
    done: int
    state: int


class _Search:
    """Depth first. An operation takes effect as late as its return allows, and earlier only where that
    return is explained by it: what is unknown and explains nothing is hardly touched."""

    def __init__(self, model: Model, operations: list[Operation], states_max: int) -> None:
        self.model = model
        self.states_max = states_max
        self.operations = [each for each in operations if each.reply or not model.is_query(each.method)]
        self.bound = [model.bind(each.method, each.arguments) for each in self.operations]
        self.returns: list[int] = []
        self.open_at: list[tuple[int, ...]] = []  # before each return: who has been called and not returned
        self.bits: list[int] = [0] * len(self.operations)
        self._lay_out()
        self.states: list[bytes] = []
        self._known: dict[bytes, int] = {}
        self._steps: dict[tuple[int, int], tuple[bool, int]] = {}
        self._machine: StateMachine = self._new()
        self._at = self._intern()

    def _lay_out(self) -> None:
        """Calls and returns in order of time; at equal times calls come first, so that they overlap. Bits are
        given anew after a return: a configuration stays small however long the history."""
        events: list[tuple[int, int, int]] = []
        for index, each in enumerate(self.operations):
            events.append((each.call_ns, 0, index))
            if each.outcome is not Outcome.UNKNOWN:
                events.append((each.return_ns, 1, index))
        opened: dict[int, None] = {}
        free: list[int] = []
        used = 0
        for _, is_return, index in sorted(events):
            if is_return:
                self.returns.append(index)
                self.open_at.append(tuple(opened))
                del opened[index]
                free.append(self.bits[index])
                continue
            opened[index] = None
            if not free:
                free.append(1 << used)
                used += 1
            self.bits[index] = free.pop()

    def run(self) -> Verdict:
        try:
            return self._run()
        except _UsesContext as used:
            return Verdict(Judgement.GAVE_UP, f"the machine uses context.{used}")
        except Exception as error:  # noqa: BLE001 - of snapshot() or restore(): nothing to search with
            return Verdict(Judgement.GAVE_UP, f"the machine's state: {type(error).__name__}: {error}")

    def _run(self) -> Verdict:
        first = self._advance(_Configuration(0, 0, self._at))
        if first.at == len(self.returns):
            return Verdict(Judgement.LINEARIZABLE)
        seen = {first: None}
        stack = [(first, self._candidates(first))]
        while stack:
            configuration, candidates = stack[-1]
            index = next(candidates, None)
            if index is None:
                stack.pop()
                continue
            fits, state = self._step(configuration, index)
            if not fits:
                continue
            reached = self._advance(
                _Configuration(configuration.at, configuration.done | self.bits[index], state)
            )
            if reached.at == len(self.returns):
                return Verdict(Judgement.LINEARIZABLE, "", len(seen))
            if reached in seen:
                continue
            if len(seen) >= self.states_max:
                return Verdict(Judgement.GAVE_UP, f"more than {self.states_max} states", len(seen))
            seen[reached] = None
            stack.append((reached, self._candidates(reached)))
        return Verdict(Judgement.VIOLATION, self._explain(seen), len(seen))

    def _advance(self, configuration: _Configuration) -> _Configuration:
        at, done, state = configuration
        while at < len(self.returns) and done & self.bits[self.returns[at]]:
            done &= ~self.bits[self.returns[at]]
            at += 1
        return _Configuration(at, done, state)

    def _candidates(self, configuration: _Configuration) -> Iterator[int]:
        """What may take effect next: first who has to return, then who is open. A query that fits may as
        well come now: it changes nothing, so no other order need be tried."""
        opened = [
            index for index in self.open_at[configuration.at] if not configuration.done & self.bits[index]
        ]
        commands: list[int] = []
        for index in opened:
            if not self.model.is_query(self.operations[index].method):
                commands.append(index)
            elif self._step(configuration, index)[0]:
                yield index
                return
        due = self.returns[configuration.at]
        if due in commands:
            yield due
        for index in commands:
            if index != due:
                yield index

    def _step(self, configuration: _Configuration, index: int) -> tuple[bool, int]:
        """Whether the operation fits the state, and the state after it."""
        step = (configuration.state, index)
        known = self._steps.get(step)
        if known is None:
            known = self._steps[step] = self._take(*step)
        return known

    def _call(self, state: int, index: int) -> bytes:
        """In a machine that has this state; which it has afterwards is not known."""
        if self._at != state:
            self._machine = self._new()
            self._machine.restore([self.states[state]])
        self._at = -1
        return self.model.call(self._machine, self.operations[index].method, self.bound[index])

    def _take(self, state: int, index: int) -> tuple[bool, int]:
        operation = self.operations[index]
        reply = self._call(state, index)
        fits = not operation.reply or same_reply(operation.reply, reply)
        if self.model.is_query(operation.method):
            self._at = state
            return fits, state
        if self.model.is_atomic(operation.method) and outcome_of(reply) is not Outcome.OK:
            return fits, state
        if not fits:
            return False, state
        self._at = self._intern()
        return True, self._at

    def _new(self) -> StateMachine:
        machine = self.model.machine_type()
        machine.context = cast(Context, _NoContext())
        return machine

    def _intern(self) -> int:
        data = b"".join(self._machine.snapshot())
        known = self._known.setdefault(data, len(self.states))
        if known == len(self.states):
            self.states.append(data)
        return known

    def _explain(self, seen: Iterable[_Configuration]) -> str:
        """The first return that no order explains; the history before it is linearizable."""
        furthest = max(each.at for each in seen)
        index = self.returns[furthest]
        stuck = [each.state for each in seen if each.at == furthest]
        answers = dict.fromkeys(describe_reply(self._call(state, index)) for state in stuck[:100])
        others = [describe(self.operations[other]) for other in self.open_at[furthest] if other != index]
        during = "; ".join(others[:8]) or "nothing"
        return (
            f"no order explains {describe(self.operations[index])}; everything that returned before it can be"
            f" explained, and then the answer would be {' or '.join(list(answers)[:5])}. Under way with it:"
            f" {during}"
        )
