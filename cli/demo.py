"""`rsm demo`: a replicated key-value store over HTTP on this machine, to try by hand, or told as a story."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from bench.ports import free_ports, is_free
from cli.bank import PORT, bank
from cli.control import controlled
from cli.crew import GATEWAY, RESTART_SECONDS, Crew
from cli.demo_script import play
from cli.showing import refuse
from cli.staging import played, served, staged

COMMANDS: Final = """\
curl -X PUT --data hello {url}/v1/kv/greeting
curl -i {url}/v1/kv/greeting                      # ETag is its revision
curl -i -X PUT -H 'If-Match: "1"' --data bye {url}/v1/kv/greeting     # 412: it is at another revision
curl -N '{url}/v1/watch?prefix='                  # then write, in another terminal
curl {url}/v1/cluster"""


app = typer.Typer(
    invoke_without_command=True,
    short_help="Run a replicated key-value store on this machine, or a bank: kill what you like.",
)
app.command()(bank)


@app.callback()
def demo(
    context: typer.Context,
    sites: Annotated[int | None, typer.Option(min=1, max=9, help="Replicas.", show_default="3")] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65_535,
            help="Where the gateway serves HTTP.",
            show_default=f"{PORT}, or a free one for --script",
        ),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Keep the data here, and go on with it; none: removed at the end."),
    ] = None,
    memory: Annotated[bool, typer.Option("--memory", help="Replicas that only remember.")] = False,
    restart: Annotated[
        bool, typer.Option("--restart/--no-restart", help="Start again what is killed, after 3 s.")
    ] = True,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", file_okay=False, help="Record what everybody does here, for `rsm pipeline`."
        ),
    ] = None,
    script: Annotated[
        bool | None,
        typer.Option(
            "--script/--serve",
            help="Play the story and end, or serve until Ctrl-C.",
            show_default="serve, or script if stdout is no terminal",
        ),
    ] = None,
) -> None:
    """Run a replicated key-value store on this machine: three replicas with
    disks and a gateway, each a process of its own. Look at its dashboard in a
    browser, try it with curl, kill a replica, and see that it goes on.

    Uses 127.0.0.1 only, and leaves nothing behind but what --dir names. With
    --script it plays a story by itself, on free ports: writes, conflicts, a
    transaction, a watch, kill -9 of a replica and of all. The exit code is then
    0 only if every step held. `rsm story` shows the protocol underneath.

    With --record it leaves a recording too: rsm pipeline report --input DIR
    --output out says what happened.

    rsm demo bank shows actions that change several databases instead.
    """
    if context.invoked_subcommand is not None:
        _refuse_own(context)
        return
    console = Console(highlight=False)
    if script is None:
        script = not sys.stdout.isatty()
    if port is None:
        port = free_ports(1)[0] if script else PORT
    if not is_free(port):
        refuse(f"127.0.0.1:{port} is taken; name another port with --port", 1)

    async def work(place: Path) -> bool:
        crew = Crew(place, sites, port, durable=not memory, recording=record)
        if script:
            return await played(crew, play(crew, console))
        async with controlled(crew, restart=restart):
            return await served(crew, console, _work(crew, console, restart=restart))

    staged(directory, work)


def _refuse_own(context: typer.Context) -> None:
    """What stands before the name of another demonstration would do nothing."""
    sources = {each: context.get_parameter_source(each) for each in context.params}
    given = [each for each, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        refuse(f"write options behind {context.invoked_subcommand}: rsm demo {context.invoked_subcommand} …")


async def _work(crew: Crew, console: Console, *, restart: bool) -> bool:
    await _start(crew, console)
    _introduce(crew, console, restart=restart)
    names = [*crew.replicas, GATEWAY]
    await asyncio.gather(*(crew.look_after(name, console.print, restart=restart) for name in names))
    return True


async def _start(crew: Crew, console: Console) -> None:
    count = len(crew.replicas)
    named = "1 replica" if count == 1 else f"{count} replicas"
    console.print(f"starting {named} and a gateway in {crew.directory} …")
    await crew.start(*crew.replicas)
    await crew.start(GATEWAY)


def _introduce(crew: Crew, console: Console, *, restart: bool) -> None:
    console.print(f"dashboard: [bold]{crew.endpoint}/[/bold]\n")
    for name, address in crew.addresses().items():
        console.print(f"  {name}  pid {crew.running[name].pid}  {address}")
    console.print(f"  {GATEWAY}    pid {crew.running[GATEWAY].pid}  {crew.endpoint}")
    console.print("\nTry it, in another terminal:\n", style="bold")
    console.print(COMMANDS.format(url=crew.endpoint), markup=False, soft_wrap=True)
    one = crew.running[crew.replicas[0]].pid
    what = f"it is started again after {RESTART_SECONDS:g} s" if restart else "it stays dead"
    console.print(f"\nThen kill one: kill -9 {one}  ({what}), and go on. Ctrl-C stops everything.\n")
