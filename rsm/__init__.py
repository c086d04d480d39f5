"""Replicated state machines: subclass ``StateMachine``, run it on several sites (``docs/framework.md``).

::

    from rsm import Replica, ReplicaConfig, StateMachine, command, query

    class Counter(StateMachine):
        def __init__(self) -> None:
            self.value = 0

        @command
        def add(self, n: int) -> int:
            self.value += n
            return self.value

    async with Replica(Counter, ReplicaConfig(group="counter", ...)) as counter:
        await counter.add(1)
"""

from ordering.errors import ConfigurationError, NoPrimary, NotMember, Overloaded
from rsm.client import BlockingClient, Client, ClientConfig
from rsm.config import ReplicaConfig
from rsm.errors import (
    CallError,
    ChainChanged,
    CommandFailed,
    Halted,
    InvalidCall,
    MachineError,
    MismatchedMachine,
    NotHeld,
    OutcomeUnknown,
    Refusal,
    Refused,
    Rejected,
    RsmError,
    StateLost,
)
from rsm.feeds import Feed
from rsm.locks import Grant
from rsm.proxy import Consistency, DetailedProxy, Fresh, Proxy, Result
from rsm.replica import Replica
from rsm.state_machine import Context, GroupView, Since, StateMachine, command, detached, query

__all__ = [
    "BlockingClient",
    "CallError",
    "ChainChanged",
    "Client",
    "ClientConfig",
    "CommandFailed",
    "ConfigurationError",
    "Consistency",
    "Context",
    "DetailedProxy",
    "Feed",
    "Fresh",
    "Grant",
    "GroupView",
    "Halted",
    "InvalidCall",
    "MachineError",
    "MismatchedMachine",
    "NoPrimary",
    "NotHeld",
    "NotMember",
    "OutcomeUnknown",
    "Overloaded",
    "Proxy",
    "Refusal",
    "Refused",
    "Rejected",
    "Replica",
    "ReplicaConfig",
    "Result",
    "RsmError",
    "Since",
    "StateLost",
    "StateMachine",
    "command",
    "detached",
    "query",
]
