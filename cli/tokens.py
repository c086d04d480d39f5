"""`rsm token`: who may ask a gateway for what."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from api.tokens import Scope, Token, make_token, read_tokens
from cli.kv import show_json
from cli.showing import Output, check_output, fitting_table, messages, refuse
from ordering.errors import ConfigurationError

app = typer.Typer(help="Make and list the tokens that a gateway lets in (--tokens).", no_args_is_help=True)

File = Annotated[
    Path, typer.Option("--tokens", envvar="RSM_GATEWAY_TOKENS", help="The file that a gateway is given.")
]


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Whose it is; it stands in the file.")],
    scope: Annotated[
        list[Scope] | None,
        typer.Option(help="read, write or admin, repeated for several.", show_default="read"),
    ] = None,
    tokens: File = Path("tokens"),
) -> None:
    """Make a token, print it, and append its hash to the file.

    It is shown this once: the file has only what it takes to recognise it. A
    gateway that runs takes it from the file within a second. To take a token
    back, delete its line.

      rsm token new alice --scope read --scope write --tokens tokens
    """
    there = _read(tokens) if tokens.exists() and tokens.read_text().strip() else []
    if any(each.name == name for each in there):
        refuse(f"{tokens}: has a token of {name} already; delete that line first, or choose another name", 1)
    try:
        token, line = make_token(name, scope or [Scope.READ])
    except ConfigurationError as error:
        refuse(str(error))
    try:
        with open(os.open(tokens, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as file:
            file.write(f"{line}\n")
    except OSError as error:
        refuse(f"{tokens}: {error.strerror}", 1)
    messages.print(f"{tokens}: {line.rsplit(maxsplit=1)[0]}; this is the token, and is not shown again:")
    typer.echo(token)


@app.command(name="list")
def list_tokens(tokens: File = Path("tokens"), output: Output = "table") -> None:
    """List the names and scopes in the file.

    rsm token list --tokens tokens
    """
    check_output(output)
    found = _read(tokens)
    rows = [[each.name, ",".join(sorted(each.scopes)), each.digest.hex()[:8]] for each in found]
    if output == "json":
        show_json([{"name": a, "scopes": b.split(","), "sha256": c} for a, b, c in rows])
        return
    console = Console(highlight=False)
    console.print(fitting_table(console, ["name", "scopes", "sha256"], rows))


def _read(path: Path) -> list[Token]:
    try:
        return read_tokens(path)
    except ConfigurationError as error:
        refuse(str(error), 1)
