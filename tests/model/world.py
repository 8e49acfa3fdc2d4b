"""The states that are searched: a frozen picture of engine, hubs and outsiders at one moment.

What belongs to a scene (who asks for what, which faults may happen and how often) never changes in
it; what does change is in these tuples, so that a state can be looked up in a set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from fakes.rows import cards
from gpuspawner.asks import Asks
from gpuspawner.claims import Times
from gpuspawner.devices import Inventory

TIMES = Times(created_grace_seconds=120, release_delay_seconds=10)
ORPHAN_GRACE_SECONDS = 600
#: When time passes it passes beyond every delay of the protocol.
AGES = 1000

#: One container in a listing: state, created, ended, which try, what an inspection says ("",
#: "404", "silent", "error"), its label of devices. None if it is not listed.
Shown = tuple[str, int, int, int, str, "tuple[str, ...]"]
#: A listing: the engine's time, and every lease's and stranger's container.
Seen = tuple[int, tuple["Shown | None", ...]]


class Lease(NamedTuple):
    """One spawn of one server, with its container.

    Attributes:
        at: where its hub is: a lease state, or ``idle``, ``placing``, ``refused``.
        seen: a listing that was answered and not used yet.
        box: the container's state in the engine.
        inside: the call of its own hub that is inside the engine, or answered and not heard.
        ran: start was answered.
        again: after its removal it will try again.
        lost: create had no answer, so the lease is followed in the list.
        unseen: since when it has not been listed, while it is followed.
        stood: it was held: what is left of it is a removal, no attempt.
        saved: the hub's database names it.
        hands: strangers who have run on its cards ever since the last answer.
    """

    at: str = "idle"
    seen: Seen | None = None
    devices: tuple[str, ...] = ()
    box: str = "absent"
    born: int = 0
    ended: int = 0
    inside: str = ""
    ran: bool = False
    again: bool = False
    force: bool = False
    lost: bool = False
    unseen: int = -1
    stood: bool = False
    saved: bool = False
    tries: int = 0
    hands: tuple[int, ...] = ()


class Stranger(NamedTuple):
    """A container from outside; ``inside`` is what the engine does to it just now."""

    box: str = "absent"
    born: int = 0
    ended: int = 0
    inside: str = ""


class Hub(NamedTuple):
    """One hub process.

    Attributes:
        loaded: it has read its database.
        since: when it first listed.
        earlier: what was listed then: (lease, try).
        asked: the cleaner's listing and what was known before it.
        sweep: what the cleaner has decided to remove: (lease, try, force).
    """

    alive: bool = True
    loaded: bool = True
    since: int = 1
    earlier: frozenset[tuple[int, int]] = frozenset()
    asked: tuple[Seen, frozenset[str]] | None = None
    sweep: tuple[tuple[int, int, bool], ...] = ()


class World(NamedTuple):
    leases: tuple[Lease, ...]
    strangers: tuple[Stranger, ...]
    hubs: tuple[Hub, ...]
    time: int
    left: tuple[int, ...]


@dataclass(frozen=True)
class Spawn:
    """What one user asks of one hub.

    Attributes:
        rank: its container's place in the order of ids, which breaks ties between equal stamps.
        tries: how often it may try again after it yielded.
    """

    hub: int = 0
    count: int = 1
    share: Fraction = Fraction(1)
    user: str = ""
    rank: int = 0
    tries: int = 0


@dataclass(frozen=True)
class Outside:
    """A stranger.

    Attributes:
        begins: ``absent`` or ``running``.
        always: it has a restart policy.
        fails: its start may fail, so that it stays created.
    """

    asks: Asks = field(default_factory=lambda: Asks(manner="holds", ids=frozenset({"GPU-0"})))
    begins: str = "absent"
    always: bool = False
    fails: bool = False


@dataclass(frozen=True)
class Scene:
    """What may happen, and how often.

    Attributes:
        ids: hub ids; equal ones are two hubs with a copied id.
        returns: which hubs come back after they died.
        faults: how often each kind of fault may happen: kill, cancel, refuse, reset, ages, stop,
            exit, clean, rm, halt (``docker stop``), restart (``docker restart``), bounce (the
            engine restarts).
        live_restore: containers outlive the engine.
    """

    spawns: tuple[Spawn, ...]
    cards: int = 1
    strangers: tuple[Outside, ...] = ()
    ids: tuple[str, ...] = ("a" * 32,)
    returns: tuple[bool, ...] = (True, True, True)
    faults: Mapping[str, int] = field(default_factory=dict)
    live_restore: bool = False
    inventory: Inventory = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inventory", cards(self.cards))

    @property
    def twins(self) -> bool:
        return len(set(self.ids)) < len(self.ids)

    def user(self, i: int) -> str:
        return self.spawns[i].user or f"user{i}"

    def begin(self) -> World:
        return World(
            tuple(Lease() for _ in self.spawns),
            tuple(Stranger(box=s.begins) for s in self.strangers),
            tuple(Hub() for _ in self.ids),
            1,
            tuple(self.faults.values()),
        )


def put(world: World, i: int, **changes: object) -> World:
    """The same world with one lease changed."""
    leases = list(world.leases)
    leases[i] = leases[i]._replace(**changes)  # type: ignore[arg-type]
    return world._replace(leases=tuple(leases))


def put_hub(world: World, h: int, **changes: object) -> World:
    hubs = list(world.hubs)
    hubs[h] = hubs[h]._replace(**changes)  # type: ignore[arg-type]
    return world._replace(hubs=tuple(hubs))


def put_stranger(world: World, s: int, **changes: object) -> World:
    strangers = list(world.strangers)
    strangers[s] = strangers[s]._replace(**changes)  # type: ignore[arg-type]
    return world._replace(strangers=tuple(strangers))


def seen_now(world: World) -> Seen:
    """What a listing, with its inspections, shows at this moment."""
    shown: list[Shown | None] = []
    for one in world.leases:
        if one.box == "absent":
            shown.append(None)
        elif one.box == "restarting":
            # In a ``docker restart``: listed as exited, and an inspection waits.
            shown.append(("exited", one.born, one.ended, one.tries, "silent", one.devices))
        else:
            told = "404" if one.inside in ("listed", "making") else ""
            shown.append((one.box, one.born, one.ended, one.tries, told, one.devices))
    for s in world.strangers:
        told = {"making": "404", "starting": "silent", "failed": "error"}.get(s.inside, "")
        shown.append(None if s.box == "absent" else (s.box, s.born, s.ended, 0, told, ()))
    return world.time, tuple(shown)
