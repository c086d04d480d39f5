"""Entry point of the `rsm` command. Each subcommand lives in a module of its own name."""

import inspect
from collections import UserDict
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

PLACES: Final = {
    "demo": "cli.demo:app",
    "init": "cli.replica:init",
    "replica": "cli.replica:replica",
    "site": "cli.site:site",
    "gateway": "cli.gateway:gateway",
    "token": "cli.tokens:app",
    "kv": "cli.kv:app",
    "leases": "cli.leases:leases",
    "locks": "cli.leases:locks",
    "actions": "cli.actions:app",
    "status": "cli.status:status",
    "members": "cli.members:members",
    "cluster": "cli.cluster:app",
    "doctor": "cli.doctor:doctor",
    "log": "cli.log:app",
    "snapshot": "cli.snapshot:app",
    "call": "cli.replica:call",
    "load": "cli.load:load",
    "chaos": "cli.chaos:chaos",
    "explore": "cli.explore:explore",
    "fuzz": "cli.fuzz:fuzz",
    "sim": "cli.sim:sim",
    "story": "cli.story:story",
    "bench": "cli.bench:app",
    "pipeline": "cli.pipeline:app",
}
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "call": {"ignore_unknown_options": True},  # a number may be negative
}


class _Commands(UserDict[str, Any]):
    """Places of commands; who is asked for is loaded. `rsm kv get` must not take the time that the simulator,
    the disk and HTTP servers take to load."""

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if isinstance(found, str):
            module, _, attribute = found.partition(":")
            found = self.data[name] = _command(name, getattr(import_module(module), attribute))
        return found


def _command(name: str, found: Any) -> Any:
    """As it would be if it had been here from the start."""
    alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
    if isinstance(found, typer.Typer):
        for each in found.registered_commands:
            each.short_help = each.short_help or _first_sentence(each.callback)
        alone.add_typer(found, name=name)
        group: Any = get_command(alone)
        return group.commands[name]
    alone.command(name, context_settings=SETTINGS.get(name), short_help=_first_sentence(found))(found)
    return get_command(alone)


def _first_sentence(command: Any) -> str:
    """For a list of commands, where the first paragraph would be too much, and is cut into lines."""
    paragraph = (inspect.getdoc(command) or "").partition("\n\n")[0]
    sentence, stop, _ = " ".join(paragraph.split()).partition(". ")
    return sentence + stop.strip()


class _Group(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands(PLACES)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)


app = typer.Typer(
    name="rsm",
    cls=_Group,
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


if __name__ == "__main__":
    app()
