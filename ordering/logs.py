"""Structured events for the log: what happened in few fixed words, and the rest in fields.

::

    log = logger(__name__)
    log.warning("suspected", group="orders", members=["10.0.0.2:7401"])

Everything goes through the standard library's logging, under the module's name, and nothing here configures
that: a program that embeds us sees ``suspected group=orders members=[...]`` in its own log and format.
``rsm.logs`` is for processes that are all ours.
"""

import logging
import math
import sys
from collections.abc import MutableMapping
from time import monotonic
from typing import Any, Final

import structlog

Log = structlog.stdlib.BoundLogger
KEYS_MAX: Final = 256
_OUR_CALLER: Final = 4  # frames above the standard library's logger
_NO_FIELD: Final = ("event", "exc_info")


class Event(dict[str, Any]):
    """What was logged. As text, for handlers that know nothing of fields, it is one line."""

    def __str__(self) -> str:
        fields = "".join(f" {name}={_shown(value)}" for name, value in self.items() if name not in _NO_FIELD)
        return f"{self.get('event', '')}{fields}"


def _shown(value: object) -> str:
    text = str(value)
    plain = text.isprintable() and text and " " not in text and "=" not in text and '"' not in text
    return text if plain or not isinstance(value, str) else repr(text)


def logger(name: str) -> Log:
    """The module's log. What it is given must be a fixed text and fields; never a key, never a command."""
    wrapped: Log = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, _for_logging],
        wrapper_class=Log,
    )
    return wrapped


def _for_logging(
    wrapped: Any, method: str, event: MutableMapping[str, Any]
) -> tuple[tuple[Event], dict[str, Any]]:
    """As ``structlog.stdlib.ProcessorFormatter`` takes it up again, and as others can show it."""
    said: dict[str, Any] = {"extra": {"_logger": wrapped, "_name": method}, "stacklevel": _OUR_CALLER}
    trace = event.pop("exc_info", None)
    if isinstance(trace, BaseException):
        trace = (type(trace), trace, trace.__traceback__)
    elif trace:
        trace = sys.exc_info()
    if trace:
        said["exc_info"] = event["exc_info"] = trace
    return (Event(event),), said


class Throttle:
    """Lets something be said once in a while, and counts what was not. It remembers ``KEYS_MAX`` keys; what
    others can cause has few.

    ::

        if (fields := throttle.admits("suspected")) is not None:
            log.warning("suspected", **fields)
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._known: dict[object, tuple[float, int]] = {}  # said when, unsaid since then

    def admits(self, key: object) -> dict[str, int] | None:
        """None: it has just been said. Else fields to say with it: how often it went unsaid since then."""
        now = monotonic()
        last, unsaid = self._known.pop(key, (-math.inf, 0))
        if now - last < self._seconds:
            self._known[key] = (last, unsaid + 1)
            return None
        self._known[key] = (now, 0)
        while len(self._known) > KEYS_MAX:
            del self._known[next(iter(self._known))]
        return {"unsaid": unsaid} if unsaid else {}
