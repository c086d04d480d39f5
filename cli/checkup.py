"""What `rsm doctor` looks at on the machine itself: settings, limits, the address, the disk."""

import errno
import os
import resource
import shutil
import socket
import sqlite3
import stat
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from ordering.errors import OrderingError
from ordering.transports.addresses import parse_endpoint
from ordering.transports.udp import BUFFER_BYTES, BUFFER_BYTES_ENOUGH
from pipeline.errors import JavaMissing
from pipeline.java import require_java
from rsm.config import ReplicaConfig
from rsm.storage.errors import StorageCorrupt, StorageError
from rsm.storage.looking import Look, looking, owner_of

FILES_ENOUGH: Final = 1024
FREE_ENOUGH: Final = 1 << 30
FREE_LEAST: Final = 64 << 20
SYNCS: Final = 9
SYNC_SLOW: Final = 0.020
VOLATILE: Final = frozenset({"tmpfs", "ramfs"})
REMOTE: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"})


class Verdict(StrEnum):
    WELL = "well"
    MIND = "mind"  # it works, and will not when it matters
    WRONG = "wrong"


class Finding(msgspec.Struct, frozen=True):
    """``advice`` says what to do about it."""

    what: str
    verdict: Verdict
    words: str
    advice: str = ""


def well(what: str, words: str) -> Finding:
    return Finding(what, Verdict.WELL, words)


def mind(what: str, words: str, advice: str) -> Finding:
    return Finding(what, Verdict.MIND, words, advice)


def wrong(what: str, words: str, advice: str) -> Finding:
    return Finding(what, Verdict.WRONG, words, advice)


# -- settings ------------------------------------------------------------------------------------


def settings(site: ReplicaConfig) -> Iterator[Finding]:
    own = site.advertise or site.bind
    try:
        site.engine(site.founders or (own,), site.contacts)
    except OrderingError as error:
        yield wrong("configuration", str(error), "change the setting it names")
        return
    if not site.founders and not site.contacts:
        words = "there are neither founders nor contacts"
        yield wrong("configuration", words, "list the founders, or contacts to join by")
    elif site.founders and own not in site.founders and not site.contacts:
        words = f"{own} is not among the founders: it joins, by way of them"
        yield mind("configuration", words, "list it in founders if it is to found the group")
    else:
        place = "founds" if own in site.founders else "joins"
        yield well("configuration", f"{own} {place} group {site.group}, mode {site.mode}")
    if 0 < len(site.founders) < 3:
        words = f"{len(site.founders)} founders survive no failure"
        yield mind("founders", words, "three survive one, five survive two")
    elif site.founders and len(site.founders) % 2 == 0:
        words = f"{len(site.founders)} founders survive no more failures than {len(site.founders) - 1}"
        yield mind("founders", words, "use an odd number")


def key(site: ReplicaConfig) -> Iterator[Finding]:
    if site.key_file is None:
        loopback = site.bind.startswith(("127.", "[::1]", "localhost"))
        advice = "make a key: (umask 077; openssl rand -hex 32 > group.key), and set key_file at every site"
        words = "packets are neither encrypted nor authenticated (insecure)"
        yield mind("key", words, advice) if loopback else wrong("key", words, advice)
        return
    try:
        keyring = site.keyring()
        status = site.key_file.stat()
    except (OrderingError, OSError) as error:
        yield wrong("key", str(error), "copy the group's key file here")
        return
    others = stat.S_IMODE(status.st_mode) & 0o077
    if others:
        words = f"{site.key_file} can be read or written by others (mode {stat.S_IMODE(status.st_mode):o})"
        yield wrong("key", words, f"chmod 600 {site.key_file}; if others may have read it, rotate the key")
    else:
        prints = ", ".join(keyring.fingerprints) if keyring is not None else ""
        yield well("key", f"{site.key_file}, fingerprint {prints}: the same at every site?")


# -- the process ---------------------------------------------------------------------------------


