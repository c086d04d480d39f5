"""A group's state in a file, and a new group of it (``docs/operations.md``, decision 010).

::

    "RSMSNAP1"
    length, crc    Header        what it is of
    length, crc    a piece       of the executor's snapshot, any number of them
    0, 0
    BLAKE2b-256 of everything before

A file is written beside its place, synced, read again, and only then moved there. Nothing of it is used
before all of it is verified.

**A restored group is a new chain** (R9). ``found`` gives a founder the disk that it would have if the chain
had been born with that state: the log is empty and begins behind the state's slot, in a view of all founders.
Chain, sites and boots follow from the file, the founders and a token: founders on different machines agree
without a word, and founders that were given different files are no members of one group. It takes a majority
of them to go on, as after a restart of all. So whoever restores at one founder only has a replica that waits.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator
from hashlib import blake2b, sha256
from importlib.metadata import version
from pathlib import Path
from struct import Struct as Layout
from time import time_ns
from typing import IO, Final

import google_crc32c
import msgspec

from ordering.naming import group_id
from ordering.packets import Descent, Position
from ordering.records import Began, Leapt
from ordering.views import Member, SiteId, View, ViewId
from rsm.errors import RsmError
from rsm.executor import Group, closed, opened
from rsm.state_machine import GroupView
from rsm.storage import Store
from rsm.storage.claim import sync_directory
from rsm.storage.errors import StorageForeign

MAGIC: Final = b"RSMSNAP1"
FORMAT: Final = 1
PIECE_MAX: Final = 1 << 20
HASH_BYTES: Final = 32
_FRAME: Final = Layout(">II")
_EPOCH: Final = 1  # as after a birth


class BackupError(RsmError):
    """The file is not what was saved, or is there already."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What can be told without the machine. ``saved_at`` is the wall clock's, ``time`` the group's."""

    format: int = FORMAT
    group: str
    machine: str
    version: int
    chain: int
    slot: int
    time: int
    digest: int
    sessions: int
    source: str
    saved_at: int
    saved_by: str


class Contents(msgspec.Struct, frozen=True):
    """A file that was verified. ``hash`` is of all of it."""

    header: Header
    length: int
    hash: bytes


# -- writing -------------------------------------------------------------------------------------


def save(
    path: Path, group_name: str, source: str, chunks: Iterable[bytes], *, replace: bool = False
) -> Contents:
    """Write a snapshot of an executor; it is on the disk, and was read again, when this returns."""
    if path.exists() and not replace:
        raise BackupError(f"{path} is there already; name another file, or say --force")
    group, state = opened(chunks)
    view = group.view
    header = Header(
        group=group_name,
        machine=group.machine,
        version=group.version,
        chain=0 if view is None else view.chain,
        slot=group.applied,
        time=group.time,
        digest=group.digest,
        sessions=len(group.sessions),
        source=source,
        saved_at=time_ns(),
        saved_by=version("rsm"),
    )
    fd, name = tempfile.mkstemp(".part", f"{path.name}.", path.absolute().parent)  # ours alone
    draft = Path(name)
    try:
        with os.fdopen(fd, "wb") as file:
            _write(file, header, closed(group, state))
            file.flush()
            os.fsync(file.fileno())
        contents = verify(draft)
        draft.rename(path)
        sync_directory(path.absolute().parent)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return contents


def _write(file: IO[bytes], header: Header, chunks: Iterable[bytes]) -> None:
    digest = blake2b(digest_size=HASH_BYTES)

    def put(data: bytes) -> None:
        digest.update(data)
        file.write(data)

    def put_frame(body: bytes) -> None:
        put(_FRAME.pack(len(body), google_crc32c.value(body)))
        put(body)

    put(MAGIC)
    put_frame(msgspec.msgpack.encode(header))
    for chunk in chunks:
        for at in range(0, len(chunk), PIECE_MAX):
            put_frame(bytes(chunk[at : at + PIECE_MAX]))
    put(_FRAME.pack(0, 0))
    file.write(digest.digest())


# -- reading -------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file = file
        self._path = path
        self._digest = blake2b(digest_size=HASH_BYTES)

    def take(self, length: int) -> bytes:
        data = self._file.read(length)
        if len(data) < length:
            raise BackupError(f"{self._path} is cut off; save it again, or copy it again")
        self._digest.update(data)
        return data

    def frame(self) -> bytes:
        length, crc = _FRAME.unpack(self.take(_FRAME.size))
        if length > PIECE_MAX:
            raise BackupError(f"{self._path} is damaged: a piece of {length} bytes cannot be")
        body = self.take(length)
        if google_crc32c.value(body) != crc:
            raise BackupError(f"{self._path} is damaged: a piece has a wrong checksum")
        return body

    def end(self) -> bytes:
        found = self._digest.digest()
        if self._file.read(HASH_BYTES + 1) != found:
            raise BackupError(f"{self._path} is damaged: it is not what was saved")
        return found


