"""`rsm demo bank`: money moves between the databases of several sites while their processes are killed."""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Annotated, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from apps.actions import ActionLedger, Initiator, State
from bench.ports import free_ports, is_free
from cli.action_words import line_of
from cli.asking import ask_all, client_of
from cli.bank_audit import Audit, Cut, Violation, in_turn
from cli.bank_crew import BankCrew, Snapshot, look_into
from cli.bank_customers import Customers
from cli.bank_script import play
from cli.control import controlled
from cli.crew import GATEWAY, RESTART_SECONDS
from cli.showing import fitting_table, refuse
from cli.staging import played, served, staged
from rsm.client import Client
from rsm.logs import LogFormat, LogLevel, configure

PORT: Final = 8080
CALL_SECONDS: Final = 10.0
CUT_SECONDS: Final = 0.25
REDRAW_SECONDS: Final = 0.5
NEWS: Final = 6
ALL_DIE: Final = 0.1  # of the times that somebody is killed
TWO_DIE: Final = 0.3


def bank(
    sites: Annotated[int | None, typer.Option(min=2, max=9, help="Sites.", show_default="3")] = None,
    rate: Annotated[float, typer.Option(min=0.1, help="Transfers a second, at each site and outside.")] = 5.0,
    every: Annotated[
        float, typer.Option(min=0, help="Kill somebody after so many seconds, on the average; 0: nobody.")
    ] = 8.0,
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65_535,
            help="Where a gateway serves the dashboard, and actions over HTTP.",
            show_default=f"{PORT}, or a free one if that is taken; none for --script",
        ),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Keep the data here, and go on with it; none: removed at the end."),
    ] = None,
    script: Annotated[
        bool | None,
        typer.Option(
            "--script/--serve",
            help="Play the story and end, or go on until Ctrl-C.",
            show_default="serve, or script if stdout is no terminal",
        ),
    ] = None,
) -> None:
    """Run a bank on this machine: three sites, each a process with a SQLite
    database of its own. Customers inside and outside have money moved from one
    site to another, in one action each, while sites are killed at random (kill
    -9) and started again after 3 s.

    It shows transfers with their votes, what is in each database and in flight,
    and checks again and again that no money is made or lost, at one slot of
    the order for all sites (docs/actions.md). The exit code is 1 if it ever
    was. A gateway has the dashboard: who votes, what each site has to apply,
    and buttons that pause and kill sites. Uses 127.0.0.1 only, and leaves
    nothing behind but what --dir names.

    With --script it plays a bounded story by itself: transfers, kill -9 of a
    site before its vote, after its vote, and of all. The exit code is then 0
    only if every step held.
    """
    console = Console(highlight=False)
    scripted = not sys.stdout.isatty() if script is None else script

    configure(LogFormat.AUTO, LogLevel.ERROR)  # of this process, which only asks; sites have files for theirs

    if port is None:
        port = PORT if is_free(PORT) else free_ports(1)[0]
    elif not is_free(port):
        refuse(f"127.0.0.1:{port} is taken; name another port with --port", 1)

    async def work(place: Path) -> bool:
        crew = BankCrew(place, sites, rate, port)
        if scripted:
            return await played(crew, _play(crew, console))
        async with controlled(crew, restart=True):
            return await served(crew, console, _show(crew, console, every))

    staged(directory, work)


async def _play(crew: BankCrew, console: Console) -> bool:
    async with _books(crew) as (initiator, audit):
        return await play(crew, initiator, audit, console)


async def _show(crew: BankCrew, console: Console, every: float) -> bool:
    async with _books(crew) as (initiator, audit):
        return await Show(crew, initiator, audit, console).go_on(every)


@asynccontextmanager
async def _books(crew: BankCrew) -> AsyncIterator[tuple[Initiator, Audit]]:
    """From outside of the group."""
    config = client_of(crew.site()).model_copy(update={"timeout": CALL_SECONDS})
    client = Client(ActionLedger, config)

    async def look() -> dict[str, Snapshot]:
        paths = [crew.database_of(name) for name in crew.replicas]
        found = await asyncio.gather(*(asyncio.to_thread(look_into, path) for path in paths))
        return dict(zip(crew.replicas, found, strict=True))

    async with client, Initiator(client, name="outside") as initiator:
        yield initiator, Audit(client, look, crew.money)


