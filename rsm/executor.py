"""What a delivered message does: session check, execution, reply (``docs/framework.md``).

An executor is a function of the order: the same deliveries give the same replies and the same state at every
replica, and it reaches nothing else. Only what a majority holds is given to it (R10), in the order of the
slots, each once.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from struct import Struct as Layout
from typing import Any, Final

import google_crc32c
import msgspec
from msgspec.structs import astuple

from ordering.effects import Delivery
from ordering.views import SiteId, View, majority_of
from rsm import envelope
from rsm.envelope import (
    REFUSED,
    Activate,
    Announce,
    Barrier,
    Checkpoint,
    Close,
    Language,
    OkEncoded,
    Open,
    Unread,
    encode_ok,
)
from rsm.errors import Diverged, Halted, MachineError, MismatchedMachine, Refusal, Rejected, StateLost
from rsm.feeds import Feed
from rsm.journal import Journal
from rsm.methods import Catalogue
from rsm.sessions import Answer, Session, SessionLimits, Sessions
from rsm.state_machine import Context, GroupView, StateMachine

FORMAT: Final = 1
CHECKPOINT_SLOTS: Final = 4096
CHECKPOINTS_KEPT: Final = 4
RESULT_KEPT: Final = 64  # bytes, on average; of larger results only the checksums are
DEFECTS_KEPT: Final = 100  # kinds of them: an application may make up types of errors
MESSAGE_MAX: Final = 1000  # characters of an exception's text
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{6,}")
_HEADER: Final = Layout(">I")
_HEADER_MAX: Final = 1 << 30
NEVER: Final = (1 << 63) - 1  # an alarm that does not go off

_UNREADABLE: Final = REFUSED[Refusal.UNREADABLE]
_DONE: Final = envelope.encode_reply(OkEncoded(None))


class Announced(msgspec.Struct, frozen=True, array_like=True):
    boot: bytes
    signatures: dict[int, bytes]


class Group(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the replicas have agreed on beside the machine's own state."""

    format: int = FORMAT
    applied: int = 0
    time: int = 0
    digest: int = 0
    machine: str = ""
    version: int = 0
    signature: bytes = b""
    limits: SessionLimits = SessionLimits()
    announced: dict[SiteId, Announced] = {}
    checkpoints: dict[int, dict[SiteId, int]] = {}
    view: GroupView | None = None
    alarm: int | None = None  # when the machine wanted to be woken, NEVER if not; None: it was not asked
    sessions: list[Session] = []

    @property
    def chain(self) -> int:
        """0 before the first view."""
        return 0 if self.view is None else self.view.chain


