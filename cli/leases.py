"""`rsm leases` and `rsm locks`: what lives as long as somebody renews it, over HTTP."""

import re
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from cli.kv import Hex, Once, key_of, raw, show_json, shown
from cli.over_http import Access, Fields, asked, over_http, path_of
from cli.showing import Output, check_output, fitting_table, refuse


class _Listing(TyperGroup):
    """Where no command is named, it is `ls`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args = ["ls", *args]
        return super().parse_args(ctx, args)


leases = typer.Typer(help="List, grant, renew and revoke leases, over HTTP.", cls=_Listing)
locks = typer.Typer(help="List, take and give back locks of a group, over HTTP.", cls=_Listing)

SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
PAGE: Final = 1000
JSON: Final = {"Content-Type": "application/json"}

LeaseId = Annotated[int, typer.Argument(help="As rsm leases grant has printed it.", show_default=False)]
Name = Annotated[str, typer.Argument(help="Of the lock.", show_default=False)]


def _ask(
    access: Access,
    method: str,
    path: str,
    *,
    fields: Fields | None = None,
    body: dict[str, Any] | None = None,
    once: str | None = None,
) -> dict[str, Any]:
    headers = {} if body is None else JSON
    content = None if body is None else msgspec.json.encode(body)
    answer = asked(
        access,
        lambda gateways: gateways.ask(method, path, fields=fields, headers=headers, body=content, once=once),
    )
    return msgspec.json.decode(answer.content, type=dict[str, Any]) if answer.content else {}


# -- leases --------------------------------------------------------------------------------------


@leases.command(name="ls")
@over_http
def list_leases(access: Access, output: Output = "table") -> None:
    """List the leases that run; without a command, this is it.

    Exit codes: 0 done, also if there is none, 2 a wrong call, 5 nobody serves.

      rsm leases ls
    """
    check_output(output)
    items: list[dict[str, Any]] = []
    while True:
        fields: Fields = {"after": items[-1]["id"] if items else None, "limit": PAGE}
        found = _ask(access, "GET", "/v1/leases", fields=fields)["items"]
        items += found
        if len(found) < PAGE:
            break
    _show_leases({"items": items}, output)


@leases.command(name="get")
@over_http
def get_lease(access: Access, lease: LeaseId, output: Output = "table") -> None:
    """Show one lease: how long it still runs, and what goes with it.

    Exit codes: 0 done, 1 there is no such lease, 2 a wrong call, 5 nobody
    serves.

      rsm leases get 120
    """
    check_output(output)
    said = _ask(access, "GET", f"/v1/leases/{lease}")
    _show_leases(said if output == "json" else {"items": [said]}, output)


@leases.command()
@over_http
def grant(
    access: Access,
    ttl: Annotated[str, typer.Argument(help="It ends by itself after so long, as 30s or 5m.")],
    once: Once = "",
    output: Output = "table",
) -> None:
    """Grant a lease, and print its id.

    Keys are written with it (rsm kv put --lease), locks taken with it. Exit
    codes: 0 granted, 1 refused, 2 a wrong call, 4 the outcome is unknown,
    5 nobody serves.

      rsm leases grant 30s
    """
    check_output(output)
    said = _ask(access, "POST", "/v1/leases", body={"ttl": ttl}, once=once)
    if output == "json":
        show_json(said)
    else:
        typer.echo(said["id"])


@leases.command()
@over_http
def renew(access: Access, lease: LeaseId, output: Output = "table") -> None:
    """Give a lease its whole time again, from now on.

    Exit codes: 0 renewed, 1 it has ended, 2 a wrong call, 4 the outcome is
    unknown, 5 nobody serves.

      rsm leases renew 120
    """
    check_output(output)
    said = _ask(access, "POST", f"/v1/leases/{lease}:renew")
    _show_leases(said if output == "json" else {"items": [said]}, output)


@leases.command()
@over_http
def revoke(access: Access, lease: LeaseId, output: Output = "table") -> None:
    """End a lease: its keys are deleted, its locks released.

    Exit codes: 0 revoked, 1 it had ended, 2 a wrong call, 4 the outcome is
    unknown, 5 nobody serves.

      rsm leases revoke 120
    """
    check_output(output)
    _ask(access, "DELETE", f"/v1/leases/{lease}")
    if output == "json":
        show_json({"revoked": lease})
    else:
        typer.echo("revoked")


def _show_leases(said: dict[str, Any], output: str) -> None:
    if output == "json":
        show_json(said)
        return
    console = Console(highlight=False)
    rows = [
        [
            str(each["id"]),
            f"{each['ttl_ms'] / 1000:g} s",
            f"{max(each['remaining_ms'] - each['age_ms'], 0) / 1000:.1f} s",
            str(each["keys"]),
            str(each["locks"]),
        ]
        for each in said["items"]
    ]
    console.print(fitting_table(console, ["id", "granted for", "remaining", "keys", "locks"], rows))


# -- locks ---------------------------------------------------------------------------------------


@locks.command(name="ls")
@over_http
def list_locks(
    access: Access,
    prefix: Annotated[str, typer.Argument(help="Names that begin so.", show_default=False)] = "",
    hexadecimal: Hex = False,
    output: Output = "table",
) -> None:
    """List the locks that are held; without a command, this is it.

    Exit codes: 0 done, also if there is none, 2 a wrong call, 5 nobody serves.

      rsm locks ls
    """
    check_output(output)
    items: list[dict[str, Any]] = []
    begin = key_of(prefix, hexadecimal)
    while True:
        after = raw(items[-1], "name") if items else None
        fields: Fields = {"prefix": begin or None, "after": after, "limit": PAGE}
        found = _ask(access, "GET", "/v1/locks", fields=fields)["items"]
        items += found
        if len(found) < PAGE:
            break
    _show_locks({"items": items}, output, hexadecimal)


@locks.command(name="get")
@over_http
def get_lock(access: Access, name: Name, hexadecimal: Hex = False, output: Output = "table") -> None:
    """Show who holds a lock: the lease, the token of the grant, who waits.

    Exit codes: 0 it is held, 1 nobody holds it, 2 a wrong call, 5 nobody serves.

      rsm locks get printer
    """
    check_output(output)
    said = _ask(access, "GET", path_of("/v1/locks", key_of(name, hexadecimal)))
    _show_locks(said if output == "json" else {"items": [said]}, output, hexadecimal)


@locks.command()
@over_http
def acquire(
    access: Access,
    name: Name,
    lease: Annotated[int | None, typer.Option(help="It is held as long as this lease runs.")] = None,
    ttl: Annotated[str, typer.Option(help="Instead: grant a lease of so long, as 30s.")] = "",
    wait: Annotated[str, typer.Option(help="Wait for it so long, as 10s.")] = "",
    hexadecimal: Hex = False,
    output: Output = "table",
) -> None:
    """Take a lock.

    Prints the lease that holds it, and the token of the grant: give that to
    whatever the lock protects, and let it refuse older ones. A lease of --ttl
    is not renewed by itself: rsm leases renew does it.

    Exit codes: 0 it is held, 1 somebody else has it, 2 a wrong call, 4 the
    outcome is unknown, 5 nobody serves.

      rsm locks acquire printer --ttl 30s --wait 10s
    """
    check_output(output)
    if (lease is None) == (not ttl):
        refuse("--lease, --ttl: give one of them")
    body: dict[str, Any] = {"lease": lease} if lease is not None else {"ttl": ttl}
    patient = access
    if wait:
        body["wait"] = wait
        patient = msgspec.structs.replace(access, timeout=access.timeout + seconds_of(wait, "--wait"))
    said = _ask(patient, "POST", path_of("/v1/locks", key_of(name, hexadecimal)), body=body, once="")
    if output == "json":
        show_json(said)
    else:
        typer.echo(f"held: lease {said['lease']}, token {said['token']}")


@locks.command()
@over_http
def release(
    access: Access,
    name: Name,
    lease: Annotated[int, typer.Option(help="The one that holds it, or waits for it.")],
    hexadecimal: Hex = False,
    output: Output = "table",
) -> None:
    """Give a lock back, or leave its queue; the first that waits has it then.

    Exit codes: 0 released, 1 that lease does not have it, 2 a wrong call, 4 the
    outcome is unknown, 5 nobody serves.

      rsm locks release printer --lease 120
    """
    check_output(output)
    _ask(access, "DELETE", path_of("/v1/locks", key_of(name, hexadecimal)), fields={"lease": lease})
    if output == "json":
        show_json({"released": name, "lease": lease})
    else:
        typer.echo("released")


def _show_locks(said: dict[str, Any], output: str, hexadecimal: bool) -> None:
    if output == "json":
        show_json(said)
        return
    console = Console(highlight=False)
    rows = [
        [
            escape(shown(raw(each, "name"), hexadecimal)),
            str(each["lease"] or ""),
            str(each["token"] or ""),
            str(each["waiting"]),
        ]
        for each in said["items"]
    ]
    console.print(fitting_table(console, ["name", "lease", "token", "waiting"], rows))


def seconds_of(duration: str, option: str) -> float:
    found = re.fullmatch(r"(\d+)(ms|s|m|h|d)", duration)
    if found is None:
        refuse(f"{option}: {duration!r} must be a number with ms, s, m, h or d behind it, as 30s")
    return int(found[1]) * SECONDS[found[2]]
