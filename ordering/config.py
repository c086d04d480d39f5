"""Settings of one group at one site. Times are milliseconds; the engine counts in nanoseconds."""

import msgspec

from ordering.errors import ConfigurationError

MS = 1_000_000
PACKET_BYTES_MIN = 300


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Every limit the engine obeys. The defaults suit a local network; tests shrink them."""

    group: str
    # Addresses of the founders (birth needs them all, R9) and of sites a joiner may ask.
    founders: tuple[str, ...] = ()
    contacts: tuple[str, ...] = ()
    discipline: str = "rotating"
    # A voter is bound to its disk: what it claims is synced, and it comes back as itself (R6, R8).
    durable: bool = False
    flow_control: str = "sliding-window"

    # Retransmission: Jacobson's estimate between these bounds.
    rto_min_ms: int = 5
    rto_max_ms: int = 200
    # A gap may be mere reordering: wait this long (plus as much again, drawn) before a NACK.
    nack_delay_ms: int = 1
    # What is delivered may wait this long for the round that makes it stable everywhere; 0: not at all.
    null_ms: int = 2
    # Durable mode: a site may take so long to say that its disk, too, has what is delivered; 0: at once.
    confirm_ms: int = 5
    # An idle ring is probed this rarely.
    probe_ms: int = 200
    # Active detector: a site that owes an answer and makes no progress for this long is suspect.
    suspect_ms: int = 250
    # A site that answers but does not fulfil its duty (slow, or deaf) is suspect after this long.
    slow_ms: int = 1500
    # Passive detector: no progress and no probe for this long.
    passive_ms: int = 700
    # A view change that does not decide within this long is tried again by someone.
    recovery_ms: int = 150
    # An external voter asks back into the ring after this long, doubled each time it falls out.
    return_ms: int = 100
    # A voter out of the ring and unheard for this long is removed from the electorate; 0: never.
    remove_ms: int = 0
    # Removal never makes the electorate smaller than this.
    electorate_min: int = 3
    # Without a majority for this long a site refuses work (NoPrimary).
    minority_ms: int = 1500
    # R9: so many voters that have lost the majority for orphan_ms go on in a new chain; 0: never.
    # Below a majority this splits a partitioned group, until its chains meet again: one must yield.
    minimum_size: int = 0
    orphan_ms: int = 10_000
    request_ms: int = 50
    # R14: an application that needs the time in an idle group is told it this often; 0: never.
    tick_ms: int = 0

    # The same at all sites: a receiver refuses what exceeds its own.
    message_bytes_max: int = 16 * 1024 * 1024
    # The path's MTU: payload of a datagram. 60,000 suits loopback, 1,400 a network. Larger messages are
    # cut; packets that carry a view are not, and may exceed it up to the limit of UDP.
    packet_bytes: int = 60_000
    # Own messages accepted and not yet ordered; also the most that is ever in transit.
    window_bytes: int = 32 * 1024 * 1024
    window_messages: int = 1_000_000
    # Calls of one caller without an answer, here and at the member that forwards them. All callers together
    # get half of a member's window.
    call_messages: int = 4096
    call_bytes: int = 8 * 1024 * 1024
    # A call without an answer for so long, or after so many tries, is given up: outcome unknown.
    call_ms: int = 30_000
    call_tries: int = 1000
    # Callers a member remembers, and the bytes of their replies that it keeps to repeat them.
    callers_max: int = 4096
    reply_bytes: int = 64 * 1024 * 1024
    # Most messages one ACK orders: bounds a block, and with it what a loss can hold up.
    block_messages: int = 65_536
    # Slots kept for laggards beyond what the ring needs; a site further behind needs a state transfer.
    retain_slots: int = 1_000_000
    # Bytes with a slot that this site cannot forget yet, and what its application has not taken. Above
    # half of it the log is kept for the ring only; above it this site, having the token, orders nothing.
    buffer_bytes_max: int = 256 * 1024 * 1024
    # Messages that are partly here, beyond one of each source.
    assembly_bytes_max: int = 64 * 1024 * 1024
    # How far beyond its frontier a site buffers (in slots and in messages of a source).
    horizon: int = 2_000_000
    # Most packets sent in answer to one NACK.
    retransmit_burst: int = 64

    def __post_init__(self) -> None:
        if not self.group:
            raise ConfigurationError("group: must not be empty; name the group this site belongs to")
        if not self.founders and not self.contacts:
            raise ConfigurationError(
                "founders, contacts: both are empty; list the founders' addresses to found the group,"
                " or contacts to join it"
            )
        if len(set(self.founders)) != len(self.founders):
            raise ConfigurationError("founders: an address is listed twice; list each founder once")
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name}: must be positive, is {getattr(self, name)}")
        if self.remove_ms < 0:
            raise ConfigurationError(f"remove_ms: must be 0 (never) or positive, is {self.remove_ms}")
        if self.tick_ms < 0:
            raise ConfigurationError(f"tick_ms: must be 0 (never) or positive, is {self.tick_ms}")
        if self.minimum_size < 0:
            raise ConfigurationError(
                f"minimum_size: must be 0 (a majority, always) or a number of voters, is {self.minimum_size}"
            )
        if self.packet_bytes < PACKET_BYTES_MIN:
            raise ConfigurationError(
                f"packet_bytes: {self.packet_bytes} must be at least {PACKET_BYTES_MIN}; a header has to fit"
            )
        for low, high, why in _ORDERED:
            if getattr(self, low) >= getattr(self, high):
                raise ConfigurationError(
                    f"{low}: {getattr(self, low)} must be below {high} ({getattr(self, high)}); {why}"
                )

    @property
    def detection_ms(self) -> int:
        """The longest it takes until a dead site is noticed by someone: liveness is measured in it."""
        return max(self.passive_ms, self.probe_ms + self.suspect_ms)


_POSITIVE = (
    "rto_min_ms", "rto_max_ms", "nack_delay_ms", "probe_ms", "suspect_ms", "slow_ms", "passive_ms",
    "recovery_ms", "return_ms", "minority_ms", "orphan_ms", "request_ms", "electorate_min",
    "message_bytes_max", "packet_bytes", "window_bytes", "window_messages", "block_messages",
    "retain_slots", "buffer_bytes_max", "assembly_bytes_max", "horizon", "retransmit_burst",
    "call_messages", "call_bytes", "call_ms", "call_tries", "callers_max", "reply_bytes",
)  # fmt: skip

_ORDERED = (
    ("rto_min_ms", "rto_max_ms", "a retransmission time needs room to adapt"),
    ("rto_min_ms", "suspect_ms", "a site must get the chance to answer a retransmission"),
    ("suspect_ms", "slow_ms", "slow is a longer patience than silent"),
    ("minority_ms", "orphan_ms", "a majority must be missed before it is given up"),
    ("probe_ms", "passive_ms", "probes are what keeps the passive detector calm"),
)
