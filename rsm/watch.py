"""What a replica notes of itself, for people and for other programs: log, status, recording.

A replica tells its ``Watch`` what happens, and has no other business with any of them. Nothing here costs
anything per message; the recording costs a few tuples per batch.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from time import monotonic, time, time_ns
from typing import TYPE_CHECKING, Any, Final

from ordering.config import MS, Config
from ordering.driven_group import Group, Notice
from ordering.effects import Delivery, Ending, InstallView
from ordering.statistics import DriverStats, GroupStats
from ordering.views import NO_SITE, Member, SiteId, View, handler_holder
from rsm import figures
from rsm.calls import Calls
from rsm.config import HANDLER, ReplicaConfig
from rsm.disk import Disk
from rsm.errors import Diverged
from rsm.executor import Executor
from rsm.figures import Figure
from rsm.histogram import Histogram
from rsm.intake import Intake
from rsm.logs import Throttle, logger
from rsm.pages import Maker, Pages
from rsm.samples import sample_of
from rsm.showing import show
from rsm.state_machine import StateMachine
from rsm.status import (
    Own,
    RecordingStatus,
    ReplicaStatus,
    SnapshotStatus,
    Standing,
    ViewStatus,
    describe_change,
    locks_of,
    members_of,
    traffic_of,
)
from rsm.storage.errors import StorageError

if TYPE_CHECKING:
    from rsm.change_records import ChangeRecords
    from rsm.operation_records import OperationRecords
    from rsm.recording import Recording

log = logger(__name__)

VIEWS_KEPT: Final = 32
REACHED_SECONDS: Final = 0.05
SAID_AGAIN_S: Final = 1.0
COUNTED: Final = (
    "view changes",
    "memberships",
    "transfers begun",
    "transfers taken",
    "transfers given",
    "transfer bytes taken",
    "transfer bytes given",
    "snapshots failed",
)


class Watch:
    """Of one replica, over all of its memberships."""

    def __init__(self, config: ReplicaConfig) -> None:
        self.config = config
        self.latency = Histogram() if config.metrics else None
        self.recording: Recording | None = None
        self.figures: dict[str, figures.Source] = {}  # of what works beside the replica

        self.operations: OperationRecords | None = None
        self.changes: ChangeRecords | None = None
        self.view: View | None = None
        self.views: deque[ViewStatus] = deque(maxlen=VIEWS_KEPT)
        self.counts = dict.fromkeys(COUNTED, 0)
        self.began = monotonic()
        self._patience_ns = 0
        self._log = log.bind(group=config.group)
        self._throttle = Throttle(SAID_AGAIN_S)
        self._transfer_began = 0.0
        self._group: Group | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._figures: Callable[[], tuple[DriverStats, int]] | None = None
        self._sampled_at = -inf

    # -- life ------------------------------------------------------------------------------------

    def opened(
        self, address: str, machine: str, driver: Callable[[], DriverStats], intake: Callable[[], Intake]
    ) -> None:
        """``driver`` and ``intake``: as they are when they are asked for."""
        config = self.config
        self._log.info("started", address=address, machine=machine, mode=config.mode)
        if config.recording is None:
            return
        from rsm.recording import Recording  # who records nothing needs no Arrow

        name, most = f"{config.group}-{address}", config.recording_bytes_max
        self.recording = Recording(config.recording, name, bytes_max=most)
        self.recording.start()
        if config.recording_operations:
            from rsm.operation_records import OperationRecords

            chain = partial(_chain_of, intake)
            self.operations = OperationRecords(config.recording, name, chain, bytes_max=most)
            self.operations.start()
        if config.recording_changes:
            from rsm.change_records import ChangeRecords

            state = partial(self._state, intake)
            self.changes = ChangeRecords(config.recording, name, state, bytes_max=most)
            self.changes.start()
        self._figures = lambda: (driver(), intake().waiting)
        self._tick()

    def _state(self, intake: Callable[[], Intake]) -> tuple[Executor, Member] | None:
        """The state of this replica, if it has the group's."""
        found = intake()
        return (found.executor, self._group.member) if found.ready and self._group is not None else None

    def begins(self, group: Group, how: str, config: Config) -> None:
        """A membership, the first one or another; ``how``: founder, joiner, disk."""
        self.counts["memberships"] += 1
        self._group, member = group, group.member
        self._patience_ns = config.suspect_ms * MS
        self._log = log.bind(group=self.config.group, site=f"{member.site:x}")
        self._say("joining", how=how)
        if how == "founder":
            self._say("a group is born when all its founders are up", founders=config.founders)
        if self.recording is not None:
            self.recording.begin(member, how)

    def joined(self, slot: int) -> None:
        self._log.info("joined", slot=slot)

    def ended(self, ending: Ending) -> None:
        self._tell_reached()
        self._say("the membership ended", warning=ending is not Ending.RETIRED, why=ending.name.lower())
        self.view = None

    def halted(self, error: Exception) -> None:
        if isinstance(error, StorageError):
            self._log.error("the disk failed", error=str(error))
        self._log.error("halted", kind=type(error).__name__, why=str(error))
        if self.recording is not None:
            self.recording.halted(error)

    def diverged(self, error: Diverged) -> None:
        self._log.error("diverged", slot=error.checkpoint, alone=error.alone)

    async def show(
        self,
        status: Callable[[], ReplicaStatus],
        driver: Callable[[], DriverStats],
        disk: Disk | None,
        machine: Callable[[], StateMachine],
    ) -> list[Pages]:
        """The pages of this replica, as far as its configuration asks for any."""
        metrics: Maker | None = None
        if self.config.metrics:
            from rsm.metrics import Source, page_of

            metrics = page_of(
                Source(
                    status,
                    driver,
                    None if disk is None else disk.stats,
                    self.latency,
                    lambda: 0 if self.recording is None else self.recording.waiting,
                    lambda: self._beside(machine()),
                )
            )
        return await show(self.config, status, metrics)

    def _beside(self, machine: StateMachine) -> list[Figure]:
        """What the application has to show. A defect of its costs its own figures alone."""
        found: dict[str, Figure] = {}
        for name, source in {"": machine.figures, **self.figures}.items():
            try:
                for each in source():
                    known = found.get(each.name)
                    found[each.name] = each if known is None else known.with_those_of(each)
            except Exception as error:  # noqa: BLE001 - the application's; the others are shown all the same
                self._say("figures could not be made", warning=True, of=name, error=repr(error))
        return list(found.values())

    async def stopped(self, pages: list[Pages]) -> None:
        self._log.info("stopped")
        for each in pages:
            await each.close()
        if self._timer is not None:
            self._timer.cancel()
        if self.recording is not None:
            self._tell_reached()
            await asyncio.to_thread(self.recording.finish)
        if self.operations is not None:
            await asyncio.to_thread(self.operations.finish)
        if self.changes is not None:
            await self.changes.finish()

    def _say(self, what: str, *, warning: bool = False, **fields: Any) -> None:
        """What a bad network can bring about again and again."""
        more = self._throttle.admits(what)
        if more is not None:
            tell = self._log.warning if warning else self._log.info
            tell(what, **fields, **more)

    # -- the order -------------------------------------------------------------------------------

    def hear(self, notices: Sequence[Notice], calls: Calls) -> None:
        if self.recording is not None:
            self.recording.hear(notices, calls)

    def installed(self, notice: InstallView) -> None:
        view, before = notice.view, self.view
        self.view = view
        self._log = self._log.bind(view=str(view.id))
        if (notice.locks_only and before is not None) or not self._is_named(view):
            return
        self.counts["view changes"] += 1
        status = ViewStatus(
            view=str(view.id),
            slot=notice.ts,
            at_s=time(),
            ring=_addresses(view, view.ring),
            electorate=_addresses(view, view.electorate),
            learners=_addresses(view, view.learners),
            why=describe_change(before, view),
        )
        self.views.append(status)
        self._log.info(
            "view installed",
            slot=status.slot,
            ring=status.ring,
            electorate=status.electorate,
            learners=status.learners,
            why=status.why,
        )

    def _is_named(self, view: View) -> bool:
        """A replica that is back from its disk goes through the views of its log: they are no news."""
        assert self._group is not None
        named = view.member(self._group.member.site)
        return named is not None and named.boot == self._group.member.boot

    def executed(self, delivery: Delivery, executor: Executor, own: int) -> None:
        """And whoever waited for it was answered, so many calls of this process among them."""
        if self.recording is not None:
            self.recording.executed(delivery, executor, own)
        if self.changes is not None and self._group is not None:
            self.changes.executed(delivery, (executor, self._group.member))

    def _tell_reached(self) -> None:
        """How far this replica is: every ``REACHED_SECONDS``, and at an end."""
        group = self._group
        if self.recording is not None and group is not None:
            self.recording.reached(group.held)

    def _sample(self) -> None:
        """How much was done and how full everything is, every ``recording_sample_s``."""
        if self.recording is None or self._figures is None or self._group is None:
            return
        self._sampled_at = monotonic()
        driver, waiting = self._figures()
        engine = self._engine(driver)
        if engine is not None:
            self.recording.sample(engine.received, sample_of(driver, engine, waiting))

    def _engine(self, driver: DriverStats) -> GroupStats | None:
        return next((each for each in driver.groups if each.group == self.config.group), None)

    def _tick(self) -> None:
        self._tell_reached()
        if monotonic() - self._sampled_at >= self.config.recording_sample_s:
            self._sample()
        self._timer = asyncio.get_running_loop().call_later(REACHED_SECONDS, self._tick)

    # -- the state -------------------------------------------------------------------------------

    def transfer_begins(self, slot: int) -> None:
        self.counts["transfers begun"] += 1
        self._transfer_began = monotonic()
        self._say("the state is fetched", slot=slot)

    def transfer_ends(self, executor: Executor, size: int, donor: SiteId) -> None:
        self.counts["transfers taken"] += 1
        self.counts["transfer bytes taken"] += size
        took = round(monotonic() - self._transfer_began, 3)
        self._log.info("the state was fetched", slot=executor.applied, bytes=size, seconds=took)
        if self.recording is not None:
            self.recording.restored(executor, donor)

    def state_given(self, slot: int, size: int) -> None:
        self.counts["transfers given"] += 1
        self.counts["transfer bytes given"] += size
        self._log.info("the state was given", slot=slot, bytes=size)

    def snapshot_saved(self, slot: int, size: int) -> None:
        self._log.info("snapshot saved", slot=slot, bytes=size)

    def snapshot_failed(self, error: Exception) -> None:
        self.counts["snapshots failed"] += 1
        self._log.error("no snapshot could be saved; the log grows", error=str(error))

    # -- how it stands ---------------------------------------------------------------------------

    def status(
        self,
        address: str,
        standing: Standing,
        intake: Intake,
        calls: Calls,
        group: Group | None,
        driver: DriverStats,
        disk: Disk | None,
        over: "asyncio.Future[None]",
    ) -> ReplicaStatus:
        executor, config = intake.executor, self.config
        agreed, view = executor.group, executor.group.view
        engine = self._engine(driver)
        me = NO_SITE if group is None else group.member.site
        own = Own(
            site=me,
            standing=standing,
            applied=executor.applied,
            log_bytes=0 if disk is None else disk.stats.bytes_used,
            patience_ns=self._patience_ns,
        )
        members = members_of(agreed, own, engine)
        token = NO_SITE if engine is None else engine.token
        places = {} if engine is None else {each.site: each for each in engine.members}
        place = places.get(me)
        return ReplicaStatus(
            group=config.group,
            address=address,
            site="" if group is None else f"{me:x}",
            standing=standing,
            mode=config.mode,
            chain="" if view is None else f"{view.chain:x}",
            view="" if view is None else f"{view.epoch}.{view.revision}",
            applied=executor.applied,
            digest=f"{agreed.digest:08x}",
            machine=agreed.machine,
            version=agreed.version,
            sessions=len(executor.sessions),
            outstanding=calls.outstanding,
            age_s=0.0 if group is None or group.is_over else group.majority_age_ns() / 1e9,
            why=_failure(over),
            clock_ns=time_ns(),
            forks=0 if group is None else group.forks,
            members=members,
            boot="" if group is None else f"{group.member.boot:032x}",
            pid=os.getpid(),
            state="" if engine is None else engine.state,
            uptime_s=monotonic() - self.began,
            received=0 if place is None else place.received,
            held=0 if place is None else place.held,
            majority=0 if engine is None else engine.majority,
            stable=0 if engine is None else engine.stable,
            lag=next((each.lag for each in members if each.site == f"{me:x}"), 0),
            waiting=intake.waiting,
            backlog_bytes=0 if engine is None else engine.backlog_bytes,
            window_messages=0 if engine is None else engine.window.messages,
            window_bytes=0 if engine is None else engine.window.bytes,
            token="" if token == NO_SITE else f"{token:x}",
            token_address=places[token].address if token in places else "",
            handler=self.is_handler(me),
            log_bytes=own.log_bytes,
            snapshot=_snapshot(disk),
            recording=self._recording(),
            locks=locks_of(self.view),
            defects={_plain(key): count for key, count in executor.defects.items()},
            counters=self._counters(engine, driver),
            views=list(self.views),
            traffic=traffic_of(engine, driver),
        )

    @property
    def view_id(self) -> str:
        return "" if self.view is None else str(self.view.id)

    def is_handler(self, site: SiteId) -> bool:
        """Whether it answers clients."""
        return self.view is not None and handler_holder(self.view, HANDLER) == site

    def _recording(self) -> RecordingStatus | None:
        kept = self.recording
        if kept is None:
            return None
        return RecordingStatus(
            directory=str(kept.directory), rows=kept.rows, dropped=kept.dropped, error=kept.error or ""
        )

    def _counters(self, engine: GroupStats | None, driver: DriverStats) -> dict[str, int]:
        found = dict(self.counts)
        if engine is not None:
            found |= engine.counters
        for what, counts in (
            ("wire", driver.wire_drops),
            ("group", driver.group_drops),
            ("send", driver.send_drops),
        ):
            found |= {f"{what}: {reason}": count for reason, count in counts.items()}
        return found


def _chain_of(intake: Callable[[], Intake]) -> int:
    return intake().executor.group.chain


def _failure(over: "asyncio.Future[None]") -> str:
    """Why it is over, if it has not been stopped."""
    error = over.exception() if over.done() and not over.cancelled() else None
    return "" if error is None else _plain(str(error))


def _plain(text: str) -> str:
    """What the application has named or said may be no text that can be encoded."""
    return text.encode(errors="backslashreplace").decode()


def _addresses(view: View, sites: Sequence[SiteId]) -> list[str]:
    known = {member.site: member.address for member in view.members}
    return [known.get(site, f"{site:x}") for site in sites]


def _snapshot(disk: Disk | None) -> SnapshotStatus | None:
    if disk is None or not disk.stats.snapshot_at:
        return None
    stats = disk.stats
    return SnapshotStatus(
        slot=stats.snapshot_slot, bytes=stats.snapshot_bytes, age_s=monotonic() - stats.snapshot_at
    )
