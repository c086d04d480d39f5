"""Which jobs are there? By name alone: a job's module is loaded when it is asked for, and Spark with it."""

from importlib import import_module
from typing import Any, Final, NamedTuple, cast

from pipeline.errors import BadSetting

# In the order in which a person would ask.
QUESTIONS: Final = {
    "ingest": "what did each replica record? What is torn, late or there twice is listed, never dropped",
    "lifecycle": "when was each range of messages submitted, ordered, delivered, applied, answered?",
    "audit": "did every rule hold, from total order to real-time order? Each violation is a row",
    "metrics": "how fast, how late, how full, how many packets, per replica and time window?",
    "history": "what was the store at any timestamp, and what happened to a key?",
    "sweep": "how do thousands of simulated groups behave, over disciplines, sizes and losses?",
    "stream": "the same while the group runs: live tables and alerts",
    "load": "what became of load tests and benchmarks over time?",
    "report": "all of it on one page",
}


class Choice(NamedTuple):
    """An option of a job. ``default``: None, none; False: a flag."""

    default: str | bool | None
    help: str


def known(name: str) -> str:
    """``BadSetting`` if there is no such job."""
    if name not in QUESTIONS:
        raise BadSetting(f"there is no job {name!r}; there are {', '.join(QUESTIONS)}")
    return name


def load_job(name: str) -> Any:
    """Its module (``pipeline.runs.Job``). It may have two functions more: ``check(options)``, which raises
    ``BadSetting`` if they make no sense (``checked_options``), and ``before(tables, run)``, which gives the
    names of jobs whose tables it would like to be of today, whatever options they were run with."""
    return import_module(f"pipeline.jobs.{known(name)}")


def choices_of(job: Any) -> dict[str, Choice]:
    options = cast("dict[str, tuple[Any, str]]", getattr(job, "OPTIONS", {}))
    return {
        name: Choice(default if default is None or isinstance(default, bool) else str(default), words)
        for name, (default, words) in options.items()
    }


def options_of(job: Any, given: dict[str, str] | None = None) -> dict[str, str]:
    """What is given, and defaults for the rest."""
    choices = choices_of(job)
    unknown = sorted(set(given or {}) - set(choices))
    if unknown:
        raise BadSetting(f"there is no option {', '.join(unknown)}")
    defaults = {
        name: each.default if isinstance(each.default, str) else "true"
        for name, each in choices.items()
        if each.default not in (None, False)
    }
    return defaults | (given or {})


def checked_options(job: Any, given: dict[str, str]) -> dict[str, str]:
    """The same, if they make sense: known before anything is started, which may run for an hour."""
    options = options_of(job, given)
    if hasattr(job, "check"):
        job.check(options)
    return options
