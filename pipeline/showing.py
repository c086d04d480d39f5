"""How is a time of day shown?"""

from datetime import UTC, datetime


def utc_text(moment: datetime) -> str:
    """In UTC, whatever zone this machine is in, as ``2026-01-31T12:00:00Z``. Without a zone it is local, as
    Spark's rows have it."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
