"""What is searched: small scenes for the tests, larger ones for ``python -m model``."""

from __future__ import annotations

from fractions import Fraction

from gpuspawner.asks import Asks

from .world import Outside, Scene, Spawn

A, B, C = "a" * 32, "b" * 32, "c" * 32
HALF = Fraction(1, 2)
ALL = Outside(Asks(manner="holds", counts=frozenset({-1})))
OBSERVER = Outside(Asks(manner="observes"), begins="running")


def two(*, rank: int = 0, first: int = 1, second: int = 1, **scene: object) -> Scene:
    """Two hubs with one spawn each; the first one's container has this rank, the other's is 1."""
    spawns = (Spawn(0, first, rank=rank), Spawn(1, second, rank=1))
    return Scene(spawns, ids=(A, B), **scene)  # type: ignore[arg-type]


def own(count: int = 2, **scene: object) -> Scene:
    """One hub, some users."""
    return Scene(tuple(Spawn(0, rank=-i) for i in range(count)), **scene)  # type: ignore[arg-type]


def same(**scene: object) -> Scene:
    """One hub; one server, spawned again."""
    return Scene((Spawn(user="ada"), Spawn(user="ada")), **scene)  # type: ignore[arg-type]


#: Each is searched to its end by the tests.
SMALL: dict[str, Scene] = {
    "alone": own(1),
    "two hubs": two(),
    "two hubs, listed in another order than created": two(rank=2),
    "three hubs": Scene((Spawn(0, rank=1), Spawn(1), Spawn(2, rank=2)), ids=(A, B, C)),
    "one hub, one card": own(),
    "one hub, two cards, three users": own(3, cards=2),
    "halves of two hubs": Scene(
        (Spawn(0, share=HALF), Spawn(1, share=HALF, rank=2), Spawn(1, share=HALF, rank=1)),
        ids=(A, B),
    ),
    "two halves and a whole": Scene(
        (Spawn(0, share=HALF, rank=3), Spawn(1, rank=2), Spawn(1, share=HALF, rank=1)), ids=(A, B)
    ),
    "a pair and one": two(first=2, rank=2, cards=2),
    "yields and tries again": Scene(
        (Spawn(0, tries=1, rank=2), Spawn(1, rank=1)), cards=2, ids=(A, B), faults={"tire": 1}
    ),
    "cancels": own(faults={"cancel": 2, "refuse": 1}),
    "a cancel between two hubs": two(faults={"cancel": 1}),
    "calls without an answer": own(1, faults={"reset": 2, "ages": 1, "refuse": 1, "cancel": 1}),
    "a call without an answer, and another user": own(faults={"reset": 1, "ages": 1}),
    "stops and ends": own(faults={"stop": 1, "refuse": 1, "exit": 1}),
    "ends, long ago": own(faults={"exit": 1, "ages": 1}),
    "cleaner beside stops": own(faults={"clean": 1, "stop": 1}),
    "two hubs, one is killed": two(faults={"kill": 1}),
    "killed while it stops": own(faults={"kill": 1, "stop": 1, "clean": 1}),
    "killed, and the server spawned again": same(faults={"kill": 1, "clean": 1, "ages": 1}),
    "killed, and the server spawned again on another card": same(cards=2, faults={"kill": 1}),
    "a hub that never returns": two(rank=2, returns=(False, True), faults={"kill": 1}),
    "a stranger": own(1, strangers=(Outside(),), faults={"ages": 1}),
    "a stranger whose start fails, two cards": Scene(
        (Spawn(tries=1),), cards=2, strangers=(Outside(fails=True),)
    ),
    "a stranger with all cards, and an observer": own(1, cards=2, strangers=(ALL, OBSERVER)),
    "two strangers": own(1, strangers=(Outside(), Outside())),
    "a stranger between two hubs": two(strangers=(Outside(),)),
    "outside hands": own(faults={"rm": 1, "halt": 1, "restart": 1}),
    "outside hands, two hubs": two(faults={"restart": 1, "rm": 1}),
    "engine restarts": own(faults={"bounce": 1, "ages": 1, "exit": 1}),
    "engine restarts, a stranger comes back": own(
        1, strangers=(Outside(always=True, begins="running"),), faults={"bounce": 1}
    ),
    "engine restarts, containers live": two(live_restore=True, faults={"bounce": 1}),
    "a copied hub id": Scene((Spawn(0), Spawn(1)), ids=(A, A), faults={"clean": 1}),
}

#: These take minutes.
LARGE: dict[str, Scene] = {
    "slow owners": two(faults={"ages": 1, "clean": 1}),
    "slow owners, all live to see it": two(rank=2, faults={"ages": 2, "clean": 1}),
    "three hubs, a cancel": Scene(
        (Spawn(0, rank=1), Spawn(1), Spawn(2, rank=2)), ids=(A, B, C), faults={"cancel": 1}
    ),
    "three hubs, one killed": Scene(
        (Spawn(0, rank=2), Spawn(1), Spawn(2, rank=1)), ids=(A, B, C), faults={"kill": 1}
    ),
    "four spawns of two hubs": Scene(
        (Spawn(0, rank=3), Spawn(1, rank=2), Spawn(0, rank=1), Spawn(1)), ids=(A, B)
    ),
    "a pair and two": Scene((Spawn(0, 2), Spawn(1, rank=2), Spawn(1, rank=1)), cards=2, ids=(A, B)),
    "two pairs and one": Scene(
        (Spawn(0, 2, rank=1), Spawn(1, 2), Spawn(1, rank=2)), cards=2, ids=(A, B)
    ),
    "calls without an answer between two hubs": two(faults={"reset": 1, "ages": 1, "clean": 1}),
    "killed twice, and spawned again": same(faults={"kill": 2, "clean": 1, "ages": 1}),
    "two hubs, killed and stopped": two(faults={"kill": 1, "stop": 1, "ages": 1}),
    "a hub that never returns, and time": two(
        rank=2, returns=(False, True), faults={"kill": 1, "ages": 1, "clean": 1}
    ),
    "two strangers between two hubs": two(strangers=(Outside(), Outside(fails=True))),
    "a stranger, two tries, two cards": Scene(
        (Spawn(0, tries=2), Spawn(1, rank=1)), cards=2, ids=(A, B), strangers=(Outside(),)
    ),
    "outside hands, all of them": two(
        faults={"restart": 1, "rm": 1, "halt": 1, "exit": 1, "ages": 1}
    ),
    "engine restarts twice": two(faults={"bounce": 2, "ages": 1}),
    "engine restarts and a hub is killed": two(faults={"bounce": 1, "kill": 1}),
    "a copied hub id, late": Scene(
        (Spawn(0), Spawn(1)), ids=(A, A), faults={"clean": 1, "ages": 1}
    ),
}
