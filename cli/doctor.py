"""`rsm doctor`: what an operator would check, and what to do about what is found."""

import asyncio
import secrets
import socket
import time
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli import checkup
from cli.asking import SiteFile, peer_at
from cli.checkup import Finding, Verdict, mind, well, wrong
from cli.showing import Output, check_output
from ordering.driver import run
from ordering.errors import BulkError, BulkRefused, BulkTimeout, OrderingError
from ordering.naming import group_id
from ordering.packets import Head, Hello, Standing
from ordering.sealing import Keyring
from ordering.transports.addresses import Address, Endpoint, parse_address, parse_endpoint
from ordering.transports.bulk_tcp import open_bulk
from ordering.views import Member, SiteId
from ordering.wire import Wire
from rsm.config import ReplicaConfig
from rsm.status import ReplicaStatus
from rsm.status import Standing as Stand
from rsm.survey import picture_of
from rsm.transfer import StatusWanted

KNOCKS: Final = 5
KNOCK_SECONDS: Final = 0.3
TCP_SECONDS: Final = 3.0
SKEW_SECONDS: Final = 1.0
COLOURS: Final = {Verdict.WELL: "green", Verdict.MIND: "yellow", Verdict.WRONG: "red"}


def doctor(
    config: SiteFile,
    output: Output = "table",
    strict: Annotated[bool, typer.Option("--strict", help="Fail on what to mind as well.")] = False,
) -> None:
    """Check a site: settings, key, address, limits, disk and log, and whether
    it reaches the others.

    Nothing is changed. It may run beside the replica, and should run as the
    same user. For everything that is not well it says what to do. The exit
    code is 0 if nothing is wrong, else 1; what to *mind* is not wrong.

      rsm doctor -c site-1.toml
    """
    check_output(output)
    findings = list(_findings(config))
    if output == "json":
        typer.echo(msgspec.json.encode(findings).decode())
    else:
        _show(findings)
    bad = {Verdict.WRONG, Verdict.MIND} if strict else {Verdict.WRONG}
    raise typer.Exit(1 if any(each.verdict in bad for each in findings) else 0)


def _findings(config: SiteFile) -> Iterator[Finding]:
    try:
        site = ReplicaConfig.load(config)
    except OrderingError as error:
        yield wrong("configuration", str(error), "mend the file; `rsm init` writes some that work")
        return
    yield from checkup.settings(site)
    yield from checkup.key(site)
    yield from checkup.runtime()
    yield from checkup.java()
    yield from checkup.buffers()
    try:
        keyring = site.keyring()
    except OrderingError:
        return  # it was said; nobody can be asked without it
    own = site.advertise or site.bind
    others = [each for each in dict.fromkeys((*site.founders, *site.contacts)) if each != own]
    heard = run(_visit(site, keyring, [own, *others]))
    yield from checkup.address(site, answers=heard[own].status is not None)
    for each in others:
        yield from _others(each, heard[each])
    yield from _group(site, {each: visit.status for each, visit in heard.items()})
    yield from checkup.disk(site)


def _show(findings: list[Finding]) -> None:
    table = Table(show_lines=False)
    for title in ("check", "", "found", "what to do"):
        table.add_column(title, overflow="fold")
    for each in findings:
        colour = COLOURS[each.verdict]
        verdict = f"[{colour}]{each.verdict}[/{colour}]"
        table.add_row(each.what, verdict, escape(each.words), escape(each.advice))
    Console(highlight=False).print(table)


# -- the others ----------------------------------------------------------------------------------


class Visit(msgspec.Struct, frozen=True):
    """How one site answered. ``error`` is of TCP; ``skew_s``: by so much its clock is ahead of ours, beyond
    what the way there and back can explain."""

    status: ReplicaStatus | None = None
    error: BulkError | None = None
    udp: str = "no answer"
    skew_s: float = 0.0


async def _visit(site: ReplicaConfig, keyring: Keyring | None, addresses: list[str]) -> dict[str, Visit]:
    udp = await _knock(site, keyring, addresses)
    tcp = await asyncio.gather(*(_ask(site, keyring, each) for each in addresses))
    return {
        each: msgspec.structs.replace(visit, udp=udp[each])
        for each, visit in zip(addresses, tcp, strict=True)
    }


async def _ask(site: ReplicaConfig, keyring: Keyring | None, address: str) -> Visit:
    """Its status, as ``Peer`` asks for it; and why not."""
    peer = peer_at(site, address)
    began = time.time_ns()
    try:
        host, port = parse_address(address).endpoint
        async with asyncio.timeout(TCP_SECONDS):
            async with await open_bulk(host, port, keyring, group=peer.group, boot=peer.boot) as stream:
                await stream.send(msgspec.msgpack.encode(StatusWanted()))
                await stream.finish()
                status = msgspec.msgpack.decode(
                    b"".join([chunk async for chunk in stream]), type=ReplicaStatus
                )
    except BulkError as error:
        return Visit(error=error)
    except TimeoutError:
        return Visit(error=BulkTimeout(f"no answer within {TCP_SECONDS:g} s"))
    except (OrderingError, msgspec.MsgspecError) as error:
        return Visit(error=BulkError(str(error)))
    ended = time.time_ns()
    ahead = max(status.clock_ns - ended, 0) or min(status.clock_ns - began, 0)
    return Visit(status=status, skew_s=ahead / 1e9)


