"""The protocol itself, searched through: every interleaving of a few spawns of different hubs.

Each spawn is: the engine stamps its container, lists it, answers; its hub asks for a listing, gets
it as it was then, judges (with the product's own ``judge``), sends a start or a removal, which the
engine carries out later. Hubs may stop anywhere for ever, and a cleaner may remove any container
that was never started. The order of the stamps is independent of everything else.

The search proves the model can fail, too: each rule taken away gives two holders.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from itertools import permutations

import pytest
from fakes.rows import cards, claim

from gpuspawner.claims import Claim
from gpuspawner.devices import Inventory
from gpuspawner.verdict import Verdict, judge

Request = tuple[tuple[str, ...], Fraction]
Judge = Callable[[Claim, list[Claim], Inventory], Verdict]
#: What the list shows of a container.
NOT, CREATED, RUNNING, EXITED = "-", "created", "running", "exited"
#: Where its hub is.
CREATING, ASKS, READS, STARTS, REMOVES, DONE = range(6)

ONE, HALF = Fraction(1), Fraction(1, 2)
WHOLE: Request = (("GPU-0",), ONE)
INVENTORY = cards(3)
State = tuple[tuple[str, int, tuple[str, ...]], ...]


def search(
    requests: list[Request], ranks: tuple[int, ...], verdict: Judge, *, ask_early: bool = False
) -> tuple[int, State | None]:
    """All reachable states.

    Args:
        ranks: place of each container in the order of stamps.
        ask_early: the broken rule "look before create is answered".

    Returns:
        How many states there are, and one in which a card has too many holders, if any.
    """
    count = len(requests)

    def as_claim(i: int, shown: str) -> Claim:
        devices, size = requests[i]
        return claim(str(ranks[i]), devices, size=size, state=shown, created=ranks[i])

    @lru_cache(maxsize=None)
    def decide(i: int, seen: tuple[str, ...]) -> Verdict:
        listed = [as_claim(j, seen[j]) for j in range(count) if seen[j] != NOT]
        return verdict(as_claim(i, CREATED), listed, INVENTORY)

    def steps(state: State) -> list[State]:
        shown = tuple(one[0] for one in state)
        found: list[State] = []

        def to(i: int, *values: object) -> None:
            found.append((*state[:i], values, *state[i + 1 :]))  # type: ignore[arg-type]

        for i, (mine, at, seen) in enumerate(state):
            if at == CREATING:
                to(i, CREATED, ASKS, seen)
                if ask_early and not seen:
                    to(i, mine, CREATING, shown)
            elif at == ASKS:
                to(i, mine, READS, seen if ask_early and seen else shown)
            elif at == READS:
                told = decide(i, seen)
                after = {Verdict.START: STARTS, Verdict.YIELD: REMOVES, Verdict.WAIT: ASKS}[told]
                to(i, mine, after, ())
            elif at == STARTS:
                # Removed by a cleaner meanwhile: 404, and the attempt is over.
                to(i, RUNNING if mine == CREATED else NOT, DONE, ())
            elif at == REMOVES:
                to(i, NOT, DONE, ())
            elif mine == RUNNING:
                to(i, EXITED, DONE, ())
            elif mine == EXITED:
                to(i, NOT, DONE, ())
            if mine == CREATED and at in (ASKS, READS, STARTS):
                to(i, NOT, at, seen)
        return found

    def broken(state: State) -> bool:
        for device in {d for devices, _ in requests for d in devices}:
            load = sum(
                size
                for (devices, size), one in zip(requests, state, strict=True)
                if one[0] == RUNNING and device in devices
            )
            if load > 1:
                return True
        return False

    first: State = tuple((NOT, CREATING, ()) for _ in requests)
    known, frontier = {first}, [first]
    while frontier:
        state = frontier.pop()
        if broken(state):
            return len(known), state
        for after in steps(state):
            if after not in known:
                known.add(after)
                frontier.append(after)
    return len(known), None


SCENES = {
    "two": [WHOLE, WHOLE],
    "three": [WHOLE, WHOLE, WHOLE],
    "halves": [(("GPU-0",), HALF), (("GPU-0",), HALF), (("GPU-0",), HALF)],
    "half-and-whole": [(("GPU-0",), HALF), WHOLE, (("GPU-0",), HALF)],
    "ring": [(("GPU-0", "GPU-1"), ONE), (("GPU-1", "GPU-2"), ONE), (("GPU-2", "GPU-0"), ONE)],
}


@pytest.mark.parametrize("scene", SCENES)
def test_no_interleaving_gives_a_card_to_two(scene: str) -> None:
    requests = SCENES[scene]
    for ranks in permutations(range(len(requests))):
        states, bad = search(requests, ranks, judge)
        assert bad is None
        assert states > 50, "the search saw nothing"


def earlier_wins(mine: Claim, claims: list[Claim], inventory: Inventory) -> Verdict:
    """The naive rule: start unless somebody is before me; later ones don't matter."""
    earlier = [c for c in claims if c.decided or c.row.order < mine.row.order]
    return judge(mine, earlier, inventory)


def blind_to_created(mine: Claim, claims: list[Claim], inventory: Inventory) -> Verdict:
    return judge(mine, [c for c in claims if c.decided], inventory)


def never_looks(mine: Claim, claims: list[Claim], inventory: Inventory) -> Verdict:
    return Verdict.START


@pytest.mark.parametrize("mutant", [earlier_wins, blind_to_created, never_looks])
def test_without_one_rule_a_card_has_two_holders(mutant: Judge) -> None:
    found = [search([WHOLE, WHOLE], ranks, mutant)[1] for ranks in permutations(range(2))]
    assert any(found)


def test_a_listing_begun_before_create_was_answered_proves_nothing() -> None:
    found = [
        search([WHOLE, WHOLE], ranks, judge, ask_early=True)[1] for ranks in permutations(range(2))
    ]
    assert any(found)
