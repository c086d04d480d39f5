"""Ordering disciplines: who may order, when, and who is next.

Both disciplines below run on the same engine: an Order names the site that may create the next
one, and what differs is whom it names and how the others learn what is held. A new discipline is
one file here and one line in ``DISCIPLINES``.
"""

from collections.abc import Callable, Mapping
from typing import Final

from ordering.disciplines.base import Discipline
from ordering.disciplines.rotating import Rotating
from ordering.disciplines.sequencer import Sequencer
from ordering.errors import ConfigurationError
from ordering.site import Site

DISCIPLINES: Final[Mapping[str, Callable[[Site], Discipline]]] = {
    "rotating": Rotating,
    "sequencer": Sequencer,
}


def make_discipline(name: str, site: Site) -> Discipline:
    """The discipline called ``name``."""
    if name not in DISCIPLINES:
        known = ", ".join(sorted(DISCIPLINES))
        raise ConfigurationError(f"discipline: {name!r} is unknown; use one of {known}")
    return DISCIPLINES[name](site)


__all__ = ["DISCIPLINES", "Discipline", "Rotating", "Sequencer", "make_discipline"]
