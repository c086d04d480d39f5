"""A replica's state goes out, comes in, and is saved (``docs/large-states.md``); the ring turns meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from ordering.driver import Group
from ordering.effects import RequestState
from ordering.errors import NotMember
from ordering.events import BacklogReported, SnapshotSaved
from rsm import pace
from rsm.config import HANDLER, ReplicaConfig
from rsm.disk import Disk
from rsm.errors import MachineError
from rsm.executor import Executor
from rsm.intake import Intake
from rsm.pictures import Pictures
from rsm.spool import FileSpool, Spool
from rsm.storage.errors import StorageError
from rsm.transfer import Gifts, Offer, Peer, StateWanted
from rsm.watch import Watch

DONOR_SECONDS: Final = 5.0
BACKLOG_STEP: Final = 1 << 20  # bytes between two reports
WAITING_BYTES: Final = 64 << 20  # that may wait for a state at first


class Handover:
    """``resume`` is called when an intake may go on that was held for a picture."""

    def __init__(self, config: ReplicaConfig, resume: Callable[[Intake], None], watch: Watch) -> None:
        self.gifts = Gifts(config.transfer_bytes_per_s, watch.state_given)
        self._watch = watch
        self.taking = asyncio.Lock()  # one state at a time
        self._pictures = Pictures(resume)
        self._spool = Spool() if config.data is None else FileSpool(config.data / "incoming")
        self._resume = resume
        self._is_behind = False
        self._reported = 0
        self._room = WAITING_BYTES
        self._fetcher: asyncio.Task[object] | None = None

    def close(self) -> None:
        self._spool.close()

    def report_backlog(self, intake: Intake, group: Group) -> None:
        """R16: what waits to be executed is bounded by the engine. Not that of a replica without a state: the
        ring would have to wait for as long as the state takes to come. While that is fetched, it lets go of
        what is too much, and wants a later state; twice as much may wait for that, so that there is an end.
        """
        if self._fetcher is not None and not intake.ready and intake.backlog > self._room:
            intake.forget()
            self._room *= 2
        size = intake.backlog if intake.ready and intake.backlog >= BACKLOG_STEP else 0
        if abs(size - self._reported) >= BACKLOG_STEP or bool(size) < bool(self._reported):
            self._reported = size
            group.handle(BacklogReported(size))

    def catch_up(self, intake: Intake) -> None:
        """Resume in the next turn of the event loop."""
        if not self._is_behind:
            self._is_behind = True
            asyncio.get_running_loop().call_soon(self._go_on, intake)

    def _go_on(self, intake: Intake) -> None:
        self._is_behind = False
        self._resume(intake)

    # -- out -------------------------------------------------------------------------------------

    async def offer(
        self, wanted: StateWanted, intake_of: Callable[[], Intake], reached: Awaitable[None]
    ) -> Offer | None:
        """The state, when the slot that is wanted is ``reached``, if that does not take too long."""
        try:
            async with asyncio.timeout(DONOR_SECONDS):
                await reached
        except (TimeoutError, NotMember):
            return None
        intake = intake_of()
        view = intake.executor.group.view
        if not intake.ready or view is None or view.chain != wanted.chain:
            return None
        picture = await self._pictures.take(intake)
        return Offer(picture.ts, picture.chunks)

    async def save(self, intake: Intake, disk: Disk) -> int:
        """A snapshot of the state as it is; the slot it is of."""
        tenure = disk.tenure
        picture = await self._pictures.take(intake)
        await disk.save(picture.ts, picture.chunks, picture.digest, tenure)
        return picture.ts

    async def save_now(self, intake: Intake, disk: Disk, group: Group) -> None:
        """The same, and the log may be trimmed. If it fails the log grows, and all else goes on; what is
        wrong with the disk, if it is the disk, the log will find out."""
        try:
            ts = await self.save(intake, disk)
        except (StorageError, MachineError) as error:
            self._watch.snapshot_failed(error)
        else:
            self._watch.snapshot_saved(ts, disk.stats.snapshot_bytes)
            group.handle(SnapshotSaved(ts))
        finally:
            disk.ends_snapshot()

    async def save_wanted(self, intake: Intake, disk: Disk | None, group: Group | None) -> str:
        """Because somebody asks for it; says why it was not."""
        if disk is None or group is None:
            return "this replica keeps its state in memory alone"
        if not disk.begins_snapshot(wanted=True):
            return "a snapshot is being saved already"
        begun = intake.executor.applied
        await self.save_now(intake, disk, group)
        return "" if disk.stats.snapshot_slot >= begun else "no snapshot could be saved; its log says why"

    # -- in --------------------------------------------------------------------------------------

    async def fetch(
        self, wanted: RequestState, group: Group, own: str, peer: Callable[[str], Peer]
    ) -> Offer | None:
        """From one donor after the other until all of it is here. Who answers clients is asked last; who is
        asked first differs between joiners."""
        self._fetcher = asyncio.current_task()
        try:
            me, holder = group.member.site, group.handler(HANDLER)
            for donor in sorted(wanted.donors, key=lambda site: (site == holder, site ^ me)):
                address = group.address_of(donor)
                if address is None or address == own:
                    continue
                await self._spool.open()
                offer = await peer(address).state(StateWanted(wanted.chain, wanted.ts), self._spool)
                if offer is not None:
                    return msgspec.structs.replace(offer, donor=donor)
            return None
        finally:
            self._fetcher = None

    def abandon(self) -> None:
        """What is being fetched is not wanted any more. What came of it stays in the spool."""
        if self._fetcher is not None:
            self._fetcher.cancel()

    async def take(
        self, offer: Offer, executor: Executor, disk: Disk | None, is_wanted: Callable[[], bool]
    ) -> None:
        """Into a new executor, and to the disk as it came."""
        tenure = None if disk is None else disk.tenure
        await pace.restore(executor, offer.chunks, is_wanted)
        if disk is not None:
            await disk.save(executor.applied, offer.chunks, executor.group.digest, tenure)

    async def taken(self) -> None:
        """What came is not needed any more."""
        self._room = WAITING_BYTES
        await self._spool.clear()