def _begin(file: IO[bytes], path: Path) -> tuple[_Reader, Header]:
    reader = _Reader(file, path)
    if file.read(len(MAGIC)) != MAGIC:
        raise BackupError(f"{path} is no snapshot of rsm")
    reader._digest.update(MAGIC)
    try:
        header = msgspec.msgpack.decode(reader.frame(), type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise BackupError(
            f"{path} has a header that this release cannot read; use the one that wrote it"
        ) from None
    if header.format != FORMAT:
        raise BackupError(f"{path} has format {header.format}, this release reads {FORMAT}")
    return reader, header


def verify(path: Path) -> Contents:
    """Read all of it."""
    try:
        with path.open("rb") as file:
            reader, header = _begin(file, path)
            length = 0
            while piece := reader.frame():
                length += len(piece)
            contents = Contents(header, length, reader.end())
    except OSError as error:
        raise BackupError(f"{path} cannot be read: {error.strerror}") from None
    group, _ = opened(pieces(path))
    view = group.view
    if (group.applied, group.digest) != (header.slot, header.digest) or (view and view.chain) != header.chain:
        raise BackupError(f"{path} is damaged: its header is of another state")
    return contents


def pieces(path: Path) -> Iterator[bytes]:
    """The executor's snapshot of a file; an altered one raises ``BackupError`` at the latest at its end."""
    with path.open("rb") as file:
        reader, _ = _begin(file, path)
        while piece := reader.frame():
            yield piece
        reader.end()


# -- a new chain ---------------------------------------------------------------------------------


class Founding(msgspec.Struct, frozen=True):
    """The first view of a restored group; the same wherever file, founders and token are the same."""

    chain: int
    view: View


def plan(contents: Contents, group: str, founders: tuple[str, ...], token: str) -> Founding:
    seed = sha256(b"rsm restored " + contents.hash)
    for word in (group, token, *founders):
        seed.update(len(word.encode()).to_bytes(4, "big") + word.encode())

    def drawn(what: str, size: int) -> int:
        """Never 0: no site, and no chain, has that."""
        found = sha256(seed.digest() + what.encode()).digest()[:size]
        return int.from_bytes(found, "big") or 1

    members = tuple(
        Member(SiteId(drawn(f"site {address}", 8)), drawn(f"boot {address}", 16), address)
        for address in founders
    )
    sites = tuple(member.site for member in members)
    return Founding(drawn(f"chain {group_id(group)}", 8), View(ViewId(_EPOCH, 0), members, sites, sites))


def found(path: Path, founding: Founding, address: str, directory: Path, url: str | None, group: str) -> None:
    """Make the disk of the founder at ``address``. The state is saved before the log says that it is there: a
    directory in which this was interrupted is empty to a replica, and to the next attempt."""
    state, machine = opened(pieces(path))
    me = next(member for member in founding.view.members if member.address == address)
    ts, time, view = state.applied, state.time, founding.view
    sites = tuple(member.site for member in view.members)
    born = View(ViewId(0, 0), view.members, sites, ())
    vector = tuple((site, 0) for site in sites)
    descent = Descent(founding.chain, 0)
    chunks = closed(_in_new_chain(state, founding), machine)
    store = _empty(directory, url, group)
    try:
        store.wipe()
        store.save_snapshot(ts, chunks, state.digest.to_bytes(4, "big"))
        store.write(
            (
                Began(me.site, founding.chain, descent, born, 0, 0, ()),
                Leapt(Position(_EPOCH, ts, ts, view, vector, time), ((0, founding.chain),), ()),
            )
        )
    finally:
        store.close()


def check_empty(directory: Path, url: str | None, group: str) -> None:
    """Whether ``found`` may write there; raises a ``StorageError`` that says why not."""
    if directory.exists() or url is not None:
        _empty(directory, url, group).close()


def _empty(directory: Path, url: str | None, group: str) -> Store:
    store = Store.open(directory, url, group=group)
    try:
        restored = store.restore()
        if restored.amnesiac is not None or restored.ledger.began is not None:
            raise StorageForeign(
                f"{directory} has a log already; stop its replica and move the directory away first"
            )
    except BaseException:
        store.close()
        raise
    return store


def _in_new_chain(state: Group, founding: Founding) -> Group:
    """The same for the machine and its clients. Sessions stay, their ids name the chain that opened them: so
    a call that was executed before the state was saved is answered from there, and not executed again."""
    return msgspec.structs.replace(
        state,
        announced={},
        checkpoints={},
        view=GroupView.of(state.applied, founding.chain, founding.view),
    )
