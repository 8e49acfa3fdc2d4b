"""The protocol itself, searched through: every interleaving of a few spawns of different hubs.

Each spawn is: the engine stamps its container, lists it, answers; its hub asks for a listing, gets
it as it was then, judges (with the product's own ``judge``), sends a start or a removal, which the
engine carries out later. Hubs may stop anywhere for ever, and a cleaner may remove any container
that was never started. The order of the stamps is independent of everything else.

The search proves the model can fail, too: each rule taken away gives two holders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
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
One = tuple[str, int, tuple[str, ...]]
State = tuple[One, ...]


class Model:
    """The engine and some hubs, each at one point of its way.

    Args:
        ranks: place of each container in the order of stamps.
        ask_early: the broken rule "look before create is answered".
    """

    def __init__(
        self,
        requests: list[Request],
        ranks: tuple[int, ...],
        verdict: Judge,
        *,
        ask_early: bool = False,
    ) -> None:
        self.requests, self.ranks, self.verdict = requests, ranks, verdict
        self.ask_early = ask_early
        self._told: dict[tuple[int, tuple[str, ...]], Verdict] = {}

    def claim(self, i: int, shown: str) -> Claim:
        devices, size = self.requests[i]
        return claim(str(self.ranks[i]), devices, size=size, state=shown, created=self.ranks[i])

    def decide(self, i: int, seen: tuple[str, ...]) -> Verdict:
        if (i, seen) not in self._told:
            listed = [self.claim(j, shown) for j, shown in enumerate(seen) if shown != NOT]
            self._told[i, seen] = self.verdict(self.claim(i, CREATED), listed, INVENTORY)
        return self._told[i, seen]

    def steps(self, state: State) -> Iterator[State]:
        """Whatever may happen next."""
        shown = tuple(one[0] for one in state)
        for i, one in enumerate(state):
            for after in (*self.hub_steps(i, one, shown), *self.engine_steps(one)):
                yield (*state[:i], after, *state[i + 1 :])

    def hub_steps(self, i: int, one: One, shown: tuple[str, ...]) -> Iterator[One]:
        mine, at, seen = one
        if at == CREATING:
            yield CREATED, ASKS, seen
            if self.ask_early and not seen:
                yield mine, CREATING, shown
        elif at == ASKS:
            yield mine, READS, seen if self.ask_early and seen else shown
        elif at == READS:
            after = {Verdict.START: STARTS, Verdict.YIELD: REMOVES, Verdict.WAIT: ASKS}
            yield mine, after[self.decide(i, seen)], ()
        elif at == STARTS:
            # Removed by a cleaner meanwhile: 404, and the attempt is over.
            yield RUNNING if mine == CREATED else NOT, DONE, ()
        elif at == REMOVES:
            yield NOT, DONE, ()

    def engine_steps(self, one: One) -> Iterator[One]:
        mine, at, seen = one
        if mine == CREATED and at in (ASKS, READS, STARTS):
            yield NOT, at, seen
        elif mine == RUNNING:
            yield EXITED, at, seen
        elif mine == EXITED:
            yield NOT, at, seen

    def broken(self, state: State) -> bool:
        """True if more runs on a card than fits."""
        load: dict[str, Fraction] = {}
        for (devices, size), one in zip(self.requests, state, strict=True):
            for device in devices if one[0] == RUNNING else ():
                load[device] = load.get(device, Fraction(0)) + size
        return any(size > 1 for size in load.values())

    def search(self) -> tuple[int, State | None]:
        """How many states can be reached, and one that is broken, if any."""
        first: State = tuple((NOT, CREATING, ()) for _ in self.requests)
        known, frontier = {first}, [first]
        while frontier:
            state = frontier.pop()
            if self.broken(state):
                return len(known), state
            for after in self.steps(state):
                if after not in known:
                    known.add(after)
                    frontier.append(after)
        return len(known), None


SCENES: dict[str, list[Request]] = {
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
        states, bad = Model(requests, ranks, judge).search()
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
    found = [Model([WHOLE, WHOLE], ranks, mutant).search()[1] for ranks in permutations(range(2))]
    assert any(found)


def test_a_listing_begun_before_create_was_answered_proves_nothing() -> None:
    found = [
        Model([WHOLE, WHOLE], ranks, judge, ask_early=True).search()[1]
        for ranks in permutations(range(2))
    ]
    assert any(found)
