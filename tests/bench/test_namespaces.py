"""Network namespaces: what happens in them stays there, and nothing is left."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from bench import namespaces
from bench.errors import BenchError, NotAvailable
from bench.namespaces import Namespace, bridged, private_loopback
from bench.workers import Crew, Link, Post

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")


def links() -> list[str]:
    shown = subprocess.run(["ip", "-json", "link"], capture_output=True, text=True, check=True).stdout
    return [link["ifname"] for link in json.loads(shown)]


def tell_links(link: Link) -> None:
    link.say((links(), os.path.exists("/run/mark"), os.getcwd()))


def is_gone(namespace: Namespace) -> bool:
    return not Path(f"/proc/{namespace.pid}/ns").exists()


def test_when_not_root_then_the_refusal_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotAvailable, match=r"multicast runs in network namespaces.*use sudo"):
        namespaces.require("multicast")


def test_when_a_tool_is_missing_then_the_refusal_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotAvailable, match="needs unshare, nsenter, ip; on Debian: apt-get install"):
        namespaces.require("multicast")


@needs_root
def test_when_sites_are_bridged_then_the_host_has_no_new_link_and_nothing_is_left() -> None:
    before = links()
    with bridged("a test", 2) as bridge:
        assert links() == before
        made = [bridge.switch, *bridge.sites]
        reached = subprocess.run(
            bridge.sites[0].command(sys.executable, "-c", _SEND_AND_RECEIVE, *bridge.addresses, "send"),
            capture_output=True, text=True, check=False, timeout=20,
        )  # fmt: skip
        assert reached.stdout == "sent\n", reached.stderr
    assert links() == before
    assert all(is_gone(namespace) for namespace in made)


_SEND_AND_RECEIVE = """
import socket, sys
here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
here.bind((sys.argv[1], 0))
here.sendto(b"x" * 60000, (sys.argv[2], 9))
print("sent")
"""


@needs_root
def test_when_the_block_raises_then_the_namespaces_are_gone_as_well() -> None:
    made: list[Namespace] = []

    def use() -> None:
        with bridged("a test", 2) as bridge:
            made.extend((bridge.switch, *bridge.sites))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
    assert made
    assert all(is_gone(namespace) for namespace in made)


@needs_root
def test_when_a_link_cannot_be_made_then_what_was_made_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Namespace] = []
    whole = Namespace.ip

    def failing(self: Namespace, *words: str) -> None:
        made.append(self)
        whole(self, *(("link", "add", "nonsense") if "veth" in words else words))

    monkeypatch.setattr(Namespace, "ip", failing)
    with pytest.raises(BenchError, match="ip link add nonsense"), bridged("a test", 2):
        pass
    assert made
    assert all(is_gone(namespace) for namespace in made)


@needs_root
def test_when_a_worker_is_posted_to_a_namespace_then_it_sees_only_that() -> None:
    with private_loopback("a test") as namespace, Crew() as crew:
        seen, _, _ = crew.hear(crew.start("inside", tell_links, post=Post(namespace)))
    assert seen == ["lo"]


@needs_root
def test_when_a_namespace_has_its_own_memory_then_its_files_are_not_the_hosts() -> None:
    namespace = Namespace(own_memory=True)
    try:
        namespace.file("mark").write_text("here", encoding="utf-8")
        assert not Path("/run/mark").exists()
        with Crew() as crew:
            _, marked, folder = crew.hear(crew.start("inside", tell_links, post=Post(namespace)))
        assert marked
        assert folder == os.getcwd()
    finally:
        namespace.close()
    assert is_gone(namespace)


_HOLD_AND_DIE = """
import os, signal
from bench.namespaces import bridged
with bridged("a test", 2) as bridge:
    print(*[namespace.pid for namespace in (bridge.switch, *bridge.sites)], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@needs_root
def test_when_the_maker_is_killed_then_its_namespaces_go_with_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HOLD_AND_DIE],
        cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    holders = [int(word) for word in done.stdout.split()]
    assert len(holders) == 3, done.stderr
    for holder in holders:
        _wait_until_gone(holder)


def _wait_until_gone(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with os.fdopen(descriptor) as handle:
        assert select.select([handle], [], [], 20)[0], f"holder {pid} lives on"