class Show:
    """What a person sees: the sites, the last transfers, the last cut, and what became of processes."""

    def __init__(self, crew: BankCrew, initiator: Initiator, audit: Audit, console: Console) -> None:
        self._crew = crew
        self._audit = audit
        self._console = console
        self._customers = Customers(initiator, crew.customers())
        self._news: deque[str] = deque(maxlen=NEWS)
        self._cut: Cut | None = None
        self._chain = 0  # a durable group stays in its
        self._kills = 0

    async def go_on(self, every: float) -> bool:
        """Until it is cancelled, or the books are wrong."""
        crew = self._crew
        self._console.print(f"starting {len(crew.replicas)} sites in {crew.directory} …")
        await crew.start(*crew.replicas)
        said = await ask_all(crew.site(), crew.addresses().values())
        self._chain = next((int(each.chain, 16) for each in said.values() if each is not None), 0)
        work = [
            self._customers.come(),
            in_turn(self._audit, CUT_SECONDS, self._take),
            *(crew.look_after(name, self._news.append, restart=True) for name in crew.replicas),
            self._serve(),
            *([self._kill(every)] if every else []),
        ]
        with Live(console=self._console, auto_refresh=False, screen=self._console.is_terminal) as live:
            tasks = [asyncio.ensure_future(each) for each in (*work, self._draw(live))]
            violation = ""
            try:
                await asyncio.gather(*tasks)
            except Violation as error:
                violation = str(error)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        self._console.print(f"the books are wrong: {violation}", markup=False, style="red", soft_wrap=True)
        return False

    async def _serve(self) -> None:
        """The books are looked at meanwhile."""
        await self._crew.start(GATEWAY)
        await self._crew.look_after(GATEWAY, self._news.append, restart=True)

    def _take(self, cut: Cut) -> None:
        self._cut = cut

    async def _kill(self, every: float) -> None:
        random = Random()
        while True:
            await asyncio.sleep(random.uniform(0.5, 1.5) * every)
            there = [each for each in self._crew.replicas if self._crew.state_of(each) == "running"]
            die = random.random()
            count = len(there) if die < ALL_DIE else 2 if die < ALL_DIE + TWO_DIE else 1
            for name in random.sample(there, min(count, len(there))):
                self._crew.strike(name)
                self._kills += 1

    async def _draw(self, live: Live) -> None:
        while True:
            live.update(self._shown(), refresh=True)
            await asyncio.sleep(REDRAW_SECONDS)

    def _shown(self) -> RenderableType:
        cut, audit = self._cut, self._audit
        unknown = len(self._customers.unknown)
        undecided = sum(map(audit.is_undecided, self._customers.unknown))
        decided = audit.decided
        head = (
            f"{decided[State.COMMITTED]} transfers committed, {decided[State.ABORTED]} aborted,"
            f" answers lost: {unknown} ({undecided} undecided); {self._kills} killed, back after"
            f" {RESTART_SECONDS:g} s"
        )
        shown: list[RenderableType] = [Text(head, style="bold")]
        if cut is not None:
            shown += [self._table(cut), Text(self._sum(cut), style="green")]
        shown.append(Text("\nthe last transfers:", style="bold"))
        shown += [Text(line_of(each), overflow="ellipsis", no_wrap=True) for each in audit.latest]
        shown.append(Text("\nprocesses:", style="bold"))
        shown += [Text.from_markup(each) for each in self._news]
        shown.append(Text(f"dashboard: {self._crew.endpoint}/   Ctrl-C stops everything", style="dim"))
        return Group(*shown)

    def _table(self, cut: Cut) -> RenderableType:
        titles = ["site", "is", "in its database", "in flight", "at the cut", "unfinished", "prepared"]
        titles += ["in doubt", "pid"]
        rows = []
        for name, share in cut.shares.items():
            state = self._crew.state_of(name)
            process = self._crew.running.get(name)
            rows.append(
                [
                    name,
                    state if state == "running" else f"[red]{state}[/red]",
                    str(share.total),
                    f"{share.in_flight:+}",
                    str(share.total + share.in_flight),
                    str(share.unapplied),
                    str(len(share.prepared)),
                    str(sum(chain != self._chain for chain in share.prepared.values())),
                    "" if process is None or state == "down" else str(process.pid),
                ]
            )
        return fitting_table(self._console, titles, rows)

    def _sum(self, cut: Cut) -> str:
        parts = " + ".join(str(each.total + each.in_flight) for each in cut.shares.values())
        return f"cut {self._audit.cuts} at slot {cut.slot}: {parts} = {cut.money}, all there is"
