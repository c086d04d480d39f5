"""What is in a log, in words: for people, and for programs that read JSON.

A ``Block`` is one block of the order. Without a machine it says what can be told of it: slots, epoch, time,
who ordered it, how many messages of whom. With one it has each message: a command with its arguments, session
and number, or what replicas say to each other.
"""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from ordering.records import Entry, Ledger
from ordering.views import View
from rsm.disk import Disk
from rsm.envelope import Activate, Announce, Barrier, Checkpoint, Close, Language, Open, Unread
from rsm.executor import Executor
from rsm.methods import Catalogue
from rsm.replaying import chain_at
from rsm.storage.errors import StorageError

Json = Any

PAGE_MAX: Final = 1000
PAGE_BLOCKS: Final = 256
PAGE_BYTES: Final = 1 << 20
BRIEF_BYTES: Final = 4096  # of a message whose arguments are shown


class LogWanted(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """What stands behind slot ``since`` in the log of a replica in ``chain``, so many messages."""

    chain: int
    since: int
    limit: int


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message at its slot. ``method`` and ``arguments`` are of commands and queries."""

    slot: int
    kind: str
    source: str
    size: int
    method: str = ""
    arguments: Json = None
    session: int = 0
    number: int = 0
    words: str = ""


class Members(msgspec.Struct, frozen=True, kw_only=True):
    """A view that takes the block's slot; ``words`` say what it changes."""

    id: str
    chain: str
    ring: list[str]
    electorate: list[str]
    learners: list[str]
    words: str


class Block(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    slot: int
    last: int
    epoch: int
    time: str
    orderer: str
    kind: str  # messages, view, tick or nothing
    count: int = 0
    size: int = 0
    sources: dict[str, int] = {}
    view: Members | None = None
    messages: list[Message] | None = None


def blocks(ledger: Ledger, first: int, last: int | None, catalogue: Catalogue | None) -> Iterator[Block]:
    """Every block that has a slot from ``first`` to ``last``."""
    language = None if catalogue is None else Language(catalogue)
    before = None if ledger.base is None else ledger.base.view
    for entry in ledger.entries.values():
        order = entry.order
        if last is not None and order.ts > last:
            return
        if order.last_ts >= first:
            yield _block(ledger, entry, before, language)
        before = order.view or before


def _block(ledger: Ledger, entry: Entry, before: View | None, language: Language | None) -> Block:
    order = entry.order
    sources: dict[str, int] = {}
    for batch in entry.batches:
        name = f"{batch.source:x}"
        sources[name] = sources.get(name, 0) + len(batch.messages)
    kind = (
        "view" if order.view is not None else "tick" if order.tick else "messages" if sources else "nothing"
    )
    return Block(
        slot=order.ts,
        last=order.last_ts,
        epoch=order.epoch,
        time=moment(order.time),
        orderer=f"{order.orderer:x}",
        kind=kind,
        count=sum(sources.values()),
        size=sum(batch.size for batch in entry.batches),
        sources=sources,
        view=None if order.view is None else _members(ledger, order.ts, order.view, before),
        messages=None if language is None else list(_messages(entry, language)),
    )


class LogPage(msgspec.Struct, frozen=True, array_like=True):
    """``kept`` is false where there is no log. It begins behind slot ``begin``; what follows the page is
    behind ``next``. ``chain`` is the replica's: if it is another than was wanted there are no items."""

    kept: bool
    chain: int
    begin: int = 0
    next: int = 0
    items: list[Message] = []


async def log_page(wanted: LogWanted, executor: Executor, disk: Disk | None, language: Language) -> LogPage:
    """A page of what is executed here, read and put into words beside the event loop."""
    chain = 0 if executor.group.view is None else executor.group.view.chain
    if disk is None or chain != wanted.chain:
        return LogPage(disk is not None, chain)
    try:
        entries = await disk.blocks(wanted.since, PAGE_BLOCKS, PAGE_BYTES)
    except StorageError:
        return LogPage(False, chain)
    return await asyncio.to_thread(_page, wanted, chain, entries, executor.applied, language)


def _page(wanted: LogWanted, chain: int, entries: list[Entry], last: int, language: Language) -> LogPage:
    items: list[Message] = []
    limit = min(max(wanted.limit, 1), PAGE_MAX)
    reached = wanted.since
    for entry in entries:
        for item in _all_of(entry, language):
            if item.slot > last or len(items) == limit:
                break
            if item.slot > wanted.since:
                items.append(item)
                reached = item.slot
        else:
            reached = entry.order.last_ts
            continue
        break
    begin = max(wanted.since, entries[0].order.ts - 1) if entries else wanted.since
    return LogPage(True, chain, begin, reached, items)


def _all_of(entry: Entry, language: Language) -> Iterator[Message]:
    """The messages of a block; a block without any is told as one."""
    order = entry.order
    if order.view is not None:
        view = order.view
        words = f"view {view.id}: {len(view.electorate)} voters, {len(view.ring)} in the ring"
        yield Message(slot=order.ts, kind="view", source=f"{order.orderer:x}", size=0, words=words)
    elif order.tick:
        yield Message(slot=order.ts, kind="tick", source=f"{order.orderer:x}", size=0)
    for message in _messages(entry, language):
        if message.size > BRIEF_BYTES and message.arguments is not None:
            words = f"{message.words} its arguments are left out".strip()
            yield msgspec.structs.replace(message, arguments=None, words=words)
        else:
            yield message


def moment(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).isoformat(timespec="milliseconds")


# -- views ---------------------------------------------------------------------------------------


def _members(ledger: Ledger, ts: int, view: View, before: View | None) -> Members:
    def named(sites: tuple[int, ...]) -> list[str]:
        return [f"{site:x}" for site in sites]

    return Members(
        id=str(view.id),
        chain=f"{chain_at(ledger, ts):x}",
        ring=named(view.ring),
        electorate=named(view.electorate),
        learners=named(view.learners),
        words=_change(view, before),
    )


def _change(view: View, before: View | None) -> str:
    """What is new in a view, person by person."""
    opened = [f"epoch {view.id.epoch} begins"] if not view.id.revision else []
    if before is None:
        return "; ".join([*opened, f"{len(view.electorate)} voters"])
    said = list(opened)
    old = {member.site: member for member in before.members}
    new = {member.site: member for member in view.members}
    said += [f"{member.address} joins as {site:x}" for site, member in new.items() if site not in old]
    said += [f"{member.address} ({site:x}) is gone" for site, member in old.items() if site not in new]
    for site, member in new.items():
        was = old.get(site)
        name = f"{member.address} ({site:x})"
        if was is not None and was.boot != member.boot:
            said.append(f"{name} has started again")
        if was is not None and site in view.electorate and site not in before.electorate:
            said.append(f"{name} votes")
        if was is not None and (site in view.ring) != (site in before.ring):
            said.append(f"{name} is {'in' if site in view.ring else 'out of'} the ring")
    if view.locks != before.locks:
        said.append("locks change")
    return "; ".join(said) or "nothing changes"


# -- messages ------------------------------------------------------------------------------------


def _messages(entry: Entry, language: Language) -> Iterator[Message]:
    slot = entry.order.ts
    for batch in entry.batches:
        for place, data in enumerate(batch.messages):
            slot += 1
            source = f"{batch.source:x}"
            if batch.calls:
                call = batch.calls[place]
                source += f" for {call.address or f'{call.caller:x}'}"
            yield _message(slot, source, data, language)


def _message(slot: int, source: str, data: bytes, language: Language) -> Message:
    read = language.decode(data)
    said: dict[str, Any] = {"slot": slot, "source": source, "size": len(data)}
    match read:
        case language.execute():
            return Message(**said, kind="command", **_command(read.command), **_request(read))
        case language.ask():
            return Message(**said, kind="query", **_command(read.query))
        case Unread():
            words = "this machine has no such command, or takes other arguments"
            return Message(
                **said, kind="command", arguments=_raw(read.command), words=words, **_request(read)
            )
        case Open():
            return Message(**said, kind="open", words="a client opens a session")
        case Close(session):
            return Message(**said, kind="close", session=session, words="a session is closed")
        case Announce():
            versions = ", ".join(map(str, sorted(read.signatures)))
            words = f"it runs {read.machine}, versions {versions}; boot {read.boot.hex()}"
            return Message(**said, kind="announce", words=words)
        case Activate(version):
            return Message(**said, kind="activate", words=f"version {version} from here on")
        case Barrier():
            return Message(**said, kind="barrier", words="nothing to do")
        case Checkpoint(ts, digest):
            return Message(**said, kind="checkpoint", words=f"digest {digest:08x} before slot {ts}")
        case _:
            return Message(**said, kind="unreadable", words="nobody's message")


def _request(read: Any) -> dict[str, Any]:
    return {"session": read.session, "number": read.number}


def _command(command: Any) -> dict[str, Any]:
    """Name and arguments of a call, which is a struct, or bytes for a machine's ``apply``."""
    if not isinstance(command, msgspec.Struct):
        return {"method": "apply", "arguments": plain([command])}
    arguments = {name: getattr(command, name) for name in command.__struct_fields__}
    return {"method": type(command).__name__, "arguments": plain(arguments)}


def _raw(command: msgspec.Raw) -> Json:
    """What somebody has sent; it need not be anything that can be read."""
    try:
        return plain(msgspec.msgpack.decode(command))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return bytes(command).hex()


def plain(value: object) -> Json:
    """As JSON can have it, whatever its type; bytes in base64. What JSON has no place for is told in Python's
    words, as is a dictionary whose keys are neither texts nor numbers."""
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=repr)
    except TypeError:
        return repr(value)
