"""A process' part in a group: the ring's driver, the executor, and who calls from here.

::

    async with Replica(Counter, ReplicaConfig(group="counts", founders=(...), insecure=True)) as counter:
        await counter.add(1)

``start`` returns when this replica is a member, has the state, and has executed something. A replica that is
thrown out of its group comes back by itself as a new member; its calls that had no answer are sent again
under their own numbers, so that none is executed twice.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from time import monotonic
from typing import Any, Final, Generic, ParamSpec, TypeVar

import msgspec

from ordering.driver import Driver, Notice, Stopped
from ordering.effects import (
    CallRepeated,
    Delivery,
    Ending,
    EndMembership,
    HoldersKnown,
    InstallView,
    LockGranted,
    LockLost,
    LockRefused,
    Persist,
    ReadReady,
    RequestState,
    WindowOpened,
)
from ordering.errors import NoPrimary, NotMember
from ordering.events import (
    Persisted,
    PersistFailed,
    Reply,
    ReplyRequested,
    StateTransferred,
)
from ordering.naming import group_id
from ordering.packets import Call
from ordering.records import Record
from ordering.transports.bulk_tcp import BulkServer, BulkStream
from rsm import envelope, figures, operations, repetitions, transfer
from rsm.alarms import AlarmClock
from rsm.asking import Answering
from rsm.calls import Call as OwnCall
from rsm.calls import Calls
from rsm.channels import open_channels
from rsm.config import ReplicaConfig
from rsm.departure import Departure, Going
from rsm.disk import Came, Disk
from rsm.divergence import explained, first_difference
from rsm.envelope import Checkpoint, Language
from rsm.errors import Diverged, Halted, OutcomeUnknown, RsmError
from rsm.executor import NEVER, Executor, check_snapshot
from rsm.far_calls import Desk, fitting
from rsm.feeds import Feed, follow
from rsm.handover import Handover
from rsm.intake import Intake
from rsm.locks import Grant, Locks
from rsm.logbook import LogPage, LogWanted, log_page
from rsm.methods import Catalogue
from rsm.pages import Pages
from rsm.proxy import Consistency, Proxy, Reading
from rsm.quality import Held, Holders
from rsm.reading import Reached, Reads
from rsm.seat import Seat
from rsm.sessions import Answer, Origin
from rsm.state_machine import Marked, StateMachine
from rsm.status import ReplicaStatus
from rsm.storage.errors import StorageError
from rsm.transfer import Offer, Peer, StateWanted
from rsm.watch import Watch

M = TypeVar("M", bound=StateMachine)
P = ParamSpec("P")
T = TypeVar("T")
REJOIN_SECONDS: Final = 0.2
TRANSFER_RETRY_SECONDS: Final = 0.05
DRAIN_SECONDS: Final = 5.0
TURN_SECONDS: Final = 0.01  # of executing, before the event loop turns


class Replica(Seat, Answering, Generic[M]):
    """One replica of a group of ``machine``. It belongs to the event loop it was opened in."""

    _driver_type: type[Driver] = Driver

    def __init__(self, machine: type[M], config: ReplicaConfig) -> None:
        self.catalogue = Catalogue(machine)
        self.config = config
        self.proxy: Proxy[M] = Proxy(self)
        self._language = Language(self.catalogue)
        check_snapshot(self._new_executor)
        super().__init__(self._new_executor())
        self._keyring = config.keyring()
        self._boot = secrets.randbits(128)  # of the bulk channel
        self._opened = False
        self._stopping = False
        self._stopped: asyncio.Future[Departure] | None = None
        self._going: Going | None = None
        self._driver: Driver
        self._bulk: BulkServer
        self._calls: Calls
        self._locks: Locks
        self._alarm: AlarmClock
        self._holders: Holders
        self._desk = Desk(self, self._language, config.message_bytes_max)
        self._addresses: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._disk_error: StorageError | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._applied = Reached()
        self._disk: Disk | None = None
        self._came = Came()
        self._told: tuple[int, int] | None = None  # the last checkpoint that the others were told
        self._watch = Watch(config)
        self._handover = Handover(config, self._resume, self._watch)
        self.gifts = self._handover.gifts
        self._pages: list[Pages] = []

    # -- life ------------------------------------------------------------------------------------

    async def __aenter__(self) -> Proxy[M]:
        await self.start()
        return self.proxy

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open, join, and wait until commands can be executed."""
        try:
            await self.open()
            self.join(self.config.founders, self.config.contacts)
            await self.ready()
        except BaseException:
            await self.stop()
            raise

    async def open(self) -> None:
        """Take address and port, the same number for UDP and TCP; ``address`` is known from here on."""
        self._prepare(asyncio.get_running_loop())
        self._driver, self._bulk = await open_channels(
            self._driver_type, self.config, self._keyring, self._serve, self._boot
        )
        if self.config.mode == "durable":
            self._disk = Disk(self.config)
            try:
                self._came = await self._disk.open()
            except BaseException:
                self._driver.close()
                await self._bulk.close()
                raise
        self._opened = True
        self._watch.opened(self.address, self.catalogue.name, self._driver.stats, lambda: self._intake)
        self._calls.operations = self._watch.operations
        self._pages = await self._watch.show(
            self.status, self._driver.stats, self._disk, lambda: self.executor.machine
        )

    def show_figures(self, name: str, source: figures.Source | None) -> None:
        """Have metrics show those of what works beside this replica; None: not any more."""
        if source is None:
            self._watch.figures.pop(name, None)
        else:
            self._watch.figures[name] = source

    def _prepare(self, loop: asyncio.AbstractEventLoop) -> None:
        """Before the first stranger can ask how we stand."""
        self._over = loop.create_future()
        self._over.add_done_callback(lambda over: over.cancelled() or over.exception())
        self._calls = Calls(
            self._language,
            self._submit,
            loop,
            outstanding_max=self.config.outstanding_max,
            bytes_max=self.config.message_bytes_max,
            latency=self._watch.latency,
        )
        self._reads = Reads(self._ask_read, loop)
        self._holders = Holders(self._ask_holders, loop)
        self._locks = Locks(self._tell_lock, loop)
        self._alarm = AlarmClock(self._order_a_slot, loop)

    @property
    def address(self) -> str:
        return self._driver.address

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of the members, itself among them."""
        view = self.executor.group.view
        named = view.addresses.values() if view is not None else ()
        return tuple(dict.fromkeys([self.address, *named, *self._addresses[0], *self._addresses[1]]))

    def join(self, founders: Sequence[str], contacts: Sequence[str] = ()) -> None:
        """Found the group with ``founders``, this replica among them, or join it by way of ``contacts``. A
        replica whose disk has a log comes back with that."""
        self._addresses = (tuple(founders), tuple(contacts))
        came, self._came = self._came, Came()
        self._begin(came, ready=came.ledger is not None)

    async def ready(self) -> None:
        """Returns when this replica is a member that has the state and has executed a message of its own."""
        while True:
            try:
                await asyncio.shield(self._calls.barrier())
            except (NoPrimary, NotMember, OutcomeUnknown) as error:
                if self._over.done():
                    await self._over  # raises why
                if isinstance(error, NotMember):
                    raise
                await asyncio.sleep(TRANSFER_RETRY_SECONDS)  # whatever became of it: another one will do
            else:
                return

    async def ended(self) -> None:
        """Returns when the replica was stopped, and raises why if it stopped by itself."""
        await asyncio.shield(self._over)

    async def stop(self) -> Departure:
        """Wait for own calls and leave the ring, though not for ever, and go. Whoever else asks for it waits
        for the same; who is cancelled hurries it."""
        if not self._opened:
            return Departure.OUTSIDE
        if self._stopped is None:
            self._stopping = True
            if self._group is not None and not self._group.is_over and not self._over.done():
                self._going = Going(self._group, self._calls, DRAIN_SECONDS)
            self._stopped = asyncio.ensure_future(self._close())
        try:
            return await asyncio.shield(self._stopped)
        except asyncio.CancelledError:
            self.hurry()
            await asyncio.wait([self._stopped])
            raise

    async def _close(self) -> Departure:
        departure = Departure.OUTSIDE if self._going is None else await self._going.end()
        self._fail(NotMember("this replica was stopped"))
        self._driver.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.asker.close()
        await self._bulk.close()
        if self._disk is not None:
            await self._disk.close()
        await asyncio.to_thread(self._handover.close)  # another thread may be at its file
        await self._watch.stopped(self._pages)
        return departure

    def hurry(self) -> None:
        """A ``stop`` that is under way waits for nothing more: to the others this replica has crashed."""
        if self._going is not None:
            self._going.hurry()

    def _begin(self, came: Came, *, ready: bool) -> None:
        """A membership, the first one or another."""
        founders, contacts = self._addresses
        others = tuple(address for address in (*contacts, *founders) if address != self.address)
        config = self.config.engine(founders, others)
        self._minority_ms = config.minority_ms
        executor = self._new_executor()
        came.restore(executor)
        self._intake = Intake(executor, ready=ready)
        self._applied.reached(NEVER)  # who waits looks again: in another chain slots may be lower
        self._announced = False
        self._wanted = None
        founder = self.address in founders
        self._group = self._driver.join(config, self._listen, founder=founder, ledger=came.ledger)
        how = "disk" if came.ledger is not None else "founder" if founder else "joiner"
        self._watch.begins(self._group, how, config)

    def _new_executor(self) -> Executor:
        return Executor(self.catalogue.machine(), self.catalogue, self._language)

    # -- what the group says ---------------------------------------------------------------------

    def _listen(self, notices: list[Notice]) -> None:
        self._watch.hear(notices, self._calls)
        try:
            for notice in notices:
                self._hear(notice)
            self._apply()
            if self._group is not None:
                self._handover.report_backlog(self._intake, self._group)
        except Diverged as error:
            self._stop_serving(error)
            self._watch.diverged(error)
            self._spawn(self._explain(error))
            raise
        except Exception as error:
            self._fail(error)
            raise
        except BaseException as error:  # no result (framework.md); an event loop would shrug it off
            halted = Halted(f"a command raised {type(error).__name__}: {error}")
            self._fail(halted)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise halted from error

    def _hear(self, notice: Notice) -> None:
        match notice:
            case WindowOpened():
                self._calls.unblock()
            case RequestState():
                self._intake.ready = False
                self._wanted = notice
                self._handover.abandon()
                self._watch.transfer_begins(notice.ts)
                self._spawn(self._transfer(notice))
            case CallRepeated(call, message):
                self._apply()  # what was delivered before it, in this very list
                self._spawn(self._answer_again(call, message))
            case ReadReady(numbers):
                self._reads.ready(numbers)
            case HoldersKnown():
                self._holders.known(notice)
            case LockGranted() | LockLost() | LockRefused():
                self._locks.hear(notice)
            case Persist(seq, records):
                self._persist(seq, records)
            case EndMembership(ending):
                self._watch.ended(ending)
                self._announced = False
                self._calls.pause()
                self._locks.interrupted()
                self._holders.interrupted()
                self._intake.ready = False
                self._wanted = None
                self._handover.abandon()
                if ending is Ending.STOPPED:
                    self._fail(self._disk_error or Halted("the disk failed"))
                elif not self._stopping:
                    self._spawn(self._rejoin())
            case Stopped(error):
                self._fail(error)
            case _:
                self._intake.hear(notice)
                if type(notice) is InstallView:
                    self._watch.installed(notice)
                    if not self._announced:
                        self._announce(notice)

    def _announce(self, installed: InstallView) -> None:
        """From the first view on that names this boot messages can be sent."""
        assert self._group is not None
        member = self._group.member
        named = installed.view.member(member.site)
        if named is None or named.boot != member.boot:
            return
        self._announced = True
        self._watch.joined(installed.ts)
        if member.site in installed.view.electorate and self._wanted is None:
            self._intake.ready = True  # a voter from the start: this is the group's birth
        self._reads.begin_membership()
        self._calls.begin(self.executor.announcement(member.boot, self.config.limits()))

    def _apply(self) -> None:
        """Execute what is final, answer who called, and wake who waited for it."""
        assert self._group is not None
        me, calls, intake, disk = self._group.member.site, self._calls, self._intake, self._disk
        until, waited, rows = monotonic() + TURN_SECONDS, intake.backlog, intake.waiting
        for delivery, replies in intake.run():
            own = 0
            if delivery.source == me:
                own = calls.take(delivery.first_seq, delivery.first_ts, replies, self.executor.repeats)
            if delivery.owed:
                self._answer(delivery, replies)
            self._watch.executed(delivery, self.executor, own)
            if monotonic() >= until:  # it has much to catch up with; the ring has its turn
                self._handover.catch_up(intake)
                break
        newest = next(reversed(self.executor.own_checkpoints.items()), None)
        if newest is not None and newest != self._told and self._announced:
            self._told = newest
            calls.mention(envelope.encode(Checkpoint(*newest)))
        if disk is not None:
            disk.executed(waited - intake.backlog, rows - intake.waiting)
            if disk.begins_snapshot():
                self._spawn(self._handover.save_now(intake, disk, self._group))
        if intake.is_current:
            self._reads.end()
        self._alarm.set(self.executor, first=self._watch.is_handler(me))
        self._applied.reached(self.executor.applied)

    def _resume(self, intake: Intake) -> None:
        """Go on with what waits to be executed."""
        if intake is self._intake and intake.runs and not self._over.done() and self._group is not None:
            self._group.tell(always=True)

    def _answer(self, delivery: Delivery, replies: list[bytes]) -> None:
        repeats = self.executor.repeats
        owed: list[Reply] = []
        for offset in delivery.owed:
            ts = delivery.first_ts + offset
            if replies[offset]:
                owed.append(Reply(delivery.calls[offset], repeats.get(ts, ts), replies[offset]))
        if owed:
            self._reply(owed)

    def _reply(self, replies: list[Reply]) -> None:
        assert self._group is not None
        self._group.handle(ReplyRequested(tuple(map(fitting, replies))))

    async def _answer_again(self, call: Call, message: bytes) -> None:
        try:
            answer = await repetitions.answer_again(message, self, self._language)
        except (NoPrimary, NotMember):
            return  # whoever asked asks again, elsewhere
        if answer is not None:
            self._reply([Reply(call, answer.ts, answer.reply)])

    async def _rejoin(self) -> None:
        """As a new member, with an empty memory and an empty disk: the state comes from the others."""
        await asyncio.sleep(REJOIN_SECONDS)
        try:
            if self._disk is not None:
                await self._disk.wipe()
        except StorageError as error:
            self._fail(error)
            return
        if not self._stopping:
            self._begin(Came(), ready=False)

    async def _explain(self, error: Diverged) -> None:
        """Ask the others what they have computed, and say where it began."""
        said = await first_difference(self.executor.results(), map(self.peer, self.addresses[1:]))
        try:
            if error.alone and self._disk is not None:  # it comes back as new (R17)
                await self._disk.wipe()
        except StorageError as failure:
            said += f"; its disk could not be emptied: {failure}"
        self._fail(explained(error, said, self.catalogue.name))

    def _stop_serving(self, error: Exception) -> None:
        self._intake.ready = False
        self._calls.fail(error)
        self._reads.fail(error)
        self._locks.interrupted()
        self._holders.interrupted()
        self._alarm.stop()
        self._applied.fail(error)

    def _fail(self, error: Exception) -> None:
        """This replica is over; it does not come back by itself."""
        if self._over.done():
            return
        self._stop_serving(error)
        if self._stopping:
            self._over.set_result(None)
        else:
            self._watch.halted(error)
            self._over.set_exception(error)

    def _spawn(self, work: Any) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[None]") -> None:
        """What goes wrong in the background goes wrong for the replica."""
        del self._tasks[task]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._give_up(error)

    # -- the disk --------------------------------------------------------------------------------

    def _persist(self, seq: int, records: tuple[Record, ...]) -> None:
        group, disk = self._group, self._disk
        assert group is not None
        assert disk is not None

        def done(error: StorageError | None) -> None:
            self._disk_error = error
            group.handle(Persisted(seq) if error is None else PersistFailed(seq))

        disk.persist(seq, records, done)

    # -- state transfer --------------------------------------------------------------------------

    async def _transfer(self, wanted: RequestState) -> None:
        """Until some donor gives the state, or another request replaces this one."""
        async with self._handover.taking:
            while self._wanted is wanted and not self._stopping and not self._over.done():
                offer = await self._fetch(wanted)
                if offer is None or offer.ts < self._needed(wanted):
                    await asyncio.sleep(TRANSFER_RETRY_SECONDS)
                elif self._wanted is wanted:
                    await self._take_over(wanted, offer)

    async def _fetch(self, wanted: RequestState) -> Offer | None:
        group = self._group
        assert group is not None
        late = msgspec.structs.replace(wanted, ts=self._needed(wanted))
        try:
            return await self._handover.fetch(late, group, self.address, self.peer)
        except StorageError as error:
            self._give_up(error)
            return None

    def _needed(self, wanted: RequestState) -> int:
        """The slot a state must have."""
        return max(wanted.ts, self._intake.forgotten)

    def _give_up(self, error: Exception) -> None:
        self._fail(error)
        self._driver.close()

    def peer(self, address: str) -> Peer:
        return Peer(address, self._keyring, group_id(self.config.group), self._boot)

    async def _take_over(self, wanted: RequestState, offer: Offer) -> None:
        """The state replaces ours, if it is not older; in durable mode once it is synced."""
        group = self._group
        assert group is not None
        executor, disk = self.executor, self._disk
        try:
            if offer.ts > executor.applied:
                executor = self._new_executor()
                await self._handover.take(offer, executor, disk, lambda: self._wanted is wanted)
            elif disk is not None:
                await self._handover.save(self._intake, disk)
            await self._handover.taken()
        except (RsmError, StorageError) as error:
            if self._wanted is wanted:
                self._give_up(error)
            return
        if self._wanted is not wanted:
            return
        self._wanted = None
        self._intake.replace(executor)
        self._watch.transfer_ends(executor, offer.length, offer.donor)
        group.handle(StateTransferred(executor.applied))
        self._calls.reconcile(self.executor.sessions.reply_to)
        group.tell(always=True)  # what waited for the state; if it raises the group is stopped

    async def _serve(self, stream: BulkStream) -> None:
        await transfer.serve(stream, self, self._desk)

    async def offer(self, wanted: StateWanted) -> Offer | None:
        """Our state, once it is as far as was asked for."""
        return await self._handover.offer(wanted, lambda: self._intake, self.when_applied(wanted.ts))

    def when_applied(self, ts: int) -> "asyncio.Future[None]":
        """Done when everything up to slot ``ts`` is, or another membership has begun; or ``NotMember``."""
        return self._applied.when(ts, self.executor.applied)

    async def operate(self, order: operations.Order) -> operations.Outcome:
        return await operations.perform(order, self, self._group, self.caught_up)

    def save(self) -> "asyncio.Task[str]":
        return self._spawn(self._handover.save_wanted(self._intake, self._disk, self._group))

    async def log(self, wanted: LogWanted) -> LogPage:
        return await log_page(wanted, self.executor, self._disk, self._language)

    # -- how it stands ---------------------------------------------------------------------------

    def status(self) -> ReplicaStatus:
        standing, driver = self._standing(), self._driver.stats()
        return self._watch.status(
            self.address, standing, self._intake, self._calls, self._group, driver, self._disk, self._over
        )

    # -- calls of this process -------------------------------------------------------------------

    def _order_a_slot(self) -> None:
        if self.is_serving and not self._stopping and not self._calls.outstanding:
            self._calls.mention(envelope.BARRIER)

    def lock(self, name: str, lease_ms: int = 0) -> AbstractAsyncContextManager[Grant]:
        """Have a named lock of the group, alone. ``lease_ms``: it ends by itself after so much time of the
        group's; 0: when it is released, or when this replica is removed from the group."""
        return self._locks.hold(name, lease_ms)

    def execute(self, command: Any) -> "asyncio.Future[Answer]":
        return self._calls.execute(command)

    def forward(self, message: bytes) -> OwnCall:
        """Put a client's call on the ring, and get what it is answered."""
        return self._calls.forward(message)

    async def held(self, ts: int, voters: int) -> Held | None:
        return await self._holders.of(ts, voters)

    async def read(self, query: msgspec.Struct) -> Answer:
        """A client's query, from a state that misses nothing."""
        await self.caught_up()
        return Answer(self.executor.applied, self.executor.query(query))

    def query(self, query: msgspec.Struct, consistency: Consistency, after: int) -> Awaitable[Reading]:
        operations = self._watch.operations
        if operations is None:
            return self._query(query, consistency, after)
        return operations.asked(lambda: self._query(query, consistency, after), query, consistency)

    async def _query(self, query: msgspec.Struct, consistency: Consistency, after: int) -> Reading:
        """A replica that has not the state, or is no member any more, answers nothing (R11, R17)."""
        if consistency is Consistency.LINEARIZABLE:
            await self.caught_up()
        elif not self._intake.ready:
            await asyncio.shield(self._calls.barrier())
        while consistency is Consistency.SEQUENTIAL and after > self.executor.applied:
            await self.when_applied(after)
        age = self.age_ns() / 1e9 if consistency is Consistency.STALE else 0.0
        return self._reading(self.executor.query(query), age)

    def _reading(self, reply: bytes, age_s: float = 0.0) -> Reading:
        group = self.executor.group
        return Reading(reply, group.applied, age_s, *self.origin(), group.chain)

    def origin(self, answer: Answer | None = None) -> Origin:
        """What this process executes it answers itself."""
        return Origin(self.address, self._watch.view_id)

    def follow(
        self, method: Marked[M, P, Feed[T]], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[Feed[T], None]:
        """What a feed has, and everything that comes behind it (``feeds``)."""
        return follow(self.catalogue.query(method.__name__), args, kwargs, self._next_of_feed)

    async def _next_of_feed(self, query: msgspec.Struct, _: Reading | None) -> Reading:
        while (reply := self.executor.feed(query) if self.has_state else None) is None:
            await self.when_applied(self.executor.applied + 1)
        return self._reading(reply)
