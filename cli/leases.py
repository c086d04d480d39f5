"""`rsm leases` and `rsm locks`: what lives as long as somebody renews it, over HTTP."""

import re
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from cli.kv import Hex, Once, key_of, raw, show_json, shown
from cli.over_http import Access, Fields, asked, over_http, path_of
from cli.showing import Output, check_output, fitting_table, refuse

leases = typer.Typer(help="Grant, renew and revoke leases, over HTTP.", no_args_is_help=True)
locks = typer.Typer(help="Take and give back locks of a group, over HTTP.", no_args_is_help=True)

SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
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
    """List the leases that run.

    rsm leases ls
    """
    check_output(output)
    _show_leases(_ask(access, "GET", "/v1/leases"), output)


@leases.command(name="get")
@over_http
def get_lease(access: Access, lease: LeaseId, output: Output = "table") -> None:
    """Show one lease: how long it still runs, and what goes with it.

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
    """Grant a lease, and print its id. Keys are written with it (rsm kv put
    --lease), locks taken with it.

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
    """From now on its whole time again.

    rsm leases renew 120
    """
    check_output(output)
    said = _ask(access, "POST", f"/v1/leases/{lease}:renew")
    _show_leases(said if output == "json" else {"items": [said]}, output)


@leases.command()
@over_http
def revoke(access: Access, lease: LeaseId) -> None:
    """End a lease: its keys are deleted, its locks released.

    rsm leases revoke 120
    """
    _ask(access, "DELETE", f"/v1/leases/{lease}")
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
            f"{each['remaining_ms'] / 1000:g} s",
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
    """List the locks that are held.

    rsm locks ls
    """
    check_output(output)
    said = _ask(access, "GET", "/v1/locks", fields={"prefix": key_of(prefix, hexadecimal) or None})
    _show_locks(said, output, hexadecimal)


@locks.command(name="get")
@over_http
def get_lock(access: Access, name: Name, hexadecimal: Hex = False, output: Output = "table") -> None:
    """Show who holds a lock: the lease, the token of the grant, who waits.

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
    """Take a lock. Prints the lease that holds it, and the token of the grant:
    give that to whatever the lock protects, and let it refuse older ones.

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
) -> None:
    """Give a lock back, or leave its queue; the first that waits has it then.

    rsm locks release printer --lease 120
    """
    _ask(access, "DELETE", path_of("/v1/locks", key_of(name, hexadecimal)), fields={"lease": lease})
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
