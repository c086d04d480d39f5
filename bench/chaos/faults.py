"""Faults, as a plan has them, on the processes of a round."""

import asyncio
import time
from pathlib import Path
from typing import Final

from bench.chaos.books import Tally
from bench.chaos.cluster import TICK_SECONDS, Cluster, Condition, Process
from bench.chaos.failpoints import Arm, Cut, Point, Role, Struck, take_permit
from bench.chaos.plan import DETECTION_SECONDS, PAUSE_FACTORS, Fault, Restart
from rsm.status import Standing

READY_SECONDS: Final = 60.0
_ARMED_SECONDS: Final = 4.0
_TRANSFER_SECONDS: Final = 20.0
_WHOLE_SECONDS: Final = 15.0
_SERVING_SECONDS: Final = 20.0
_GAP_SECONDS: Final = 0.3
_NOBODY: Final = "nobody"


class Faults:
    """One after the other or two at once; never so many that no majority is left, but for an initiator or
    a donor among three, whose absence comes on top of that of the site it serves."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.tally = Tally()
        self._away = 0
        self._permits = 0

    async def run(self, seconds: float) -> None:
        """Start faults for so long, and see them to their ends."""
        end = time.monotonic() + seconds
        under_way: set[asyncio.Task[None]] = set()
        most = self.cluster.plan.minority
        try:
            for fault in self.cluster.plan.faults():
                while under_way and (
                    self._away + fault.needs(most) > most or fault.role in {Role.JOINER, Role.DONOR}
                ):
                    await self._first_of(under_way)
                if time.monotonic() > end or self.cluster.problems:
                    break
                self._away += fault.needs(most)
                under_way.add(asyncio.ensure_future(self._play(fault, fault.needs(most))))
                await asyncio.sleep(_GAP_SECONDS)
                while under_way and not fault.overlaps:
                    await self._first_of(under_way)
            while under_way:
                await self._first_of(under_way)
        finally:
            for task in under_way:
                task.cancel()

    @staticmethod
    async def _first_of(under_way: set[asyncio.Task[None]]) -> None:
        done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            under_way.discard(task)
            task.result()

    async def _play(self, fault: Fault, needs: int) -> None:
        self.cluster.note("fault", fault=fault)
        try:
            match fault.role:
                case _ if fault.pause:
                    await self._pause(fault)
                case Role.INITIATOR:
                    await self._kill_initiator(fault)
                case (Role.JOINER | Role.DONOR) as role:
                    await self._kill_in_transfer(fault, Role(role))
                case Role() | Point():
                    await self._kill(fault, fault.role)
        finally:
            self._away -= needs

    # -- striking --------------------------------------------------------------------------------

    def _permit(self) -> Path:
        self._permits += 1
        return self.cluster.directory / f"permit-{self._permits}"

    def _arm(self, role: Struck, cut: Cut, among: list[Process], *, stop: bool = False) -> Path:
        permit = self._permit()
        for process in among:
            self.cluster.tell(process, Arm(role, cut, str(permit), stop))
        return permit

    async def _victim(self, permit: Path, role: Struck, seconds: float, *, stop: bool = False) -> int | None:
        """Who came to the place; None: nobody in time, and now nobody will."""

        def is_taken() -> bool:
            return permit.exists() and permit.stat().st_size > 0

        cluster = self.cluster
        if not await cluster.until(is_taken, seconds) and take_permit(str(permit), _NOBODY):
            self.tally.miss(role)
            cluster.note("missed", role=role)
            return None
        await cluster.until(is_taken, seconds)
        number = int(permit.read_text())
        cluster.note("stopped" if stop else "killed", role=role, site=number)
        process = cluster.sites[number]
        if stop:
            process.condition = Condition.STOPPED
        else:
            cluster.explain(number)
            self.tally.killed(role)
            await cluster.until(lambda: process.condition is Condition.DOWN, READY_SECONDS)
        return number

    async def _come_back(self, number: int, down_s: float) -> None:
        await asyncio.sleep(down_s)
        self.cluster.start(number)
        await self.cluster.until_ready(number, READY_SECONDS)

    # -- pauses ----------------------------------------------------------------------------------

    async def _pause(self, fault: Fault) -> None:
        cluster = self.cluster
        ready = cluster.those(Condition.READY)
        number: int | None
        if fault.role is not None:
            permit = self._arm(fault.role, fault.cut, ready, stop=True)
            number = await self._victim(permit, fault.role, _ARMED_SECONDS, stop=True)
        else:
            number = self._stop_near(fault.site)
        if number is not None:
            await self._sleep(number, time.monotonic(), fault.pause_s)

    def _stop_near(self, site: int) -> int | None:
        """This site, or the next that is ready."""
        cluster, count = self.cluster, len(self.cluster.sites)
        numbers = [each.number for each in cluster.those(Condition.READY)]
        if not numbers:
            return None
        number = min(numbers, key=lambda each: (each - site) % count)
        cluster.stop(number)
        cluster.note("stopped", site=number)
        return number

    async def _sleep(self, number: int, since: float, seconds: float) -> None:
        """From its stop to the moment when it serves again. What was cut short is not counted."""
        await asyncio.sleep(max(since + seconds - time.monotonic(), 0))
        if time.monotonic() - since >= PAUSE_FACTORS[0] * DETECTION_SECONDS:
            self.tally.pauses += 1
        self.cluster.wake(number)
        await self._until_serving(number)

    async def _until_serving(self, number: int) -> None:
        end = time.monotonic() + _SERVING_SECONDS
        while time.monotonic() < end and self.cluster.sites[number].condition is Condition.READY:
            (found,) = await self.cluster.standings([self.cluster.sites[number]])
            if found is not None and found.status.standing is Standing.SERVING:
                return
            await asyncio.sleep(10 * TICK_SECONDS)

    # -- kills -----------------------------------------------------------------------------------

    async def _kill(self, fault: Fault, role: Struck) -> None:
        permit = self._arm(role, fault.cut, self.cluster.those(Condition.READY))
        number = await self._victim(permit, role, _ARMED_SECONDS)
        if number is not None:
            await self._come_back(number, fault.down_s)

    async def _kill_initiator(self, fault: Fault) -> None:
        """Somebody's absence makes a view change, and its initiator dies. Of three sites one must be awake
        again by then."""
        cluster = self.cluster
        spare = cluster.plan.minority > 1
        if fault.kills_token_site and spare:
            permit = self._arm(Role.TOKEN_SITE, fault.cut, cluster.those(Condition.READY))
            absent = await self._victim(permit, Role.TOKEN_SITE, _ARMED_SECONDS)
        else:
            absent = self._stop_near(fault.site)
        if absent is None:
            return
        stopped = cluster.sites[absent].condition is Condition.STOPPED
        permit = self._arm(Role.INITIATOR, fault.cut, cluster.those(Condition.READY))
        began = time.monotonic()
        number = await self._victim(permit, Role.INITIATOR, _ARMED_SECONDS)
        if stopped:
            away = self._sleep(absent, began, fault.pause_s if spare and number is not None else 0)
        else:
            away = self._come_back(absent, fault.down_s)
        if number is None:
            await away
        else:
            await asyncio.gather(away, self._come_back(number, fault.down_s))

    async def _kill_in_transfer(self, fault: Fault, role: Role) -> None:
        """A site loses its disk, which only one may have lost at a time: all others must vote."""
        cluster = self.cluster
        if not await cluster.until_whole(_WHOLE_SECONDS):
            self.tally.miss(role)
            cluster.note("missed", role=role, why="the group was not whole")
            return
        joiner = cluster.sites[fault.site]
        cluster.kill(joiner.number)
        await cluster.until(lambda: joiner.condition is Condition.DOWN, READY_SECONDS)
        cluster.wipe(joiner.number)
        self.tally.wipes += 1
        if role is Role.JOINER:
            permit = self._permit()
            cluster.start(joiner.number, Arm(role, fault.cut, str(permit)))
        else:
            permit = self._arm(role, fault.cut, cluster.those(Condition.READY))
            cluster.start(joiner.number)
        number = await self._victim(permit, role, _TRANSFER_SECONDS)
        if number is not None:
            await self._come_back(number, fault.down_s)
        await cluster.until_ready(joiner.number, READY_SECONDS)

    # -- all at once -----------------------------------------------------------------------------

    async def run_restarts(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for restart in self.cluster.plan.restarts():
            await asyncio.sleep(restart.after_s)
            await self._restart_all(restart)
            if time.monotonic() > end or self.cluster.problems:
                return

    async def _restart_all(self, restart: Restart) -> None:
        cluster = self.cluster
        cluster.note("all down", order=restart.name)
        for process in cluster.sites:
            cluster.kill(process.number)
        down = len(cluster.sites)
        await cluster.until(lambda: len(cluster.those(Condition.DOWN)) == down, READY_SECONDS)
        for number, gap in zip(restart.order, restart.gaps_s, strict=True):
            await asyncio.sleep(gap)
            cluster.start(number)
        if not await cluster.until(lambda: len(cluster.those(Condition.READY)) == down, READY_SECONDS):
            late = ", ".join(str(p.number) for p in cluster.sites if p.condition is not Condition.READY)
            cluster.complain(
                f"after all had died and came back as {restart.name}, sites {late} were not ready within"
                f" {READY_SECONDS:.0f} s ({READY_SECONDS / DETECTION_SECONDS:.0f} detection times)"
            )
            await cluster.note_standings()
            return
        self.tally.orders[restart.name] = self.tally.orders.get(restart.name, 0) + 1
