"""How much was done so far, and how full everything is: what a ``sample`` of a recording says. The names are
listed in ``ordering.recording``."""

from collections.abc import Iterable

from ordering.statistics import DriverStats, GroupStats


def sample_of(driver: DriverStats, engine: GroupStats, waiting: int) -> dict[str, int]:
    """``waiting``: messages that are delivered and not executed."""
    figures = {
        "datagrams_in": driver.datagrams_in,
        "datagrams_out": driver.datagrams_out,
        "bytes_in": driver.bytes_in,
        "bytes_out": driver.bytes_out,
        "waiting": waiting,
        "submitted": engine.submitted,
        "delivered": engine.delivered,
        "passes": engine.placed,
        "retransmitted": engine.counters.get("retransmissions", 0),
        "nacks": engine.counters.get("nacks sent", 0),
        "window_messages": engine.window.messages,
        "window_bytes": engine.window.bytes,
        "buffered_slots": max(engine.received - engine.stable, 0),
        "backlog_bytes": engine.backlog_bytes,
        "queued": engine.window.waiting,
    }
    figures |= _of_sockets("dropped_by_kernel", (each.dropped_by_kernel for each in driver.sockets))
    figures |= _of_sockets("receive_bytes", (each.received_waiting_bytes for each in driver.sockets))
    return figures


def _of_sockets(name: str, told: Iterable[int | None]) -> dict[str, int]:
    """Where the system tells nothing there is nothing."""
    known = [each for each in told if each is not None]
    return {name: sum(known)} if known else {}
