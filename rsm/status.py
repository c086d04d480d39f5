"""How a replica stands, in one type for everybody who asks: command line, HTTP, dashboard, metrics."""

from enum import StrEnum

import msgspec

from rsm.executor import Group


class Standing(StrEnum):
    STARTING = "starting"
    SERVING = "serving"
    FETCHING = "fetching the state"
    OUTSIDE = "outside"
    HALTED = "halted"


class MemberStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A member as this replica's view has it."""

    site: str
    address: str
    voter: bool
    in_ring: bool
    version: int  # the newest it can run, 0: it has not said
    boot: str = ""  # that of its last announcement


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """``digest`` is of everything executed up to ``applied``: equal at equal slots. ``age_s``: how long ago a
    majority was last heard here."""

    group: str
    address: str
    site: str
    standing: Standing
    mode: str
    chain: str = ""
    view: str = ""
    applied: int = 0
    digest: str = ""
    machine: str = ""
    version: int = 0
    sessions: int = 0
    outstanding: int = 0
    age_s: float = 0.0
    why: str = ""  # it halted
    clock_ns: int = 0  # the wall clock where it runs
    forks: int = 0  # so often has its chain gone on without a majority (R9)
    members: list[MemberStatus] = []


def members_of(agreed: Group) -> list[MemberStatus]:
    """The view that the group has agreed on, and what each member has announced."""
    view = agreed.view
    if view is None:
        return []
    return [
        MemberStatus(
            site=f"{site:x}",
            address=address,
            voter=site in view.electorate,
            in_ring=site in view.ring,
            version=max(agreed.announced[site].signatures, default=0) if site in agreed.announced else 0,
            boot=agreed.announced[site].boot.hex() if site in agreed.announced else "",
        )
        for site, address in view.addresses.items()
    ]
