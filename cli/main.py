"""Entry point of the `rsm` command. Each subcommand lives in a module of its own name."""

from importlib.metadata import version
from typing import Annotated

import typer

from cli.bench import app as bench
from cli.chaos import chaos
from cli.cluster import app as cluster
from cli.demo import demo
from cli.doctor import doctor
from cli.explore import explore
from cli.fuzz import fuzz
from cli.kv import app as kv
from cli.leases import leases, locks
from cli.log import app as log
from cli.members import members
from cli.replica import call, init, replica, status
from cli.sim import sim
from cli.snapshot import app as snapshot
from cli.story import story

app = typer.Typer(
    name="rsm",
    help="Replicated state machines on totally ordered multicast.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
)


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"rsm {version('rsm')}")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    pass


app.command()(demo)
app.command()(init)
app.command()(replica)
app.command()(status)
app.command(context_settings={"ignore_unknown_options": True})(call)  # a number may be negative
app.command()(members)
app.add_typer(kv, name="kv")
app.add_typer(leases, name="leases")
app.add_typer(locks, name="locks")
app.command()(doctor)
app.add_typer(log, name="log")
app.add_typer(cluster, name="cluster")
app.add_typer(snapshot, name="snapshot")
app.command()(chaos)
app.command()(explore)
app.command()(fuzz)
app.command()(sim)
app.command()(story)
app.add_typer(bench, name="bench")

if __name__ == "__main__":
    app()
