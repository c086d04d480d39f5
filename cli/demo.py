"""`rsm demo`: a replicated key-value store over HTTP on this machine, to try by hand, or told as a story."""

import asyncio
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from bench.errors import BenchError
from bench.ports import free_ports, is_free
from cli.control import controlled
from cli.crew import GATEWAY, RESTART_SECONDS, Crew, NotStarted
from cli.demo_script import play
from cli.showing import refuse
from ordering.driver import run
from ordering.errors import OrderingError

PORT: Final = 8080
COMMANDS: Final = """\
curl -X PUT --data hello {url}/v1/kv/greeting
curl -i {url}/v1/kv/greeting                      # ETag is its revision
curl -i -X PUT -H 'If-Match: "1"' --data bye {url}/v1/kv/greeting     # 412: it is at another revision
curl -N '{url}/v1/watch?prefix='                  # then write, in another terminal
curl {url}/v1/cluster"""


def demo(
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
    """
    console = Console(highlight=False)
    if script is None:
        script = not sys.stdout.isatty()
    if port is None:
        port = free_ports(1)[0] if script else PORT
    if not is_free(port):
        refuse(f"127.0.0.1:{port} is taken; name another port with --port", 1)
    with _place(directory) as place:
        try:
            crew = Crew(place, sites, port, durable=not memory)
            held = run(_play(crew, console) if script else _serve(crew, console, restart=restart))
        except (OrderingError, BenchError) as error:
            refuse(str(error))
        except NotStarted as error:
            refuse(str(error), 1)
        except asyncio.CancelledError:
            raise typer.Exit(130) from None
    raise typer.Exit(0 if held else 1)


@contextmanager
def _place(directory: Path | None) -> Iterator[Path]:
    if directory is not None:
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="rsm-demo-", ignore_cleanup_errors=True) as made:
        yield Path(made)


async def _play(crew: Crew, console: Console) -> bool:
    """Who is told to stop still takes the processes along."""
    main = asyncio.current_task()
    assert main is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, main.cancel)
    try:
        return await play(crew, console)
    finally:
        await crew.stop()


async def _serve(crew: Crew, console: Console, *, restart: bool) -> bool:
    async with controlled(crew, restart=restart):
        return await _until_enough(crew, console, restart=restart)


async def _until_enough(crew: Crew, console: Console, *, restart: bool) -> bool:
    """Until somebody says that it is enough; a second time means at once."""
    loop = asyncio.get_running_loop()
    enough = asyncio.Event()
    main = asyncio.current_task()
    assert main is not None

    def stop() -> None:
        if enough.is_set():
            main.cancel()
        enough.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    watching: list[asyncio.Task[None]] = []
    try:
        starting = asyncio.ensure_future(_start(crew, console))
        ended = asyncio.ensure_future(enough.wait())
        await asyncio.wait([starting, ended], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
        else:
            starting.result()
            _introduce(crew, console, restart=restart)
            watching = [
                asyncio.ensure_future(crew.look_after(name, console.print, restart=restart))
                for name in [*crew.replicas, GATEWAY]
            ]
            await ended
        console.print("\nstopping; Ctrl-C again: at once")
    finally:
        for task in watching:
            task.cancel()
        await crew.stop()
    console.print("everything is stopped")
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
