"""One job from the command line, without ``rsm``::

    python -m pipeline JOB …
    spark-submit pipeline/main.py JOB …

The exit code is 0; 1 if a rule was violated; 2 for a wrong call; 3 if the input cannot be read, or it failed;
130 if it was interrupted.
"""

import argparse
import inspect
import sys
from pathlib import Path

if __package__ in (None, ""):  # spark-submit runs it as a file
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from pipeline.errors import BadSetting
from pipeline.registry import QUESTIONS, choices_of, load_job

_HELP = "  python -m pipeline audit --input recordings --output out"


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if not given or given[0] in {"-h", "--help"}:
        _teach()
        return 0
    name, *rest = given
    try:
        job = load_job(name)
    except BadSetting as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except ModuleNotFoundError as error:
        sys.stderr.write(f"error: there is no {error.name}; install: pip install 'rsm[pipeline]'\n")
        return 3
    choices = choices_of(job)
    parser = argparse.ArgumentParser(
        f"pipeline {name}",
        description=f"{QUESTIONS[name]}\n\n{inspect.cleandoc(getattr(job, 'HELP', ''))}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--input", action="append", default=[], help="a folder with recordings; again for more"
    )
    parser.add_argument("--output", required=True, help="the folder of the tables")
    parser.add_argument("--master", help="Spark's; else what spark-submit says, or this machine")
    parser.add_argument("-o", "--format", default="table", choices=("table", "json"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark")
    for option, choice in choices.items():
        flag = f"--{option.replace('_', '-')}"
        if isinstance(choice.default, bool):
            parser.add_argument(
                flag, dest=f"job.{option}", action="store_const", const="true", help=choice.help
            )
        else:
            words = f"{choice.help} (else {choice.default})" if choice.default else choice.help
            parser.add_argument(flag, dest=f"job.{option}", help=words.replace("%", "%%"))
    read = vars(parser.parse_args(rest))
    options = {option: read[f"job.{option}"] for option in choices if read[f"job.{option}"] is not None}
    from pipeline.running import execute
    from pipeline.runs import Run

    try:
        settings = settings_of(read["set"])
    except BadSetting as error:
        parser.error(str(error))
    run = Run(input=tuple(read["input"]), output=read["output"], options=options)
    return execute(name, run, master=read["master"], settings=settings, shape=read["format"])


def settings_of(pairs: list[str]) -> dict[str, str]:
    """``key=value``, each."""
    for pair in pairs:
        if "=" not in pair:
            raise BadSetting(f"--set: {pair!r} must be KEY=VALUE, as spark.sql.shuffle.partitions=64")
    return {key: value for key, _, value in (pair.partition("=") for pair in pairs)}


def _teach() -> None:
    sys.stdout.write("Answers from recordings, on Spark. One job:\n\n")
    for name, question in QUESTIONS.items():
        sys.stdout.write(f"  {name:10} {question}\n")
    sys.stdout.write(f"\nEach says with --help what it takes.\n\n{_HELP}\n")


if __name__ == "__main__":
    sys.exit(main())
