"""A site of actions under attack: a replica of the ledger, a manager, a database; and it begins some."""

import asyncio
import zlib
from random import Random
from typing import Any

import msgspec

from apps.actions.ledger import ActionLedger
from apps.actions.outcomes import is_decided, is_finished
from bench.chaos.actions.bank import moves, name_of
from bench.chaos.actions.load import Transfers
from bench.chaos.actions.points import FailingManager, FailingParticipant
from bench.chaos.failpoints import FailingDriver, FailingReplica, Failpoints
from bench.chaos.history import Notes
from bench.chaos.site import (
    Halted,
    Ready,
    SiteSetup,
    Standing,
    converse,
    describe_engine,
    run_site,
)
from bench.workers import Link


class ActionSetup(SiteSetup, frozen=True, kw_only=True):
    database: str
    sites: int


def action_site(link: Link) -> None:
    """As ``site``: it waits, ready-made."""
    setup: ActionSetup = link.hear()
    run_site(setup, _serve(link, setup))


async def _serve(link: Link, setup: ActionSetup) -> None:
    points = FailingDriver.failpoints = Failpoints(setup.number)
    replica: FailingReplica[ActionLedger] = FailingReplica(ActionLedger, setup.config())
    replica.failpoints = points
    notes, name = Notes(setup.notes), name_of(setup.number)
    participant = FailingParticipant(name, setup.database, moves, points, notes)
    offers = setup.number % 2 == 0  # the others have theirs voted on behind the request
    manager = FailingManager(replica, site=name, participant=participant, offers=offers)
    manager.points = points
    load = Transfers(manager, setup.client, notes, Random(setup.seed), setup.sites)
    life = asyncio.ensure_future(_live(link, replica, manager, load, setup.pause_s))
    await converse(link, points, load, life, lambda: _standing(replica, manager))


async def _live(
    link: Link, replica: FailingReplica[Any], manager: FailingManager, load: Transfers, pause_s: float
) -> None:
    try:
        await replica.start()
        await manager.__aenter__()
        load.start(1, pause_s)
        link.say(Ready())
        await manager.ended()
    except Exception as error:
        link.say(Halted(f"{type(error).__name__}: {error}"))
        raise


def _standing(replica: FailingReplica[Any], manager: FailingManager) -> Standing | None:
    """What is in doubt here is never finished."""
    if not replica._opened:
        return None
    machine = replica.executor.machine
    assert isinstance(machine, ActionLedger)
    known = [machine.action(name) for name in list(machine._entries)]
    actions = [each for each in known if each is not None]
    told = [(each.id, each.state.value, each.decided) for each in actions]
    return Standing(
        status=replica.status(),
        order=(len(told), zlib.crc32(msgspec.msgpack.encode(told))),
        unfinished=sum(not is_decided(each) or not is_finished(each) for each in actions)
        + len(manager.in_doubt)
        + len(manager._core._locals),  # offers too
        engine=describe_engine(replica),
    )
