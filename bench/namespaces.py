"""Network namespaces that leave nothing behind.

A namespace is held by a process of its own, and everything in it (bridge, links, routes) is made inside it,
never beside it. When the holder ends the kernel takes it all away. The holder ends when its standard input
does, so it ends with us, also when we are killed; nothing on the machine has a name that could collide.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.errors import BenchError, NotAvailable

_CLONE_NEWNS = 0x00020000
_CLONE_NEWNET = 0x40000000
_HOLDER_SECONDS = 5.0
_IP_SECONDS = 10.0

# Jumbo links: what loopback has, so that one packet is one datagram here as well.
LINK_MTU = 65_535


def require(what: str) -> None:
    """Say what is missing before anything is made."""
    if os.geteuid() != 0:
        raise NotAvailable(
            f"{what} runs in network namespaces of its own, which only root can make; use sudo"
        )
    missing = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if missing:
        raise NotAvailable(
            f"{what} needs {', '.join(missing)}; on Debian: apt-get install util-linux iproute2"
        )


# /run and /dev/shm hold what a daemon may have only once on a machine: its lock, its shared memory.
_OWN_MEMORY = "mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /dev/shm && exec cat"


class Namespace:
    """One network namespace, its loopback up and able to multicast.

    With ``own_memory`` it has a /run and a /dev/shm of its own as well, which vanish with it.
    """

    def __init__(self, *, own_memory: bool = False) -> None:
        self.own_memory = own_memory
        held = ["--mount", "--", "sh", "-c", _OWN_MEMORY] if own_memory else ["--", "cat"]
        self._holder = subprocess.Popen(
            ["unshare", "--net", *held],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is ours to handle, not the holder's
        )
        self.pid = self._holder.pid
        try:
            self._wait_until_held()
            self.ip("link", "set", "lo", "up", "multicast", "on")
            self.ip("route", "add", "224.0.0.0/4", "dev", "lo", "metric", "1000")
        except BaseException:
            self.close()
            raise

    def _wait_until_held(self) -> None:
        """An echo comes only from inside the new namespace."""
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        try:
            self._holder.stdin.write(b"\n")
            self._holder.stdin.flush()
        except BrokenPipeError:
            pass
        if self._holder.stdout.read(1) != b"\n":
            assert self._holder.stderr is not None
            why = self._holder.stderr.read().decode(errors="replace").strip()
            raise NotAvailable(f"no network namespace could be made: {why or 'unshare ended at once'}")

    def command(self, *words: str) -> list[str]:
        """The command line that runs ``words`` in here, as the process that is started, not its child."""
        mount = ["--mount"] if self.own_memory else []
        return ["nsenter", f"--target={self.pid}", "--net", *mount, "--", *words]

    def file(self, name: str) -> Path:
        """A file in its own /run, seen from outside."""
        assert self.own_memory
        return Path("/proc", str(self.pid), "root", "run", name)

    def ip(self, *words: str) -> None:
        done = subprocess.run(
            self.command("ip", *words), capture_output=True, text=True, timeout=_IP_SECONDS, check=False
        )
        if done.returncode:
            raise BenchError(f"ip {' '.join(words)}: {done.stderr.strip()}")

    def close(self) -> None:
        holder = self._holder
        for pipe in (holder.stdin, holder.stdout, holder.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
        try:
            holder.wait(_HOLDER_SECONDS)
        except subprocess.TimeoutExpired:
            holder.kill()
            holder.wait()


class Bridge:
    """Sites on one switch, each in a namespace of its own; links can be pulled."""

    def __init__(self, switch: Namespace, sites: list[Namespace]) -> None:
        self.switch = switch
        self.sites = sites
        self.addresses = [f"10.77.0.{number}" for number in range(1, len(sites) + 1)]

    def cut(self, site: int) -> None:
        self.switch.ip("link", "set", f"port{site}", "down")

    def mend(self, site: int) -> None:
        self.switch.ip("link", "set", f"port{site}", "up")


@contextmanager
def private_loopback(what: str) -> Iterator[Namespace]:
    """One namespace for all sites: IP multicast over its loopback reaches nobody else."""
    require(what)
    namespace = Namespace()
    try:
        yield namespace
    finally:
        namespace.close()


@contextmanager
def bridged(what: str, count: int, *, mtu: int = LINK_MTU, own_memory: bool = False) -> Iterator[Bridge]:
    """``count`` namespaces, each with one link into a bridge in yet another."""
    require(what)
    with ExitStack() as stack:

        def made() -> Namespace:
            namespace = Namespace(own_memory=own_memory)
            stack.callback(namespace.close)
            return namespace

        switch = made()
        # Snooping would hold multicast back until a querier has spoken; there is none here.
        switch.ip("link", "add", "name", "br0", "type", "bridge", "mcast_snooping", "0")
        switch.ip("link", "set", "dev", "br0", "up")
        bridge = Bridge(switch, [made() for _ in range(count)])
        for number, (site, address) in enumerate(zip(bridge.sites, bridge.addresses, strict=True)):
            port = f"port{number}"
            switch.ip(
                "link", "add", "name", port, "type", "veth", "peer", "name", "eth0", "netns", str(site.pid)
            )
            switch.ip("link", "set", "dev", port, "mtu", str(mtu), "master", "br0", "up")
            site.ip("link", "set", "dev", "eth0", "mtu", str(mtu), "up")
            site.ip("address", "add", f"{address}/24", "dev", "eth0")
            site.ip("route", "add", "224.0.0.0/4", "dev", "eth0")
        yield bridge


def enter(pid: int, *, own_memory: bool) -> None:
    """Move this process (its only thread) to where the holder ``pid`` is."""
    here = os.getcwd()
    _enter(f"/proc/{pid}/ns/net", _CLONE_NEWNET)
    if own_memory:
        _enter(f"/proc/{pid}/ns/mnt", _CLONE_NEWNS)
        os.chdir(here)  # entering it leads to its root


def _enter(path: str, kind: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, kind):
            number = ctypes.get_errno()
            raise OSError(number, f"cannot enter {path}: {os.strerror(number)}")
    finally:
        os.close(descriptor)
