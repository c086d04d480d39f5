"""`rsm log`: what is in a durable replica's log, whether it runs or not."""

import sys
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Annotated, Final

import msgspec
import typer

from cli.asking import load_site
from cli.replica import load_machine
from cli.showing import messages, refuse
from ordering.records import Ledger
from rsm.config import ReplicaConfig
from rsm.logbook import Block, Message, blocks
from rsm.methods import Catalogue
from rsm.storage.claim import look_at_claim
from rsm.storage.errors import StorageError
from rsm.storage.looking import looking

app = typer.Typer(help="Read the log of a durable replica, whether it runs or not.", no_args_is_help=True)

POLL_SECONDS: Final = 0.2
SHARE: Final = 10  # a look that took a second is followed by as many of rest
REMEMBERED: Final = 4096

SiteFile = Annotated[Path, typer.Option("--config", "-c", help="The site's TOML file, on its machine.")]
Machine = Annotated[
    str, typer.Option("--machine", "-m", help="package.module:Class; then commands are shown as well.")
]
Form = Annotated[str, typer.Option("--output", "-o", help="text or jsonl.")]


@app.command()
def tail(
    config: SiteFile,
    number: Annotated[int, typer.Option("-n", min=0, help="So many blocks from the end.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    machine: Machine = "",
    output: Form = "text",
) -> None:
    """Show the last blocks of a log.

    The directory is only read: its replica may run, and is not disturbed but
    for the reading of a disk. A log may have, at its end, what no majority
    has yet; a view change may erase that, and --follow says so.

      rsm log tail -n 5 -c site-1.toml -m counter:Counter
    """
    site, catalogue = _prepare(config, machine, output)
    reader = _Reader(site, catalogue, output, sys.stdout)
    reader.look(number)
    try:
        while follow:
            reader.wait()
            reader.look(None)
    except KeyboardInterrupt:
        raise typer.Exit from None


@app.command()
def export(
    file: Annotated[Path, typer.Argument(help="Where to; - is the standard output.")],
    config: SiteFile,
    first: Annotated[int, typer.Option("--from", min=0, help="From this slot on.")] = 0,
    last: Annotated[int | None, typer.Option("--to", min=0, help="Up to this slot.")] = None,
    machine: Machine = "",
    output: Form = "jsonl",
) -> None:
    """Write blocks of a log to a file, a line of JSON for each.

    What a snapshot has covered was deleted from the log: the first block need
    not be of slot 1.

      rsm log export orders.jsonl --from 1000 --to 2000 -c site-1.toml -m counter:Counter
    """
    site, catalogue = _prepare(config, machine, output)
    ledger = _ledger(site)
    found = blocks(ledger, first, last, catalogue)
    if str(file) == "-":
        _write(sys.stdout, found, output)
        return
    try:
        with file.open("x") as target:
            count = _write(target, found, output)
    except FileExistsError:
        refuse(f"{file} is there already; name another file")
    except OSError as error:
        with suppress(OSError):
            file.unlink()  # half of it is of no use, and in the way of the next try
        refuse(f"{file}: {error.strerror}", 1)
    typer.echo(f"{file}: {count} blocks, of a log from slot {_begin(ledger)} to {ledger.end}")


def _prepare(config: Path, machine: str, output: str) -> tuple[ReplicaConfig, Catalogue | None]:
    if output not in {"text", "jsonl"}:
        refuse(f"--output: {output!r} must be text or jsonl")
    site = load_site(config)
    if site.data is None:
        refuse('mode: a replica in "memory" mode has no log')
    return site, Catalogue(load_machine(machine)) if machine else None


def _ledger(site: ReplicaConfig) -> Ledger:
    assert site.data is not None
    try:
        with looking(site.data, site.database) as look:
            if look.note is not None:
                messages.print(f"{site.data}: {look.note}", markup=False, style="yellow")
            return look.ledger
    except StorageError as error:
        refuse(str(error), 1)


def _begin(ledger: Ledger) -> int:
    return next(iter(ledger.entries), ledger.end + 1)


# -- following -----------------------------------------------------------------------------------


class _Reader:
    """Shows what is new since the last look."""

    def __init__(
        self, site: ReplicaConfig, catalogue: Catalogue | None, output: str, target: IO[str]
    ) -> None:
        assert site.data is not None
        self._site = site
        self._catalogue = catalogue
        self._output = output
        self._target = target
        self._claim = site.data / "claim"
        self._seen = -1
        self._took = 0.0
        self._shown: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)  # slot and epoch of blocks

    def look(self, count: int | None) -> None:
        """Show the last ``count`` blocks; None: those that are new."""
        began = time.monotonic()
        self._seen = self._claimed()
        ledger = _ledger(self._site)
        self._took = time.monotonic() - began
        starts = list(ledger.entries)
        if count is not None:
            first = (
                starts[-count] if 0 < count <= len(starts) else _begin(ledger) if count else ledger.end + 1
            )
        else:
            first = self._next(ledger)
        self._show(ledger, first)

    def _next(self, ledger: Ledger) -> int:
        """Where to go on; says what has become of blocks that were shown."""
        erased = None
        while self._shown:
            slot, epoch = self._shown[-1]
            entry = ledger.entries.get(slot)
            if entry is not None and entry.order.epoch == epoch:
                break
            if slot < _begin(ledger):
                self._say(
                    f"the log begins with slot {_begin(ledger)} now; what was before it is in a snapshot"
                )
                self._shown.clear()
                return _begin(ledger)
            erased = slot
            self._shown.pop()
        if erased is not None:
            self._say(f"slots from {erased} on were erased by a view change; what stands there now follows")
        if not self._shown:
            return _begin(ledger)
        return ledger.entries[self._shown[-1][0]].order.last_ts + 1

    def _show(self, ledger: Ledger, first: int) -> None:
        starts = [(slot, entry.order.epoch) for slot, entry in ledger.entries.items() if slot >= first]
        _write(
            self._target,
            (b for b in blocks(ledger, first, None, self._catalogue) if b.slot >= first),
            self._output,
        )
        self._target.flush()
        self._shown.extend(starts)

    def _say(self, words: str) -> None:
        messages.print(words, markup=False, style="yellow", soft_wrap=True)

    def wait(self) -> None:
        """Until the site has claimed more. Looking takes a bounded share of the machine."""
        time.sleep(max(POLL_SECONDS, SHARE * self._took))
        while self._claimed() == self._seen:
            time.sleep(POLL_SECONDS)

    def _claimed(self) -> int:
        try:
            claimed = look_at_claim(self._claim)
        except StorageError as error:
            refuse(str(error), 1)
        return 0 if claimed is None else claimed.seq


# -- lines ---------------------------------------------------------------------------------------


def _write(target: IO[str], found: Iterable[Block], output: str) -> int:
    count = 0
    for block in found:
        count += 1
        if output == "jsonl":
            target.write(msgspec.json.encode(block).decode() + "\n")
        else:
            target.write("".join(f"{line}\n" for line in _lines(block)))
    return count


def _lines(block: Block) -> list[str]:
    slots = f"{block.slot}" if block.last == block.slot else f"{block.slot}-{block.last}"
    begin = f"{slots:>21}  {block.time}  epoch {block.epoch}  by {block.orderer}"
    if block.view is not None:
        return [f"{begin}  view {block.view.id} of chain {block.view.chain}: {block.view.words}"]
    if block.kind != "messages":
        return [f"{begin}  {block.kind}"]
    of = ", ".join(f"{count} of {source}" for source, count in block.sources.items())
    noun = "message" if block.count == 1 else "messages"
    head = f"{begin}  {block.count} {noun}, {block.size} bytes: {of}"
    return [head, *map(_line, block.messages or ())]


def _line(message: Message) -> str:
    begin = f"{message.slot:>21}    {message.kind:<10}"
    if message.kind in {"command", "query"}:
        arguments = msgspec.json.encode(message.arguments).decode()
        request = f"  session {message.session} number {message.number}" if message.number else ""
        begin += f" {message.method} {arguments}{request}"
    return f"{begin} {message.words}".rstrip() + f"  from {message.source}"
