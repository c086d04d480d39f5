"""The log of a process that is all ours: people read it at a terminal, machines anywhere else.

A library configures nothing: ``Replica`` and ``Client`` only write to the standard library's loggers (see
``ordering.logs``). ``rsm replica`` calls ``configure``, and so may anybody whose process has no log yet.
"""

import logging
import sys
from collections.abc import MutableMapping
from enum import StrEnum
from typing import Any, Final, TextIO

import structlog
from structlog.typing import Processor

from ordering.logs import Log, Throttle, logger

__all__ = ["Log", "LogFormat", "LogLevel", "Throttle", "configure", "logger"]

_OURS: Final = "_rsm_log"


class LogFormat(StrEnum):
    AUTO = "auto"  # console at a terminal, else JSON
    CONSOLE = "console"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def configure(
    log_format: LogFormat = LogFormat.AUTO, level: LogLevel = LogLevel.INFO, stream: TextIO | None = None
) -> logging.Handler:
    """Send the log of the whole process to ``stream`` (stderr), what other libraries say as well. Called
    again it replaces what it did before."""
    handler = _Stderr() if stream is None else logging.StreamHandler(stream)
    at_terminal = handler.stream.isatty()
    people = log_format is LogFormat.CONSOLE or (log_format is LogFormat.AUTO and at_terminal)
    processors = _processors(people=people, colors=at_terminal)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=processors))
    setattr(handler, _OURS, True)
    root = logging.getLogger()
    for other in [each for each in root.handlers if hasattr(each, _OURS)]:
        root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(level.upper())
    return handler


class _Stderr(logging.StreamHandler[TextIO]):
    """Whatever is stderr when something is logged."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def _processors(*, people: bool, colors: bool) -> list[Processor]:
    last: list[Processor]
    if people:
        last = [
            structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
        ]
    else:
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    return [
        _take_record,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        *last,
    ]


def _take_record(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """What the standard library knows of the event, ours or another library's."""
    record: logging.LogRecord = event["_record"]
    event["level"] = record.levelname.lower()
    event["logger"] = record.name
    return event