class Executor:
    """One replica's machine, and everything that is replicated around it."""

    def __init__(self, machine: StateMachine, catalogue: Catalogue, language: Language) -> None:
        self.machine = machine
        self.catalogue = catalogue
        self.language = language
        self.context = machine.context = Context()
        self.group = Group()
        self.sessions = Sessions(self.group.limits)
        self.journal = Journal(ignored=("_context",))
        self._adopt()
        self._failure = b""  # stands for the reply in the digest
        # Of the last delivery: slots of requests that were executed before, and where.
        self.repeats: dict[int, int] = {}
        self.own_checkpoints: dict[int, int] = {}
        self._checkpoint_at = CHECKPOINT_SLOTS
        self._recent: deque[tuple[list[int], Sequence[bytes | int]]] = deque()
        self.defects: dict[str, int] = {}  # exceptions that commands raised here, by method and type
        self._has_alarm = type(machine).alarm is not StateMachine.alarm
        self.alarm_at = NEVER
        self.alarms = 0  # that went off here, and raised nothing
        self._set_alarm()

    @property
    def applied(self) -> int:
        return self.group.applied

    def _adopt(self) -> None:
        """Atomic commands need containers that can be undone."""
        if any(method.mark.atomic for method in self.catalogue.commands.values()):
            self.journal.adopt(self.machine)

    # -- the order -------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> list[bytes]:
        """Apply all messages, and give the reply to each. What comes again, after a restart, is passed over
        and has an empty reply."""
        group = self.group
        self.repeats.clear()
        messages, first = delivery.messages, delivery.first_ts
        last = first + len(messages) - 1
        replies = [b""] * max(min(group.applied, last) + 1 - first, 0)
        if replies:
            messages, first = messages[len(replies) :], first + len(replies)
        group.time = self.context.time_ns = max(group.time, delivery.time)
        while messages:
            self._pass_checkpoint(first)
            until = self._checkpoint_at - first
            self._run(messages[:until], first, delivery, replies)
            messages, first = messages[until:], first + until
        group.applied = max(last, group.applied)
        return replies

    def _run(self, messages: tuple[bytes, ...], first: int, delivery: Delivery, replies: list[bytes]) -> None:
        group, context, time = self.group, self.context, self.group.time
        language, use, run = self.language, self.sessions.use, self._execute
        decode, execute, ask = language.decode, language.execute, language.ask
        most, has_alarm, set_alarm = group.limits.reply_bytes_max, self._has_alarm, self._set_alarm
        executed: list[bytes] = []
        slots: list[int] = []
        digested = 0
        for ts, message in enumerate(messages, first):
            context.timestamp = ts
            if time >= self.alarm_at:
                self._digest(executed[digested:], self._ring(ts))
                digested = len(executed)
            read = decode(message)
            kind = type(read)
            if (kind is execute or kind is Unread) and group.version:
                session, number = read.session, read.number
                found = use(session, number, read.acknowledged, time)
                if isinstance(found, Session):
                    context.session = session
                    reply = run(read.command) if kind is execute else self._read_older(read)
                    if has_alarm:
                        set_alarm()
                    if len(reply) > most:
                        reply = envelope.too_large(len(reply), most)
                    found.keep(number, ts, reply)
                    executed.append(self._failure or reply)
                    slots.append(ts)
                    self._failure = b""
                else:
                    reply = self._repeated(found, ts)
            elif kind is ask:
                owed = ts - delivery.first_ts in delivery.owed and group.version
                reply = self.query(read.query) if owed else b""
            else:
                reply = self._apply_other(read, ts, delivery.source, is_call=bool(delivery.calls))
            replies.append(reply)
        context.session = 0
        self._digest(executed[digested:] if digested else executed)
        if slots:
            large = sum(map(len, executed)) > RESULT_KEPT * len(slots)
            self._recent.append((slots, list(map(google_crc32c.value, executed)) if large else executed))

    def _digest(self, results: Sequence[bytes], rest: bytes = b"") -> None:
        self.group.digest = google_crc32c.extend(self.group.digest, b"".join(results) + rest)

    def _ring(self, ts: int) -> bytes:
        """Call the alarm. What is returned stands for it in the digest: it must go off everywhere."""
        self.context.session = 0
        self._result("on_alarm", self.machine.on_alarm)
        failure, self._failure = self._failure, b""
        self.alarms += not failure
        self._set_alarm()
        return b"alarm %d " % ts + failure

    def _set_alarm(self) -> None:
        """When is the machine to be woken? One that cannot say is not."""
        if not self._has_alarm:
            return
        try:
            at = self.machine.alarm()
            if at is not None and type(at) is not int:
                raise TypeError(f"alarm: {type(at).__name__}, not int or None")
        except Exception as error:  # noqa: BLE001 - a defect of the machine, alike at every replica
            self._failed("alarm", error)
            self._failure, at = b"", None
        self.alarm_at = NEVER if at is None else min(max(at, 0), NEVER)

    def _apply_other(self, read: Any, ts: int, source: SiteId, *, is_call: bool) -> bytes:
        match read:
            case Announce() | Checkpoint() if is_call:
                return _UNREADABLE  # only members speak of themselves
            case Announce():
                return self._announce(read, source)
            case Barrier():
                return _DONE
            case Checkpoint():
                return self._compare(read, source)
            case Open() if self.group.version:
                session = self.sessions.open(self._session_id(ts), self.group.time)
                return envelope.encode_reply(OkEncoded(session))
            case Close(session):
                self.sessions.close(session)
                return _DONE
            case Activate(version):
                return self._activate(version)
            case None:
                return _UNREADABLE
            case _:
                return REFUSED[Refusal.NOT_READY]

    def _session_id(self, ts: int) -> int:
        """A timestamp is unique in its chain; a client may outlive that, and come to the next."""
        name = str(self.group.chain).encode()
        return (ts + int.from_bytes(blake2b(name, digest_size=8).digest())) % (1 << 63)

    def _repeated(self, found: Answer | Refusal, ts: int) -> bytes:
        if isinstance(found, Refusal):
            return REFUSED[found]
        self.repeats[ts] = found.ts
        return found.reply

    def pass_slot(self, ts: int, time: int) -> None:
        """A slot with nothing for the machine in it: the time alone, or nothing at all."""
        group, context = self.group, self.context
        group.applied = context.timestamp = max(group.applied, ts)
        group.time = context.time_ns = max(group.time, time)

    def install(self, ts: int, chain: int, view: View, time: int, *, locks_only: bool) -> None:
        """A view takes its slot, and its place among the commands."""
        group, context = self.group, self.context
        if ts <= group.applied:
            return
        self._pass_checkpoint(ts)
        self.pass_slot(ts, time)
        group.view = context.view = GroupView.of(ts, chain, view)
        group.announced = {
            site: known for site, known in group.announced.items() if site in group.view.addresses
        }
        if locks_only:
            return
        self._result("on_view", lambda: self.machine.on_view(GroupView.of(ts, chain, view)))
        self._failure = b""
        self._set_alarm()

    # -- commands --------------------------------------------------------------------------------

    def _read_older(self, read: Unread) -> bytes:
        """What we cannot read because of an argument that the group's version does not have, the others
        can."""
        version = self.group.version
        if version >= self.catalogue.machine.version:
            return _UNREADABLE
        command = self.catalogue.decode_as_of(read.command, version)
        return _UNREADABLE if command is None else self._execute(command)

    def _execute(self, command: Any) -> bytes:
        if type(command) is bytes:
            return self._result("apply", lambda: self.machine.apply(command))
        method = self.catalogue.by_struct[type(command)]
        version = self.group.version
        if method.mark.since > version:
            # Who does not have the command yet cannot read it; what it says must be said by all.
            return _UNREADABLE
        try:
            if method.is_plain and method.newest <= version:  # most are, and it takes half the time
                return encode_ok(OkEncoded(method.function(self.machine, *astuple(command))))
            if not method.mark.atomic:
                return envelope.encode_reply(
                    OkEncoded(method.invoke(self.machine, command, version)),
                    has_sets=method.has_sets,
                )
            with self.journal.recording(self.machine):
                result = self.journal.presentable(method.invoke(self.machine, command, version))
                return envelope.encode_reply(OkEncoded(result), has_sets=method.has_sets)
        except Exception as error:  # noqa: BLE001 - whatever a command raises is its result
            return self._failed(method.name, error)

    def _result(self, name: str, call: Callable[[], Any]) -> bytes:
        try:
            return envelope.encode_reply(OkEncoded(call()))
        except Exception as error:  # noqa: BLE001 - whatever it raises is its result
            return self._failed(name, error)

    def _failed(self, name: str, error: Exception) -> bytes:
        """As good as the same at every replica: no addresses, and no more text than fits a log line. What
        else a text may depend on, the order of a set say, is kept out of the digest."""
        if isinstance(error, MemoryError | Halted):
            raise error
        if isinstance(error, Rejected):
            try:
                return envelope.encode_reply(envelope.RejectedReply(error.message, error.detail))
            except Exception as unfit:  # noqa: BLE001 - its own, or that of what it has in it
                error = TypeError(f"the detail of Rejected cannot be encoded: {type(unfit).__name__}")
        kind = type(error).__name__
        key = f"{name}: {kind}"
        if key not in self.defects and len(self.defects) >= DEFECTS_KEPT:
            key = "others: others"
        self.defects[key] = self.defects.get(key, 0) + 1
        try:
            words = str(error).encode(errors="backslashreplace").decode()
        except Exception:  # noqa: BLE001 - of a class of the application's
            words = "it has no words"
        text = _ADDRESS.sub("0x…", words)[:MESSAGE_MAX]
        kind = kind.encode(errors="backslashreplace").decode()
        self._failure = kind.encode()
        return envelope.encode_reply(envelope.FailedReply(kind, text))

    # -- versions --------------------------------------------------------------------------------

    def announcement(self, boot: int, limits: SessionLimits) -> bytes:
        """What this replica has to say before its first command."""
        machine, catalogue = self.catalogue.machine, self.catalogue
        return envelope.encode(
            Announce(boot.to_bytes(16, "big"), catalogue.name, catalogue.signatures, machine.version, limits)
        )

    def _announce(self, said: Announce, source: SiteId) -> bytes:
        group = self.group
        if not group.version:
            if said.version not in said.signatures:
                return _UNREADABLE
            group.machine, group.version = said.machine, said.version
            group.signature, group.limits = said.signatures[said.version], said.limits
            self.sessions.limits = group.limits
            self.check_machine()
        group.announced[source] = Announced(said.boot, said.signatures)
        return _DONE

    def _activate(self, version: int) -> bytes:
        group = self.group
        voters = group.view.electorate if group.view is not None else ()
        known = [group.announced.get(site) for site in voters]
        said = [each.signatures.get(version) if each is not None else None for each in known]
        signature = said[0] if said else None
        if version == group.version:
            return _DONE
        if signature is None or version < group.version or said.count(signature) < len(said):
            return REFUSED[Refusal.CANNOT_ACTIVATE]
        group.version, group.signature = version, signature
        self.check_machine()
        return _DONE

    def check_machine(self) -> None:
        """Whether ours is the machine the group runs; to apply anything with another would be to differ."""
        group, catalogue = self.group, self.catalogue
        if not group.version:
            return
        if group.machine != catalogue.name:
            raise MismatchedMachine(
                f"the group runs {group.machine}, this replica has {catalogue.name}; start it with"
                " the machine of its group, or name another group"
            )
        if group.version > catalogue.machine.version:
            raise MismatchedMachine(
                f"the group runs version {group.version} of {group.machine}, this replica can run up to"
                f" {catalogue.machine.version}; upgrade it"
            )
        if catalogue.signature(group.version) != group.signature:
            raise MismatchedMachine(
                f"version {group.version} of {group.machine} has other commands in this replica than in the"
                " group; run the same code, and give changed commands a new version (since=)"
            )

    # -- divergence (R17) ------------------------------------------------------------------------

    def _pass_checkpoint(self, ts: int) -> None:
        """Before the first slot at or behind a checkpoint: note what was computed so far."""
        if ts < self._checkpoint_at:
            return
        reached = ts - ts % CHECKPOINT_SLOTS
        self.own_checkpoints[reached] = self.group.digest
        self._checkpoint_at = reached + CHECKPOINT_SLOTS
        while len(self.own_checkpoints) > CHECKPOINTS_KEPT:
            del self.own_checkpoints[next(iter(self.own_checkpoints))]
        known = sum(len(slots) for slots, _ in self._recent)
        while self._recent and known - len(self._recent[0][0]) >= 2 * CHECKPOINT_SLOTS:
            known -= len(self._recent.popleft()[0])

    def _compare(self, said: Checkpoint, source: SiteId) -> bytes:
        """Who differs from a majority of the voters halts; if no majority agrees, everybody does."""
        group = self.group
        at = group.checkpoints.setdefault(said.ts, {})
        at[source] = said.digest
        while len(group.checkpoints) > CHECKPOINTS_KEPT:
            del group.checkpoints[next(iter(group.checkpoints))]
        electorate = group.view.electorate if group.view is not None else ()
        digests = [at[site] for site in electorate if site in at]
        own = self.own_checkpoints.get(said.ts)
        if own is None or not digests:
            return _DONE
        most = max(digests, key=digests.count)
        if digests.count(most) >= majority_of(electorate):
            if most != own:
                words = f"a majority has another digest before slot {said.ts} than this replica"
                raise Diverged(words, said.ts, alone=True)
        elif len(digests) == len(electorate):
            words = f"no two of a majority have the same digest before slot {said.ts}"
            raise Diverged(words, said.ts, alone=False)
        return _DONE

    def results(self) -> list[tuple[int, int]]:
        """Slots executed lately, and a checksum of each result."""
        return [
            (ts, result if isinstance(result, int) else google_crc32c.value(result))
            for slots, executed in self._recent
            for ts, result in zip(slots, executed, strict=True)
        ]

    # -- queries ---------------------------------------------------------------------------------

    def query(self, arguments: msgspec.Struct) -> bytes:
        """An encoded reply: what is returned shares nothing with the state."""
        method = self.catalogue.query_by_struct[type(arguments)]
        version = self.catalogue.machine.version
        reply = self._result(method.name, lambda: method.invoke(self.machine, arguments, version))
        self._failure = b""
        return reply

    def feed(self, arguments: msgspec.Struct) -> bytes | None:
        """The same for a query that may wait: None if its feed has nothing behind its position, which is then
        moved on. Any other query has an answer."""
        method = self.catalogue.query_by_struct[type(arguments)]
        found: list[Any] = []

        def invoke() -> Any:
            found.append(method.invoke(self.machine, arguments, self.catalogue.machine.version))
            return found[0]

        reply = self._result(method.name, invoke)
        self._failure = b""
        match found:
            case [Feed(events=[], position=position)]:
                setattr(arguments, method.fields[0][0], position)
                return None
            case _:
                return reply

    # -- snapshots -------------------------------------------------------------------------------

    def snapshot(self) -> Iterator[bytes]:
        """Everything that is replicated, as of ``applied``. Nothing may be applied until it is read."""
        alarm = self.alarm_at if self._has_alarm else None
        group = msgspec.structs.replace(self.group, alarm=alarm, sessions=self.sessions.dump())
        yield from closed(group, self.machine.snapshot())

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Into a new machine."""
        group, state = opened(chunks)
        self.group = group
        self.sessions = Sessions(group.limits)
        self.sessions.load(group.sessions)
        group.sessions = []
        context = self.context
        context.view, context.timestamp, context.time_ns = group.view, group.applied, group.time
        self._checkpoint_at = (group.applied // CHECKPOINT_SLOTS + 1) * CHECKPOINT_SLOTS
        self.check_machine()
        try:
            self.machine.restore(state)
        except Exception as error:
            raise StateLost(f"{self.catalogue.name}.restore: {type(error).__name__}: {error}") from error
        self._adopt()
        if group.alarm is None:
            self._set_alarm()
        else:  # asked again now it might say something else than it did, and go off at another slot
            self.alarm_at = group.alarm


def check_snapshot(make: Callable[[], Executor]) -> None:
    """A state that cannot be saved is found out before another replica needs it."""
    executor = make()
    try:
        make().restore(executor.snapshot())
    except Exception as error:
        raise MachineError(
            f"{executor.catalogue.name}: a snapshot of its first state cannot be taken and restored: {error}"
        ) from error


def opened(chunks: Iterable[bytes]) -> tuple[Group, Iterator[bytes]]:
    """What a snapshot has beside the machine's state, and that state."""
    source = iter(chunks)
    header, rest = _read_header(source)
    try:
        group = msgspec.msgpack.decode(header, type=Group)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StateLost(f"the snapshot's header cannot be read: {error}") from None
    if group.format != FORMAT:
        raise StateLost(f"the snapshot has format {group.format}, this release reads {FORMAT}")
    return group, _joined(rest, source)


def closed(group: Group, state: Iterable[bytes]) -> Iterator[bytes]:
    """The reverse."""
    header = msgspec.msgpack.encode(group)
    yield _HEADER.pack(len(header)) + header
    yield from state


def _read_header(source: Iterator[bytes]) -> tuple[bytes, bytes]:
    data = bytearray()
    wanted = _HEADER.size
    for chunk in source:
        data += chunk
        if len(data) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(data)
            wanted = _HEADER.size + length
            if length > _HEADER_MAX:
                break
        if len(data) >= wanted > _HEADER.size:
            return bytes(data[_HEADER.size : wanted]), bytes(data[wanted:])
    raise StateLost("the snapshot is cut off within its header")


def _joined(first: bytes, source: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from source
