"""`rsm pipeline`: questions to recordings, on Spark. Here is how the jobs of ``pipeline`` are called."""

import inspect
from collections.abc import Callable
from importlib.util import find_spec
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

from cli.showing import messages, refuse
from pipeline.errors import BadSetting, JavaMissing
from pipeline.java import require_java
from pipeline.registry import QUESTIONS, Choice, choices_of, load_job

MISSING: Final = 3
EXTRA: Final = ("pyspark", "pandas", "matplotlib")

Input = Annotated[
    list[str] | None,
    typer.Option("--input", help="A folder with recordings, and those below it; again for more."),
]
Output = Annotated[str, typer.Option("--output", help="The folder of the tables, of all jobs.")]
Master = Annotated[
    str, typer.Option(help="Spark's, as spark://host:7077, yarn.", show_default="all cores of this machine")
]
Format = Annotated[str, typer.Option("--format", "-o", help="table or json.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of Spark, as spark.driver.memory=4g."),
]

TEACHING: Final = """Ask recordings of replicas, clients and the simulator, on Spark.

A replica records with `recording = "folder"` in its file, the simulator
with `rsm sim --record folder`. The tables of all jobs are below --output.
A job first runs those whose tables it needs, if they are missing or there
are new files; so any of these may be the first command.

[bold]Examples[/bold]

  rsm sim --seeds 3 --record recordings    something to ask about

  rsm pipeline audit --input recordings --output out      did every rule hold?

  rsm pipeline metrics --input recordings --output out    how fast was it?

  rsm pipeline report --input recordings --output out     out/report.html

  rsm pipeline audit --input recordings --output out -o json

  rsm pipeline audit --input /nfs/rec --output /nfs/out --master spark://a:7077

The exit code is 0; 1 if a rule was violated; 2 for a wrong call; 3 if the
input cannot be read, or Spark or Java is missing or fails; 130 if it was
interrupted. docs/pipeline.md has more.
"""


class _Jobs(TyperGroup):
    """A list of jobs needs only their questions; the one that is called is loaded, and Spark with it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(QUESTIONS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, rest = super().resolve_command(ctx, args)
        return (name, listed if name is None else _command(name), rest)


app = typer.Typer(cls=_Jobs, help=TEACHING, no_args_is_help=True)


@app.callback()
def _all() -> None:
    pass


def _listed(name: str) -> Callable[[], None]:
    def job() -> None: ...

    job.__doc__ = QUESTIONS[name]
    return job


for _name in QUESTIONS:
    app.command(_name)(_listed(_name))


def _command(name: str) -> Any:
    """With the options that all jobs have, and its own."""
    missing = [each for each in EXTRA if find_spec(each) is None]
    if missing:
        _lack(f"not available: {', '.join(missing)}; pip install 'rsm[pipeline]'")
    job = load_job(name)
    choices = choices_of(job)

    def call(**given: Any) -> None:
        options = {option: given[option] for option in choices if given[option] is not None}
        _run(
            name, given, {key: "true" if value is True else value for key, value in options.items() if value}
        )

    common = inspect.signature(_common).parameters.values()
    own = [_parameter(option, choice) for option, choice in choices.items()]
    parameters = [*common, *own]
    call.__doc__ = f"{QUESTIONS[name]}\n\n{inspect.cleandoc(getattr(job, 'HELP', ''))}"
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
    alone.command(name)(call)
    return get_command(alone)


def _common(
    *,
    output: Output,
    input: Input = None,  # noqa: A002 (as the option is called)
    master: Master = "",
    format: Format = "table",  # noqa: A002
    set: Settings = None,  # noqa: A002
) -> None:
    """What all jobs take."""


def _parameter(name: str, choice: Choice) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    kind: Any = bool if isinstance(choice.default, bool) else str | None
    words = f"{choice.help} (else {choice.default})" if choice.default else choice.help
    annotation = Annotated[kind, typer.Option(flag, help=words, show_default=False)]
    default = False if kind is bool else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _run(name: str, given: dict[str, Any], options: dict[str, str]) -> NoReturn:
    from pipeline.main import settings_of
    from pipeline.running import execute
    from pipeline.runs import Run

    try:
        require_java()
    except JavaMissing as error:
        _lack(str(error))
    try:
        settings = settings_of(given["set"] or [])
    except BadSetting as error:
        refuse(str(error))
    run = Run(input=tuple(given["input"] or ()), output=given["output"], options=options)
    code = execute(name, run, master=given["master"] or None, settings=settings, shape=given["format"])
    raise typer.Exit(code)


def _lack(words: str) -> NoReturn:
    messages.print(words, markup=False, style="yellow", soft_wrap=True)
    raise typer.Exit(MISSING)
