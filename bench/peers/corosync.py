"""Corosync (Totem, in C) under our workload: daemons in namespaces of their own, applications on libcpg.

Three daemons share nothing but a bridge; each has its own /run and /dev/shm, so that nothing of them meets a
corosync that this machine may run, and nothing is left when we end.

The applications are processes like ours that send, receive and hash. Where a C compiler is found they are
written in C (``cpg_application.c``), so that corosync is measured and not ctypes, which takes several
microseconds for each message on the cores the daemons need. Without a compiler they are Python, and the
result says so.
"""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from bench.bare import batches
from bench.errors import BenchError, NotAvailable
from bench.namespaces import Bridge, bridged
from bench.peers.cpg import INSTALL, Group, NativeGroup, Work, library
from bench.programs import cpu_seconds
from bench.results import Value, latencies
from bench.wire import same
from bench.workers import Crew, CrewMaker, Link, Placement, Post

NAME = "rsm-bench"
_FORM_SECONDS = 30.0
_SLACK_SECONDS = 20.0
_VIEW_SECONDS = 30.0
_STOP_SECONDS = 3.0


class Setting(msgspec.Struct, frozen=True):
    """What a corosync.conf says beyond the members."""

    transport: str
    totem: tuple[tuple[str, int], ...] = ()


# Frames of 64 kB need links that carry them; ours do. The window is counted in frames.
SETTINGS = {
    "knet": Setting("knet"),
    "knet, window 300": Setting("knet", (("window_size", 300), ("max_messages", 100))),
    "udpu": Setting("udpu"),
    "udpu, 64 kB frames": Setting("udpu", (("netmtu", 65_000),)),
    "udp multicast": Setting("udp"),
    "udp multicast, 64 kB frames": Setting("udp", (("netmtu", 65_000),)),
    "udp multicast, 8 kB frames, window 300": Setting(
        "udp", (("netmtu", 8_900), ("window_size", 300), ("max_messages", 100))
    ),
}


def require() -> str:
    """The daemon's version; refuses where something is not installed, and says how to install it."""
    if shutil.which("corosync") is None:
        raise NotAvailable(f"corosync is not installed; to install it on Debian: {INSTALL}")
    library()
    shown = subprocess.run(["corosync", "-v"], capture_output=True, text=True, timeout=10, check=False).stdout
    words = shown.replace("'", " ").split()
    return words[words.index("version") + 1] if "version" in words else "unknown"


# -- daemons -------------------------------------------------------------------------------------


def configuration(setting: Setting, addresses: list[str]) -> str:
    """A corosync.conf for all members; crypto off, as ``--plain`` is for us."""
    totem = {"version": 2, "cluster_name": NAME, "transport": setting.transport}
    totem |= {"crypto_cipher": "none", "crypto_hash": "none", **dict(setting.totem)}
    interface = ""
    if setting.transport == "udp":
        interface = (
            "  interface {\n    ringnumber: 0\n    bindnetaddr: 10.77.0.0\n"
            "    mcastaddr: 239.77.3.1\n    mcastport: 5405\n  }\n"
        )
    nodes = "".join(
        f"  node {{\n    ring0_addr: {address}\n    nodeid: {number}\n    name: site{number}\n  }}\n"
        for number, address in enumerate(addresses, 1)
    )
    settings = "".join(f"  {name}: {value}\n" for name, value in totem.items())
    return (
        f"totem {{\n{settings}{interface}}}\nnodelist {{\n{nodes}}}\n"
        "logging {\n  to_stderr: no\n  to_syslog: no\n  to_logfile: yes\n  logfile: /run/corosync.log\n}\n"
        # Real-time daemons would starve their own applications on so few cores.
        "system {\n  state_dir: /run\n  sched_rr: no\n}\n"
    )