async def _knock(site: ReplicaConfig, keyring: Keyring | None, addresses: list[str]) -> dict[str, str]:
    """Ask each by UDP what a founder would ask: were you ever a member? Everybody answers that, to where the
    question says it comes from; and nothing follows from it."""
    host = parse_endpoint(site.advertise or site.bind, "bind").host
    heard = dict.fromkeys(addresses, "no answer")
    wire = Wire(keyring)
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        try:
            sock.bind((parse_endpoint(site.bind, "bind").host, 0))
        except OSError as error:
            return dict.fromkeys(addresses, f"cannot be asked: {error.strerror}")
        question = _question(site.group, Endpoint(host, sock.getsockname()[1]))
        for _ in range(KNOCKS):
            for address in [each for each, word in heard.items() if word != "answers"]:
                try:
                    sock.sendto(wire.pack(question), tuple(parse_address(address).endpoint))
                except OSError as error:
                    heard[address] = f"cannot be sent to: {error.strerror}"
            await _listen(loop, sock, wire, heard)
            if all(word == "answers" for word in heard.values()):
                break
    if wire.counters.get("forged") or wire.counters.get("unsealed") or wire.counters.get("sealed"):
        silent = [each for each, word in heard.items() if word == "no answer"]
        heard |= dict.fromkeys(silent, "no answer that our key opens")
    return heard


def _question(group: str, own: Endpoint) -> Hello:
    me = Member(SiteId(secrets.randbits(63) + 1), secrets.randbits(128), str(Address(own, None)))
    head = Head(group_id(group), 0, me.site, me.boot, 0, 0, 0, 0, 0)
    return Hello(head, me, Standing.NEVER, 0, 0)


async def _listen(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, wire: Wire, heard: dict[str, str]
) -> None:
    try:
        async with asyncio.timeout(KNOCK_SECONDS):
            while any(word != "answers" for word in heard.values()):
                packet = wire.unpack(memoryview(await loop.sock_recv(sock, 65_536)))
                if isinstance(packet, Hello) and packet.member.address in heard:
                    heard[packet.member.address] = "answers"
    except TimeoutError:
        pass
    except OSError:
        await asyncio.sleep(KNOCK_SECONDS)  # somebody's port is closed, and that came back


def _others(address: str, visit: Visit) -> Iterator[Finding]:
    what = f"site {address}"
    if visit.status is None:
        if isinstance(visit.error, BulkRefused):
            yield wrong(what, f"TCP: {visit.error}", "compare the fingerprints of the keys at both sites")
        elif visit.udp == "answers":
            words = f"UDP answers, TCP does not: {visit.error}"
            yield wrong(what, words, "states travel by TCP: open the same port for it")
        else:
            yield mind(
                what, f"not reached: {visit.error}", "is it started, and the port open for UDP and TCP?"
            )
        return
    if visit.udp != "answers":
        member = visit.status.standing not in (Stand.HALTED, Stand.OUTSIDE)
        advice = "open the port for UDP, both ways; is `advertise` what the others reach?"
        words = f"TCP answers ({visit.status.standing}), UDP: {visit.udp}"
        yield wrong(what, words, advice) if member else mind(what, words, "see its own log")
    elif abs(visit.skew_s) > SKEW_SECONDS:
        words = f"its clock is {visit.skew_s:+.1f} s off from ours"
        yield mind(what, words, "run NTP: leases and sessions end by the clocks, though nothing breaks")
    else:
        yield well(what, f"UDP and TCP answer, the key is the same, {visit.status.standing}")


def _group(site: ReplicaConfig, answers: dict[str, ReplicaStatus | None]) -> Iterator[Finding]:
    picture = picture_of(answers)
    if picture.latest is None:
        yield mind("group", "nobody who answers is in it", "start a majority of the founders, all at first")
        return
    words = f"{len(picture.present)} of {len(picture.voters)} voters serve, view {picture.latest.view}"
    if picture.latest.forks:
        advice = "what only the lost sites had is lost; see rsm cluster recover --help"
        yield mind("group", f"it has gone on without a majority {picture.latest.forks} times", advice)
    if not picture.has_majority:
        yield wrong(
            "group", words, "start the others; if they are gone for good see rsm cluster recover --help"
        )
    elif len(picture.present) < len(picture.voters):
        yield mind("group", words, "start the others, or remove who is gone: rsm cluster remove")
    else:
        yield well("group", words)
    for address, status in answers.items():
        if status is not None and status.why:
            yield wrong(f"site {address}", f"it halted: {status.why}", "mend that, and start it again")
