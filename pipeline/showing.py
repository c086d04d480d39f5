"""How a time is told to people: by UTC, wherever this runs."""

from datetime import UTC, datetime


def utc_text(when: datetime) -> str:
    """Spark hands out times without a zone, as this process has it."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