def runtime() -> Iterator[Finding]:
    python = f"Python {'.'.join(map(str, sys.version_info[:3]))}"
    try:
        yield well("runtime", f"{python}, uvloop {version('uvloop')}")
    except PackageNotFoundError:
        yield mind("runtime", f"{python}, without uvloop", "install it: the ring is faster by half or more")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FILES_ENOUGH:
        words = f"at most {soft} open files"
        yield mind("open files", words, f"ulimit -n {FILES_ENOUGH}, or LimitNOFILE= of the service")
    else:
        yield well("open files", f"at most {soft}")


def java() -> Iterator[Finding]:
    """Only who has the pipeline on this machine wants one."""
    if find_spec("pyspark") is None:
        return
    try:
        found = require_java()
    except JavaMissing as error:
        yield mind("java", "rsm pipeline does not run here", str(error))
    else:
        yield well("java", f"{found.path}, version {found.version}, for rsm pipeline")


def buffers() -> Iterator[Finding]:
    """What a socket of ours would get."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for name, option, limit in (
            ("receive", socket.SO_RCVBUF, "net.core.rmem_max"),
            ("send", socket.SO_SNDBUF, "net.core.wmem_max"),
        ):
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
            got = sock.getsockopt(socket.SOL_SOCKET, option) // (2 if sys.platform == "linux" else 1)
            if got < BUFFER_BYTES_ENOUGH and os.geteuid() != 0:
                words = f"{got // 1024} KiB, and bursts of packets are dropped"
                yield mind(f"UDP {name} buffer", words, f"sysctl -w {limit}={BUFFER_BYTES}")
            else:
                said = f"{got // 1024} KiB" + (", more as root" if got < BUFFER_BYTES_ENOUGH else "")
                yield well(f"UDP {name} buffer", said)


# -- the address ---------------------------------------------------------------------------------


def address(site: ReplicaConfig, *, answers: bool) -> Iterator[Finding]:
    """Whether it can be bound; ``answers``: a replica of this group does so there."""
    try:
        host, port = parse_endpoint(site.bind, "bind")
    except OrderingError as error:
        yield wrong("address", str(error), 'say bind = "host:port"')
        return
    for kind, number in (("UDP", socket.SOCK_DGRAM), ("TCP", socket.SOCK_STREAM)):
        failure = _try_bind(host, port, number)
        if failure is None:
            continue
        holder = _holder(kind.lower(), port)
        if answers:
            yield well("address", f"{site.bind} is in use by this group's replica{holder}")
        elif holder or failure.errno == errno.EADDRINUSE:
            words = f"{kind} {site.bind} is in use{holder}, and no replica of this group answers there"
            yield wrong("address", words, "end it, or give this site another port")
        else:
            words = f"{kind} {site.bind}: {failure.strerror}"
            yield wrong("address", words, "is it an address of this machine?")
        return
    yield well("address", f"{site.bind} is free, for UDP and TCP")


def _try_bind(host: str, port: int, kind: int) -> OSError | None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind) as sock:
        if kind == socket.SOCK_STREAM:  # what lingers of an earlier connection is no hindrance
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            return error
    return None


def _holder(kind: str, port: int) -> str:
    """The process that has a port, as far as one may see."""
    inodes: set[str] = set()
    for name in (kind, f"{kind}6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                if int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(os.readlink(file) in inodes for file in (process / "fd").iterdir()):
                name = (process / "comm").read_text().strip()
                return f" by process {process.name} ({name})"
    return ""


# -- the disk ------------------------------------------------------------------------------------


def disk(site: ReplicaConfig) -> Iterator[Finding]:
    if site.data is None:
        words = "nothing is written: if all sites stop, the state is gone"
        yield mind("data", words, 'mode = "durable" keeps it')
        return
    place = next(path for path in (site.data, *site.data.absolute().parents) if path.exists())
    yield from _file_system(place)
    yield from _room(site, place)
    yield from _sync(place)
    yield from _log(site)


def _file_system(place: Path) -> Iterator[Finding]:
    kind = _kind_of(place)
    if kind in VOLATILE:
        words = f"{place} is on {kind}: a restart of the machine empties it"
        yield wrong("file system", words, "put `data` on a disk")
    elif kind in REMOTE:
        words = f"{place} is on {kind}, whose locks and syncs may not hold what they promise"
        yield mind("file system", words, "use a local disk, or PostgreSQL")
    else:
        yield well("file system", f"{place} is on {kind or 'an unknown one'}")


def _kind_of(place: Path) -> str:
    """By the longest mount point that it is below."""
    best, kind = "", ""
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, point, found, *_ = line.split()
            point = point.replace("\\040", " ")
            if place.resolve().is_relative_to(point) and len(point) >= len(best):
                best, kind = point, found
    return kind


def _room(site: ReplicaConfig, place: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(place).free
    assert site.data is not None
    used = sum(path.stat().st_size for path in site.data.glob("rsm.db*")) if site.data.is_dir() else 0
    words = f"{free >> 20} MiB free, {used >> 20} MiB used by the log and its snapshots"
    if free < FREE_LEAST:
        yield wrong("space", words, "free some: a replica whose disk is full stops")
    elif free < max(FREE_ENOUGH, 2 * used):
        yield mind("space", words, "a second snapshot is written beside the first: free some")
    else:
        yield well("space", words)


def _sync(place: Path) -> Iterator[Finding]:
    """What a command waits for. A file that has its size already, as the log has."""
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".rsm-doctor-") as file:
            file.write(bytes(SYNCS * 4096))
            os.fsync(file.fileno())
            took = []
            for number in range(SYNCS):
                began = time.perf_counter()
                os.pwrite(file.fileno(), os.urandom(4096), number * 4096)
                os.fdatasync(file.fileno())
                took.append(time.perf_counter() - began)
    except OSError as error:
        yield wrong("sync", f"{place}: {error.strerror}", "the service's user must be able to write there")
        return
    median = statistics.median(took)
    words = f"fdatasync takes {median * 1000:.2f} ms, at most {max(took) * 1000:.2f} ms of {SYNCS}"
    if median > SYNC_SLOW:
        yield mind("sync", words, "every command waits for two of them, one behind the other: a faster disk")
    else:
        yield well("sync", words)


def _log(site: ReplicaConfig) -> Iterator[Finding]:
    assert site.data is not None
    yield well("SQLite" if site.database is None else "database", _database(site))
    if not site.data.is_dir() or not any(site.data.iterdir()):
        yield well("log", f"{site.data}: nothing was written yet")
        return
    try:
        with looking(site.data, site.database) as look:
            damage = look.damage()
            if damage is not None:
                raise StorageCorrupt(f"SQLite finds its file damaged: {damage}")
            for _ in look.chunks():
                pass
            yield from _look(site, look)
    except StorageCorrupt as error:
        owner = owner_of(site.data)
        advice = "start the replica: it notices, begins anew and takes the state from the others"
        if owner:
            advice = f"process {owner} runs on it; stop it before something else breaks, and start it again"
        yield wrong("log", str(error), advice)
    except StorageError as error:
        yield wrong("log", str(error), "see docs/storage.md")


def _database(site: ReplicaConfig) -> str:
    return f"version {sqlite3.sqlite_version}" if site.database is None else "PostgreSQL"


def _look(site: ReplicaConfig, look: Look) -> Iterator[Finding]:
    ledger = look.ledger
    running = f", process {look.owner} runs" if look.owner else ""
    if look.group != site.group:
        words = f"{site.data} is of group {look.group!r}"
        yield wrong("log", words, "give each group of a site a directory of its own")
        return
    yield well(
        "log",
        f"log and claim are sound: {len(ledger.entries)} blocks up to slot {ledger.end},"
        f" {look.transactions} transactions{running}",
    )
    covered = 0 if look.snapshot is None else look.snapshot.ts
    behind = [entry for entry in ledger.entries.values() if entry.order.last_ts > covered]
    size = sum(batch.size for entry in behind for batch in entry.batches)
    newest = behind[-1].order.time if behind else 0
    minutes = (newest - behind[0].order.time) / 60e9 if behind else 0.0
    words = "none yet" if look.snapshot is None else f"of slot {covered}, {look.snapshot.length >> 10} KiB"
    words += f"; {size >> 10} KiB of log behind it, of {minutes:.0f} minutes"
    if size > 2 * site.snapshot_bytes:
        yield mind("snapshot", words, "snapshots are not saved any more; the log of the replica says why")
    else:
        yield well("snapshot", words)