class Daemons:
    """One corosync for each site of a bridge."""

    def __init__(self, bridge: Bridge, setting: Setting, placement: Placement) -> None:
        self.bridge = bridge
        self.processes: list[subprocess.Popen[bytes]] = []
        text = configuration(setting, bridge.addresses)
        for number, site in enumerate(bridge.sites):
            site.file("corosync.conf").write_text(text, encoding="utf-8")
            cpu = placement.cpu(number)
            pinned = ["taskset", "-c", str(cpu)] if cpu is not None else []
            words = [*pinned, "setpriv", "--pdeathsig", "KILL", "corosync", "-f", "-c", "/run/corosync.conf"]
            self.processes.append(
                subprocess.Popen(
                    site.command(*words),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )

    def cpu_seconds(self) -> float:
        return sum(cpu_seconds(process.pid) for process in self.processes)

    def check(self) -> None:
        for number, process in enumerate(self.processes):
            if process.poll() is not None:
                log = self.bridge.sites[number].file("corosync.log")
                last = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
                raise BenchError(f"corosync of site {number + 1} ended: {' '.join(last) or 'it left no log'}")

    def kill(self, number: int) -> None:
        self.processes[number].kill()
        self.processes[number].wait()

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait(_STOP_SECONDS)


@contextmanager
def cluster(setting: Setting, sites: int, placement: Placement) -> Iterator[Daemons]:
    with bridged("a corosync of its own", sites, own_memory=True) as bridge:
        daemons = Daemons(bridge, setting, placement)
        try:
            yield daemons
        finally:
            daemons.stop()


# -- applications --------------------------------------------------------------------------------


def _application(link: Link, me: int, sites: int, native: str) -> None:
    """One member: takes work until told to end."""
    group = NativeGroup(native, NAME, _FORM_SECONDS) if native else Group(NAME, _FORM_SECONDS)
    until = time.monotonic() + _FORM_SECONDS
    while group.members < sites:
        group.dispatch(50)
        if time.monotonic() > until:
            raise BenchError(f"corosync formed no group of {sites} within {_FORM_SECONDS:.0f} s")
    link.say("member")
    while (work := link.hear()) is not None:
        link.say(_watch(group, sites) if work == "watch" else _do(group, me, work))


def _do(group: Group | NativeGroup, me: int, work: Work) -> dict[str, object]:
    cpu = time.process_time()
    report = group.run(me, work, [message for batch in batches(work.size, 2) for message in batch])
    return report | {"cpu_s": time.process_time() - cpu}


def _watch(group: Group | NativeGroup, sites: int) -> int:
    """When this member learnt that one of them is gone."""
    until = time.monotonic() + _VIEW_SECONDS
    while group.members >= sites:
        group.dispatch(50)
        if time.monotonic() > until:
            raise BenchError(f"no new view within {_VIEW_SECONDS:.0f} s")
    return group.changed_ns


# -- what the command runs -----------------------------------------------------------------------


class Cluster:
    """Daemons and applications of one setting, ready for work."""

    def __init__(self, daemons: Daemons, crew: Crew, placement: Placement, native: str) -> None:
        self.daemons = daemons
        self.crew = crew
        self.sites = len(daemons.bridge.sites)
        for me, site in enumerate(daemons.bridge.sites):
            post = Post(site, placement.cpu(me))
            crew.start(f"corosync application {me + 1}", _application, me, self.sites, native, post=post)
        try:
            crew.hear_all(crew.workers, _FORM_SECONDS + _SLACK_SECONDS)
        except BenchError:
            daemons.check()
            raise

    def run(self, work: Work) -> dict[str, Value]:
        before = self.daemons.cpu_seconds()
        for worker in self.crew.workers:
            worker.tell(work)
        reports = self.crew.hear_all(self.crew.workers, work.seconds + 2 * _SLACK_SECONDS)
        same([report["digest"] for report in reports], "corosync")
        rate = min(report["count"] / max(report["seconds"], 1e-9) for report in reports)
        delivered = max(reports[0]["count"], 1)
        daemon_cpu = self.daemons.cpu_seconds() - before
        values: dict[str, Value] = {
            "messages_per_s": round(rate),
            "mb_per_s": round(rate * work.size / 1e6, 1),
            "delivered": reports[0]["count"],
            "digest": reports[0]["digest"],
            "refused_by_flow_control": sum(report["refused"] for report in reports),
            "daemon_cpu_us_per_message": round(1e6 * daemon_cpu / delivered, 2),
            "application_cpu_us_per_message": round(1e6 * sum(r["cpu_s"] for r in reports) / delivered, 2),
        }
        if work.one_outstanding:
            values["latency"] = latencies([took for report in reports for took in report["took"]])
        return values

    def kill_one(self) -> float:
        """Seconds from the death of the last site until the others know."""
        survivors = self.crew.workers[:-1]
        for worker in survivors:
            worker.tell("watch")
        killed_ns = time.monotonic_ns()
        self.crew.kill(self.crew.workers[-1])
        self.daemons.kill(self.sites - 1)
        told = self.crew.hear_all(survivors, _VIEW_SECONDS + _SLACK_SECONDS)
        latest: int = max(told)
        return (latest - killed_ns) / 1e9


@contextmanager
def ready(
    setting: Setting, sites: int, placement: Placement, crew_of: CrewMaker, native: str = ""
) -> Iterator[Cluster]:
    with cluster(setting, sites, placement) as daemons, crew_of() as crew:
        yield Cluster(daemons, crew, placement, native)
