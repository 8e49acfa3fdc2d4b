"""The one table of the lease protocol: states, how they are seen, whom they block, every step.

A *lease* is one try to start one server and all that follows from it. Its reservation is kept in
this process, its container by the engine. :mod:`gpuspawner.attempts` may take the steps of
:data:`TRANSITIONS` and no other; the page on states in the documentation is made from this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Literal


class State(Enum):
    """Where a lease is on its way."""

    RESERVED = "reserved"
    CREATING = "creating"
    CLAIMED = "claimed"
    WAITING = "waiting"
    STARTING = "starting"
    HELD = "held"
    RELEASING = "releasing"
    ORPHAN = "orphan"
    FREE = "free"


class Blocks(Enum):
    """Who can't have the cards of a lease."""

    OWN_HUB = "this hub"
    OWN_HUB_AND_LISTED = "this hub; everybody while it is listed"
    ALL = "everybody"
    ALL_WHILE_LISTED = "everybody while it is listed"
    NOBODY = "nobody"


#: A container that the engine does not list.
ABSENT = "absent"


@dataclass(frozen=True)
class Facts:
    """What is true of a lease in one state, as long as no outside hand touches its container.

    Attributes:
        seen: how the engine's list may show its container.
        blocks: who can't have its cards.
        means: in words for the documentation.
    """

    seen: tuple[str, ...]
    blocks: Blocks
    means: str


FACTS: dict[State, Facts] = {
    State.RESERVED: Facts(
        (ABSENT,), Blocks.OWN_HUB, "A card is chosen; only this hub's memory knows."
    ),
    State.CREATING: Facts(
        (ABSENT, "created"),
        Blocks.OWN_HUB_AND_LISTED,
        "The engine was asked for a container. It may be listed before the engine answers.",
    ),
    State.CLAIMED: Facts(
        ("created",), Blocks.ALL, "The engine has answered: the container is listed for everybody."
    ),
    State.WAITING: Facts(
        ("created",), Blocks.ALL, "Somebody behind it in the order is listed too and will go."
    ),
    State.STARTING: Facts(
        ("created", "running"),
        Blocks.ALL,
        "All listed claims fitted together. While the start is inside, an inspection is silent.",
    ),
    State.HELD: Facts(
        ("running", "paused", "restarting"), Blocks.ALL, "The user has the server and its cards."
    ),
    State.RELEASING: Facts(
        (ABSENT, "created", "running", "paused", "restarting", "exited", "removing", "dead"),
        Blocks.OWN_HUB_AND_LISTED,
        "Its removal was sent, or a call without an answer is followed to its end.",
    ),
    State.ORPHAN: Facts(
        (ABSENT, "created", "running", "paused", "restarting", "exited"),
        Blocks.ALL_WHILE_LISTED,
        "The hub that made it died, and no process knows the lease.",
    ),
    State.FREE: Facts(
        (ABSENT, "removing", "dead"), Blocks.NOBODY, "Over: nobody holds anything by it."
    ),
}

#: Who takes a step: an attempt in flight (``Attempts.move``), the hub that knows the lease without
#: an attempt, the cleaner, or nobody of this process: then only the engine's list shows it.
Taker = Literal["attempt", "hub", "cleaner", "engine"]


@dataclass(frozen=True)
class Step:
    """One step of a lease.

    Attributes:
        event: what makes it happen.
    """

    source: State
    target: State
    taker: Taker
    event: str


STEPS: tuple[Step, ...] = (
    Step(State.RESERVED, State.CREATING, "attempt", "create sent"),
    Step(State.RESERVED, State.FREE, "attempt", "cancel"),
    Step(State.RESERVED, State.FREE, "engine", "hub dies"),
    Step(State.CREATING, State.CLAIMED, "attempt", "create answered"),
    Step(State.CREATING, State.RELEASING, "attempt", "refused, cancel, reset, timeout"),
    Step(State.CREATING, State.ORPHAN, "engine", "hub dies"),
    Step(State.CLAIMED, State.STARTING, "attempt", "all claims fit"),
    Step(State.CLAIMED, State.WAITING, "attempt", "only later rivals are in the way"),
    Step(State.CLAIMED, State.RELEASING, "attempt", "an earlier or running rival, cancel, error"),
    Step(State.CLAIMED, State.ORPHAN, "engine", "hub dies"),
    Step(State.WAITING, State.STARTING, "attempt", "the rivals are gone"),
    Step(State.WAITING, State.RELEASING, "attempt", "a rival runs, waited too long, cancel, error"),
    Step(State.WAITING, State.ORPHAN, "engine", "hub dies"),
    Step(State.STARTING, State.HELD, "attempt", "start answered, second look clean"),
    Step(State.STARTING, State.RELEASING, "attempt", "outsider runs, cancel, error"),
    Step(State.STARTING, State.ORPHAN, "engine", "hub dies"),
    Step(State.HELD, State.RELEASING, "hub", "stop, or it has ended"),
    Step(State.HELD, State.FREE, "hub", "no longer listed"),
    Step(State.HELD, State.HELD, "engine", "hub dies, its database names the lease"),
    Step(State.HELD, State.ORPHAN, "engine", "hub dies before its database names the lease"),
    Step(State.RELEASING, State.FREE, "attempt", "removal answered, or never listed"),
    Step(State.RELEASING, State.FREE, "hub", "removal answered"),
    Step(State.RELEASING, State.ORPHAN, "engine", "hub dies"),
    Step(State.ORPHAN, State.HELD, "hub", "it runs, and its server's spawner adopts it"),
    Step(State.ORPHAN, State.RELEASING, "cleaner", "nobody owns it"),
    Step(State.ORPHAN, State.FREE, "engine", "no longer listed"),
)

#: The steps an attempt in flight may take. In a state without any it is no longer in flight.
TRANSITIONS: dict[State, frozenset[State]] = {
    state: frozenset(
        step.target for step in STEPS if step.source is state and step.taker == "attempt"
    )
    for state in State
}


class CardState(Enum):
    """State of a device: the first in this order that applies."""

    UNKNOWN = "unknown"
    GONE = "gone"
    ILL = "ill"
    FOREIGN = "foreign"
    HELD = "held"
    DIRTY = "dirty"
    SETTLING = "settling"
    FREE = "free"

    @classmethod
    def first(cls, applying: Iterable[CardState]) -> CardState:
        """The one that counts where several apply; free if none does."""
        found = frozenset(applying)
        return next((state for state in cls if state in found), cls.FREE)


#: What the states of a device mean, in words for the documentation.
CARD_FACTS: dict[CardState, str] = {
    CardState.UNKNOWN: "The engine or the driver can't be asked. Unknown is busy.",
    CardState.GONE: "It was there and the driver names it no longer.",
    CardState.ILL: "It can't be read, or the driver asks for a recovery action.",
    CardState.FOREIGN: "A container of somebody else holds it, perhaps beside a server of ours.",
    CardState.HELD: "Servers of gpuspawner hold it. Of a shared card the share left is offered.",
    CardState.DIRTY: "A compute process of nobody who holds it, or memory held by nobody.",
    CardState.SETTLING: "Its last holder's processes are still ending.",
    CardState.FREE: "Offered.",
}
